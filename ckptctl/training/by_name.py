"""The state of an optimizer by the names of parameters: their order may change, their names may not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptctl.errors import UnsupportedError, counted, listed
from ckptctl.training.sharded import placed_as

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = frozenset({"state", "param_groups"})


def optimizer_by_name(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return the state of an optimizer with names in the place of numbers.

    Raises
    ------
    UnsupportedError
        It has a parameter that the model does not.
    """
    groups, state = _names(model, optimizer), optimizer.state_dict()
    flat = [name for group in groups for name in group]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    by_number = dict(zip(numbers, flat, strict=True))
    return {
        **{key: value for key, value in state.items() if key not in _OURS},
        "state": {by_number.get(number, number): one for number, one in state["state"].items()},
        "param_groups": [group | {"params": names} for group, names in zip(state["param_groups"], groups, strict=True)],
    }


def optimizer_from_names(model: Any, optimizer: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state by name as that of an optimizer, whatever order its parameters and groups are in now.

    Raises
    ------
    UnsupportedError
        Parameters were added, removed or renamed, or moved to another group; the message lists them.
    """
    groups = _names(model, optimizer)
    saved = {name: number for number, group in enumerate(state["param_groups"]) for name in group["params"]}
    here = {name for group in groups for name in group}
    gone, new = [name for name in saved if name not in here], [name for name in here if name not in saved]
    if gone or new:
        parts = [f"{what} {listed(sorted(names))}" for what, names in (("without", gone), ("with", new)) if names]
        raise UnsupportedError(f"the optimizer is {' and '.join(parts)}, unlike the one that was saved")
    made: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    for names, present in zip(groups, optimizer.param_groups, strict=True):
        owners = {saved[name] for name in names}
        if len(owners) > 1:
            raise UnsupportedError(f"{listed(names)} are in one group of the optimizer, and were saved in several")
        settings = dict(state["param_groups"][owners.pop()] if owners else present)  # a group may have no parameters
        if "param_names" in settings:
            settings["param_names"] = names
        numbers |= {name: len(numbers) + at for at, name in enumerate(names)}
        made.append({**settings, "params": [numbers[name] for name in names]})
    rest = {key: value for key, value in state.items() if key not in _OURS}
    have = dict(model.named_parameters())
    placed = {
        name: {key: placed_as(have[name], value) for key, value in one.items()} if name in have else one
        for name, one in state["state"].items()
    }
    return {**rest, "state": {numbers.get(name, name): one for name, one in placed.items()}, "param_groups": made}


def _names(model: Any, optimizer: Any) -> list[list[str]]:
    """Return the names of the parameters of each group."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    unknown = sum(id(one) not in known for group in optimizer.param_groups for one in group["params"])
    if unknown:
        raise UnsupportedError(
            f"{counted(unknown, 'parameter')} of the optimizer: not of the model, and without a name"
        )
    return [[known[id(one)] for one in group["params"]] for group in optimizer.param_groups]
