"""All that a training needs to go on as if it had not been interrupted: captured, and put back in the right order."""

from __future__ import annotations

import copy
import platform
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptctl import __version__
from ckptctl.errors import UnsupportedError
from ckptctl.training.by_name import optimizer_by_name, optimizer_from_names
from ckptctl.training.sharded import placed_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PARTS = ("scheduler", "scaler", "ema", "data", "saves")
_COUNTERS = ("requires_grad", "step", "epoch", "best", "accumulated", "counters")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """The parts of a training, those that it has.

    Parameters
    ----------
    model
        Its parameters and buffers, and which are trained.
    optimizer
        Its state is kept by the names of the parameters.
    scheduler, scaler, ema, data, saves
        What has ``state_dict`` and ``load_state_dict``: of the learning rate, of the loss, of averaged weights, of the
        position in the data, of the saves.
    step, epoch, best, accumulated
        Counters of the loop; `accumulated` is how many batches have gone into the gradients since the last step, which
        are kept then.
    counters
        Further plain values and tensors.
    """

    model: Any
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    ema: Any = None
    data: Any = None
    saves: Any = None
    step: int = 0
    epoch: int = 0
    best: float | None = None
    accumulated: int = 0
    counters: dict[str, Any] = field(default_factory=dict)

    def capture(self) -> dict[str, Any]:
        """Return all of it, for `save`. The tensors are those of the training itself, not copies.

        Raises
        ------
        UnsupportedError
            The optimizer has a parameter that the model does not.
        """
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "requires_grad": {name: one.requires_grad for name, one in self.model.named_parameters()},
        }
        if self.optimizer is not None:
            state["optimizer"] = optimizer_by_name(self.model, self.optimizer)
        state |= {name: part.state_dict() for name, part in self._parts()}
        counters = {"step": self.step, "epoch": self.epoch, "best": self.best, "accumulated": self.accumulated}
        state |= counters | {"counters": dict(self.counters), "rng": _generators(), "versions": _versions()}
        if self.accumulated:
            named = self.model.named_parameters()
            state["gradients"] = {name: one.grad for name, one in named if one.grad is not None}
            if not state["gradients"]:
                raise UnsupportedError(
                    f"{self.accumulated} batches are accumulated, but no parameter has a gradient",
                    hint="FSDP keeps unsynchronized ones to itself: save after the step of the optimizer",
                )
        return state

    def restore(self, state: Mapping[str, Any], *, strict: bool = True) -> list[str]:
        """Put a state back, and return what of this training it lacks, or what it has and this training does not.

        The model comes first, then the optimizer, then the schedule, so that the learning rate is that of the save; the
        random generators come last. Whatever draws random numbers to be set up, such as the iterator of a data
        loader, has to be there before.

        Raises
        ------
        UnsupportedError
            Something is missing, and `strict` is on; or the optimizer is of other parameters.
        """
        missing = list(self._missing(state))
        if missing and strict:
            raise UnsupportedError(
                f"missing: {', '.join(missing)}: training would not go on as it was",
                hint="restore(…, strict=False) takes what is there",
            )
        here = self.model.state_dict()  # before all else: FSDP brings its parameters into place for it
        optimizer = None
        if self.optimizer is not None and "optimizer" in state:  # refused before anything is changed
            optimizer = optimizer_from_names(self.model, self.optimizer, state["optimizer"])
        ema = placed_as(self.ema.state_dict(), state["ema"]) if self.ema is not None and "ema" in state else None
        if "model" in state:
            self._put_model(state, here)
        if optimizer is not None:
            self.optimizer.load_state_dict(optimizer)
        for name, part in self._parts():
            if name in state:
                part.load_state_dict(ema if name == "ema" else state[name])
        self.step, self.epoch = int(state.get("step", 0)), int(state.get("epoch", 0))
        self.best, self.accumulated = state.get("best"), int(state.get("accumulated", 0))
        self.counters = dict(state.get("counters", {}))
        for name, parameter in self.model.named_parameters():
            gradient = state.get("gradients", {}).get(name)
            parameter.grad = None if gradient is None else placed_as(parameter, gradient.to(parameter.device))
        _put_back(state.get("rng", {}))
        return missing

    def _put_model(self, state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        model = copy.copy(state["model"])  # a copy: it keeps the versions of modules
        model.update({name: placed_as(here.get(name), one) for name, one in model.items()})
        self.model.load_state_dict(model)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(state.get("requires_grad", {}).get(name, parameter.requires_grad))

    def not_captured(self) -> list[str]:
        """Return what has to be set up again by hand: hooks, which are code."""
        return [
            f"hooks of {name or 'the model'}"
            for name, module in self.model.named_modules()
            if any(getattr(module, hooks, None) for hooks in _HOOKS)
        ]

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for name in _PARTS:
            part = getattr(self, name)
            if part is not None:
                yield name, part

    def _missing(self, state: Mapping[str, Any]) -> Iterator[str]:
        wanted = ["model", *(["optimizer"] if self.optimizer is not None else []), *(name for name, _ in self._parts())]
        yield from (name for name in (*wanted, *_COUNTERS) if name not in state)
        there = {"model", *wanted}
        yield from (f"a place for its {name}" for name in ("optimizer", *_PARTS) if name in state and name not in there)
        yield from (f"rng.{name}" for name in _generators() if name not in state.get("rng", {}))
        if state.get("accumulated") and "gradients" not in state:
            yield "gradients"


def _generators() -> dict[str, Any]:
    """Return the states of all random generators, those of CUDA's devices where some have been used."""
    import numpy as np
    import torch

    found: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  # the global one is what a training draws from
        "torch": torch.get_rng_state(),
    }
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def _put_back(states: Mapping[str, Any]) -> None:
    import numpy as np
    import torch

    if "python" in states:
        version, inner, gauss = states["python"]
        random.setstate((version, tuple(inner), gauss))
    if "numpy" in states:
        np.random.set_state(states["numpy"])  # noqa: NPY002  # the same
    if "torch" in states:
        torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        for index, one in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one.cpu(), index)


def _versions() -> dict[str, str]:
    import numpy as np
    import torch

    return {
        "ckptctl": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
