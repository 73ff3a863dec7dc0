"""Whether training can really go on from a checkpoint, and whether it would be the same training."""

from __future__ import annotations

import enum
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.checks.optimizer import optimizer_kind, param_groups, was_scheduled
from ckptctl.checks.resume import data_position, rng_kinds, without
from ckptctl.checks.scheduler import scheduler_summary
from ckptctl.errors import counted
from ckptctl.model import Component
from ckptctl.tensors import scalar
from ckptctl.values import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.model import Checkpoint, Part

_SLOTS = "exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|square_avg|sum|exp_inf|ax|acc_delta"
_STATE = re.compile(rf"((?:.*?\.)?)state\.(.+)\.({_SLOTS})")
_STATED = re.compile(r"((?:.*?\.)?)state\.(.+)\.(?!step$)[A-Za-z_]\w*")
_STEP = re.compile(r"(?:.*\.)?state\.(.+)\.step")
_SCALER = re.compile(r"(.*[._])?(grad_?|loss_?|amp_)?scaler(_state)?(_dict)?|scaler|native_amp.*|.*MixedPrecision.*")
_RANK = re.compile(r"(?:rng_state|random_states|rank)_?([0-9]+)$")
_FLAT = frozenset({"deepspeed"})
_MOST_STEPS = 64


class Verdict(enum.Enum):
    """How training would go on, best first."""

    EXACT = "exact"
    """Everything is there for the same numbers as without a stop."""
    CONTINUES = "continues"
    """It trains on, and not identically."""
    WEIGHTS_ONLY = "weights-only"
    """The weights can be loaded; optimizer and schedules start afresh."""
    NOT_RESUMABLE = "not-resumable"
    """It cannot be loaded, or holds no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeItem:
    """One thing that a resume needs. `there` is None if whether it is needed cannot be told."""

    name: str
    there: bool | None
    about: str = ""
    without: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """The verdict, and everything it rests on; `why` is what keeps it from a better one."""

    verdict: Verdict
    items: tuple[ResumeItem, ...]
    why: tuple[str, ...]

    @property
    def reason(self) -> str:
        """`why` as a phrase: what is odd, and what a resume would be without."""
        names = {item.name for item in self.items}
        odd = [why for why in self.why if why not in names]
        missing = [why for why in self.why if why in names]
        return "; ".join([*odd, *([f"without {', '.join(missing)}"] if missing else [])])


def resume_report(checkpoint: Checkpoint, *, whole: bool) -> ResumeReport:
    """Say what a resume would find; `whole` tells whether everything that was saved is still there."""
    items = tuple(_items(checkpoint))
    there = {item.name: item.there for item in items}
    usable = [item for item in items if item.name == "optimizer" and item.there]
    problems = [text for part in _parts(checkpoint, Component.OPTIMIZER) for text in _mismatches(checkpoint, part)]
    fewer = [text for part in _parts(checkpoint, Component.OPTIMIZER) for text in _fewer(checkpoint, part)]
    missing = tuple(item.name for item in items if item.there is False)
    if not whole or not there["model"]:
        return ResumeReport(
            verdict=Verdict.NOT_RESUMABLE, items=items, why=("model",) if whole else ("it is not whole",)
        )
    if not usable or problems:
        return ResumeReport(verdict=Verdict.WEIGHTS_ONLY, items=items, why=(*problems, *missing))
    if fewer or missing:
        return ResumeReport(verdict=Verdict.CONTINUES, items=items, why=(*fewer, *missing))
    return ResumeReport(verdict=Verdict.EXACT, items=items, why=())


def _parts(checkpoint: Checkpoint, component: Component) -> Iterator[Part]:
    part = checkpoint.parts.get(component)
    if part:
        yield part


def _items(checkpoint: Checkpoint) -> Iterator[ResumeItem]:
    parts = checkpoint.parts
    model, optimizer = parts.get(Component.MODEL), parts.get(Component.OPTIMIZER)
    yield _item("model", bool(model and model.tensors), f"{len(model.tensors):,} tensors" if model else "")
    stated = bool(optimizer and (optimizer.tensors or _needs_no_state(checkpoint, optimizer)))
    yield _item("optimizer", stated, _optimizer(checkpoint, optimizer) if optimizer else "")
    scheduler = parts.get(Component.SCHEDULER)
    used = scheduler is not None or was_scheduled(optimizer) is True
    yield ResumeItem(
        name="scheduler",
        there=True if scheduler else (False if used else None),
        about=scheduler_summary(scheduler) if scheduler else ("" if used else "none seems to have been used"),
        without=without("scheduler"),
    )
    yield _item("step", bool(checkpoint.step or checkpoint.epoch), _counters(checkpoint), "counters start at zero")
    yield from _random(parts.get(Component.RNG))
    data = data_position(checkpoint)
    yield _item("data position", bool(data), data)
    yield _optional("grad scaler", _has_scaler(checkpoint), "needed for float16 only")
    best = next((found for found in checkpoint.metrics if found.name.startswith("best")), None)
    yield _optional("best metric", best is not None, "the best so far could be replaced by a worse one")


def _item(name: str, there: bool, about: str = "", consequence: str = "") -> ResumeItem:  # noqa: FBT001
    return ResumeItem(name=name, there=there, about=about, without=consequence or without(name))


def _optional(name: str, there: bool, consequence: str) -> ResumeItem:  # noqa: FBT001
    return ResumeItem(name=name, there=True if there else None, without=consequence)


def _random(part: Part | None) -> Iterator[ResumeItem]:
    kinds = rng_kinds(part) if part else ()
    ranks = len({found[0] for key in part.values if (found := _RANK.search(key))}) if part else 0
    about = f"{ranks} ranks" if ranks > 1 else ""
    for kind in ("python", "numpy", "torch"):
        yield _item(f"{kind} rng", kind in kinds, about)
    devices = sum("cuda" in name for name in part.tensors) if part else 0
    yield ResumeItem(
        name="cuda rng",
        there=True if "cuda" in kinds else None,
        about=f"{devices} devices" if devices else "",
        without="needed on a GPU: dropout would differ",
    )


def _optimizer(checkpoint: Checkpoint, part: Part) -> str:
    stated = _stated(part)
    wanted = 0 if checkpoint.layout in _FLAT else sum(_length(group.get("params")) for group in param_groups(part))
    covered = f"state for {stated} of {wanted} parameters" if wanted and stated else ""
    covered = covered or (f"state for {counted(stated, 'parameter')}" if stated else "")
    return ": ".join(text for text in (optimizer_kind(part), covered) if text)


def _states(part: Part) -> dict[str, dict[str, str]]:
    """Return a tensor of the state of each parameter, by the path to the optimizer and the parameter's key."""
    found: dict[str, dict[str, str]] = {}
    for name in part.tensors:
        state = _STATE.fullmatch(name)
        if state:
            found.setdefault(state[1], {})[state[2]] = name
    return found


def _needs_no_state(checkpoint: Checkpoint, part: Part) -> bool:
    """Whether an optimizer that keeps nothing is one that has nothing to keep: before its first step, or plain SGD."""
    groups = list(param_groups(part))
    plain = all(group.get("momentum", 1) == 0 and "betas" not in group for group in groups)
    return bool(groups) and (plain or bool(checkpoint.step and checkpoint.step.value == 0))


def _stated(part: Part) -> int:
    """Return how many parameters have a state, whatever their optimizer keeps of them."""
    return len({(found[1], found[2]) for name in part.tensors if (found := _STATED.fullmatch(name))})


def _fewer(checkpoint: Checkpoint, part: Part) -> Iterator[str]:
    """Yield that not every parameter has a state. It may be frozen, or never have had a gradient."""
    stated = _stated(part)
    wanted = sum(_length(group.get("params")) for group in param_groups(part))
    if checkpoint.layout not in _FLAT and 0 < stated < wanted:
        yield f"the optimizer has a state for {stated} of {wanted} parameters"


def _mismatches(checkpoint: Checkpoint, part: Part) -> Iterator[str]:
    """Yield why the state of an optimizer cannot be that of the model beside it: most shapes are strange to it."""
    model = checkpoint.parts.get(Component.MODEL)
    if checkpoint.layout in _FLAT or not model:
        return  # flat partitions have other shapes
    shapes = Counter(tensor.shape for tensor in model.tensors.values())
    for of_one in _states(part).values():
        strange = Counter(part.tensors[name].shape for name in of_one.values()) - shapes
        if 2 * strange.total() > len(of_one):
            shape, count = next(iter(strange.items()))
            yield f"the optimizer's state is of another model: {count} of shape {list(shape)} too many"


def _length(params: object) -> int:
    if isinstance(params, Numbers):
        return params.range.length * 8 // params.dtype.bits
    return len(params) if isinstance(params, (list, tuple)) else 0


def _counters(checkpoint: Checkpoint) -> str:
    found = [f"{one.name} {one.value:,}" for one in (checkpoint.step, checkpoint.epoch) if one]
    optimizer = checkpoint.parts.get(Component.OPTIMIZER)
    taken = {int(value) for value in _steps_taken(optimizer)} if optimizer else set()
    if checkpoint.step and taken and int(checkpoint.step.value) not in taken:
        found.append(f"the optimizer has taken {max(taken):,}")
    return ", ".join(found)


def _steps_taken(part: Part) -> Iterator[float]:
    """Yield the steps that an optimizer counted, of some of its parameters."""
    counted = [tensor for name, tensor in part.tensors.items() if _STEP.fullmatch(name)]
    for tensor in counted[:_MOST_STEPS]:
        value = scalar(tensor)
        if value is not None:
            yield value


def _has_scaler(checkpoint: Checkpoint) -> bool:
    return any(_SCALER.fullmatch(str(key)) for part in checkpoint.parts.values() for key in part.values)
