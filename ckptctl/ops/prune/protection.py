"""What no rule may delete: what holds a run or a mount, and what something that stays points at or leads into."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.ops.prune.group import victims_of
from ckptctl.ops.prune.touchable import why_untouchable
from ckptctl.retention import Action
from ckptctl.runs.pending import waiting_in
from ckptctl.runs.pointers import links_within, pointers_above, pointers_in
from ckptctl.storage.set_aside import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptctl.model.run import CheckpointInfo
    from ckptctl.ops.prune.group import Group
    from ckptctl.retention import Decision
    from ckptctl.storage.directory import Held


def protected(directory: Held, groups: tuple[Group, ...], bases: Mapping[str, tuple[str, ...]]) -> tuple[Group, ...]:
    """Keep what must never be removed: what holds a run or a mount, and what something that stays leads into, or needs.

    `bases` says what each delta needs.
    """
    victims = {path.name: info for group in groups for info in victims_of(group.decisions) for path in info.paths}
    if not victims:
        return groups
    why: dict[str, str] = {name: found for name in victims if (found := why_untouchable(directory, name))}
    why |= dict.fromkeys(waiting_in(directory.path) & victims.keys(), "its upload is not confirmed")
    pointers = [*pointers_in(directory.path), *pointers_above(directory.path)]
    why |= {one.target: one.name for one in pointers if one.target in victims}
    todo = [name for name in directory.names() if name not in victims and not name.startswith(PREFIX)]
    todo += _slot_names(victims, why)
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for pointer in links_within(directory.path, name):
            if pointer.target in victims and pointer.target not in why:
                why[pointer.target] = f"{pointer.name} leads into it"
                todo += _slot_names(victims, [pointer.target])
    why |= _bases(bases, victims, why)
    return tuple(
        replace(group, decisions=tuple(_kept_back(decision, why) for decision in group.decisions)) for group in groups
    )


def _bases(
    needed: Mapping[str, tuple[str, ...]], victims: Mapping[str, CheckpointInfo], why: Mapping[str, str]
) -> dict[str, str]:
    """Return which victims are the base of something that stays."""
    going = {
        path.name
        for info in victims.values()
        for path in info.paths
        if not any(other.name in why for other in info.paths)
    }
    staying = [name for name in needed if name not in going]
    found: dict[str, str] = {}
    while staying:
        name = staying.pop()
        for base in needed.get(name, ()):
            if base in going and base not in found:
                found |= {path.name: f"base of {name}" for path in victims[base].paths}
                staying.append(victims[base].path.name)
    return found


def _slot_names(victims: Mapping[str, CheckpointInfo], names: Iterable[str]) -> list[str]:
    """Return all names of the checkpoints that have these names."""
    return [path.name for name in names if name in victims for path in victims[name].paths]


def _kept_back(decision: Decision, why: Mapping[str, str]) -> Decision:
    found = next((why[path.name] for path in decision.checkpoint.paths if path.name in why), "")
    return (
        replace(decision, action=Action.KEEP, reasons=(found,))
        if found and decision.action is Action.DELETE
        else decision
    )
