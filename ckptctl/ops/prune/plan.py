"""What to delete of a run and why, worked out and checked; nothing is done yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptctl.checks.structure import look
from ckptctl.errors import PolicyError, UnreadableError
from ckptctl.model.run import State
from ckptctl.ops.prune.group import Group, kept_of, resolved, victims_of
from ckptctl.ops.prune.needs import bases_in, seen_in
from ckptctl.ops.prune.protection import protected
from ckptctl.ops.prune.touchable import survey_of
from ckptctl.retention import Action, decide
from ckptctl.runs import (
    checkpoint_names,
    directories_in,
    is_run,
    look_into,
    parts_of,
    runs_in,
)
from ckptctl.runs.pointers import unreadable_pointer
from ckptctl.runs.trash import companions, trash_in
from ckptctl.storage.survey import Survey, freed_by

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from datetime import datetime
    from pathlib import Path

    from ckptctl.model.run import CheckpointInfo, Run
    from ckptctl.ops.prune.settings import Settings
    from ckptctl.runs.trash import Trash
    from ckptctl.storage.directory import Held

_IN_FLIGHT = timedelta(hours=1)
"""How long ago something must have been written not to be a save that is going on."""
_ONLY_NAMES = frozenset({"step-mismatch"})
"""What is wrong with a name, and not with what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What to do in one directory.

    `surveys` tell each file or directory that is to be deleted from what may have its name later; `newest` names
    the newest complete checkpoint that remains of each family; `frees` is how many bytes on disk the deletions give;
    `trash` lies there already; `notices` are what is worth saying of where the directory lies. `bases` has what each
    delta needs, `seen` which files were there to be one.
    """

    path: Path
    groups: tuple[Group, ...]
    surveys: Mapping[str, Survey]
    newest: Mapping[str, str]
    frees: int
    trash: tuple[Trash, ...]
    bases: Mapping[str, tuple[str, ...]]
    seen: Mapping[str, Hashable]
    notices: tuple[str, ...] = ()

    @property
    def victims(self) -> tuple[CheckpointInfo, ...]:
        """The checkpoints to delete, the oldest first, but deltas before their bases."""
        found = [info for group in self.groups for info in victims_of(group.decisions)]
        if len(self.groups) > 1:
            found.sort(key=lambda info: info.saved_at)
        return tuple(sorted(found, key=lambda info: -len(self.bases.get(info.path.name, ()))))

    def only(self, again: PrunePlan) -> PrunePlan:
        """Return what another plan, made later, has in common with this one: its own view, but no further victims."""
        planned = {info.paths for info in self.victims}
        groups = tuple(
            replace(
                group,
                decisions=tuple(
                    replace(one, action=Action.SKIP, reasons=("planned only after it was shown",))
                    if one.action is Action.DELETE and one.checkpoint.paths not in planned
                    else one
                    for one in group.decisions
                ),
            )
            for group in again.groups
        )
        same = {name: self.surveys[name] for name in again.surveys if name in self.surveys}
        return replace(again, groups=groups, surveys=same, frees=freed_by(same.values()))


def directories_below(path: Path) -> tuple[Path, ...]:
    """Return the directories in one that may hold a run; one level, never deeper. One that cannot be read may."""
    return tuple(one for one in directories_in(look_into(path, None)) if _has_names(one))


def _has_names(path: Path) -> bool:
    try:
        return bool(checkpoint_names(path, directories=False)) and is_run(path, least=1)
    except UnreadableError:
        return True


def plan_prune(directory: Held, settings: Settings, now: datetime) -> PrunePlan:
    """Work out what to delete in a directory.

    Raises
    ------
    PolicyError
        No complete checkpoint would remain in a group, none of it passes verification, or none has the metric.
    """
    directory.look_anew()
    unread = unreadable_pointer(directory.path)
    if unread:
        message = f"{directory.path}: {unread} may say which checkpoint counts, and cannot be read; nothing is deleted"
        raise UnreadableError(message)
    seen = seen_in(directory)
    runs = runs_in(directory.path)
    groups = tuple(_group(run, settings, now) for run in runs)
    try:
        bases = bases_in(directory, groups)
    except UnreadableError as error:
        raise UnreadableError(f"{error.message}; it may be a delta on what would go: nothing is deleted") from None
    groups = protected(directory, groups, bases)
    surveys = {
        name: survey_of(directory, name)
        for group in groups
        for info in victims_of(group.decisions)
        for name in (path.name for path in info.paths)
    }
    beside = [
        survey_of(directory, name)
        for group in groups
        for info in victims_of(group.decisions)
        for name in companions(directory, [path.name for path in info.paths])
    ]
    return PrunePlan(
        path=directory.path,
        groups=groups,
        surveys=surveys,
        newest={group.run.family: kept[-1].path.name for group in groups if (kept := kept_of(group.decisions))},
        frees=freed_by([*surveys.values(), *beside]),
        trash=trash_in(directory),
        bases=bases,
        seen=seen,
        notices=directory.notices,
    )


def _group(run: Run, settings: Settings, now: datetime) -> Group:
    where = f"{run.path}: {run.family}"
    states = {info.completeness.state for info in run.checkpoints}
    newest = max((info.saved_at for info in run.checkpoints), default=now)
    if State.WHOLE not in states and states - {State.UNFINISHED} and now - newest >= _IN_FLIGHT:
        hint = f"ckptctl verify {run.path} says why"
        raise PolicyError(f"{where}: no complete checkpoint is here; nothing is deleted", hint=hint)
    policy, notices = resolved(run, settings.policy)
    known: dict[Path, bool] = {}

    def sound(info: CheckpointInfo) -> bool:
        if info.path not in known:
            known[info.path] = _is_sound(info, bytes_too=settings.verify_bytes)
        return known[info.path]

    decisions = decide(run.checkpoints, policy, now, verified=sound)
    if victims_of(decisions):
        kept = kept_of(decisions)
        if not kept:
            raise PolicyError(f"{where}: no complete checkpoint would remain; nothing is deleted")
        if not any(map(sound, reversed(kept))):
            hint = f"ckptctl verify {kept[-1].path} says why"
            raise PolicyError(f"{where}: none that would remain passes verification; nothing is deleted", hint=hint)
    elif State.WHOLE not in states:
        notices = (*notices, f"{run.family}: no save has reached its end yet; nothing is deleted")
    return Group(run=run, policy=policy, decisions=decisions, notices=notices)


def _is_sound(info: CheckpointInfo, *, bytes_too: bool) -> bool:
    """Whether a checkpoint, under one of its names, passes verification: structure, and bytes if asked for.

    Safety does not count.
    """
    return any(_passes(path, names, bytes_too=bytes_too) for path, names in parts_of(info))


def _passes(path: Path, names: tuple[str, ...] | None, *, bytes_too: bool) -> bool:
    looked = look(path, names=names)
    if looked.checkpoint is None or looked.wrong - _ONLY_NAMES:
        return False
    if not bytes_too:
        return True
    from ckptctl.checks.file_bytes import Outcome  # noqa: PLC0415  # only for those who ask
    from ckptctl.checks.intact import check_bytes  # noqa: PLC0415  # only for those who ask

    return check_bytes(looked.checkpoint, root=None if names else path).outcome is not Outcome.FAILED
