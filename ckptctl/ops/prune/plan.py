"""What to delete of a run and why, worked out and checked; nothing is done yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.checks.structure import look
from ckptctl.errors import PolicyError, UnreadableError
from ckptctl.retention import Action, Decision, Policy, decide
from ckptctl.runs import (
    checkpoint_names,
    directories_in,
    holds_run,
    is_nested_run,
    is_run,
    look_into,
    parts_of,
    runs_in,
)
from ckptctl.runs.declared import declared_metric, mode_of
from ckptctl.runs.trash import trash_in
from ckptctl.storage.survey import Survey, freed_by, survey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from ckptctl.model.run import CheckpointInfo, Run
    from ckptctl.ops.prune.settings import Settings
    from ckptctl.runs.trash import Trash
    from ckptctl.storage.directory import Directory

_ONLY_NAMES = frozenset({"step-mismatch"})
"""What is wrong with a name, and not with what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The checkpoints of one run, what becomes of each, and the policy that was applied; notices in plain words."""

    run: Run
    policy: Policy
    decisions: tuple[Decision, ...]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What to do in one directory.

    `surveys` tell each file or directory that is to be deleted from what may have its name later; `newest` names
    the newest complete checkpoint that remains of each family; `frees` is how many bytes on disk the deletions give;
    `trash` lies there already.
    """

    path: Path
    groups: tuple[Group, ...]
    surveys: Mapping[str, Survey]
    newest: Mapping[str, str]
    frees: int
    trash: tuple[Trash, ...]

    @property
    def victims(self) -> tuple[CheckpointInfo, ...]:
        """The checkpoints to delete, the oldest first."""
        found = [info for group in self.groups for info in _victims(group.decisions)]
        return tuple(sorted(found, key=lambda info: info.saved_at)) if len(self.groups) > 1 else tuple(found)

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
    """Return the directories in one that may hold a run; one level, never deeper."""
    return tuple(one for one in directories_in(look_into(path, None)) if _has_names(one) and is_run(one, least=1))


def _has_names(path: Path) -> bool:
    try:
        return bool(checkpoint_names(path, directories=False))
    except UnreadableError:
        return False  # what cannot be read is not touched


def plan_prune(directory: Directory, settings: Settings, now: datetime) -> PrunePlan:
    """Work out what to delete in a directory.

    Raises
    ------
    PolicyError
        No complete checkpoint would remain in a group, none of it passes verification, or none has the metric.
    """
    runs = runs_in(directory.path)
    surveys: dict[str, Survey] = {}
    groups = tuple(_group(directory, run, settings, now, surveys) for run in runs)
    return PrunePlan(
        path=directory.path,
        groups=groups,
        surveys=surveys,
        newest={group.run.family: kept[-1].path.name for group in groups if (kept := _kept(group.decisions))},
        frees=freed_by(surveys.values()),
        trash=trash_in(directory),
    )


def _victims(decisions: tuple[Decision, ...]) -> list[CheckpointInfo]:
    return [decision.checkpoint for decision in decisions if decision.action is Action.DELETE]


def _kept(decisions: tuple[Decision, ...]) -> list[CheckpointInfo]:
    return [d.checkpoint for d in decisions if d.checkpoint.complete and d.action is not Action.DELETE]


def _group(directory: Directory, run: Run, settings: Settings, now: datetime, surveys: dict[str, Survey]) -> Group:
    policy, notices = _resolved(run, settings.policy)
    known: dict[Path, bool] = {}

    def sound(info: CheckpointInfo) -> bool:
        if info.path not in known:
            known[info.path] = _is_sound(info, bytes_too=settings.verify_bytes)
        return known[info.path]

    decisions = decide(run.checkpoints, policy, now, verified=sound)
    decisions = tuple(_protected(directory, decision, surveys) for decision in decisions)
    if _victims(decisions):
        where = f"{run.path}: {run.family}"
        kept = _kept(decisions)
        if not kept:
            raise PolicyError(f"{where}: no complete checkpoint would remain; nothing is deleted")
        if not any(map(sound, reversed(kept))):
            hint = f"ckptctl verify {kept[-1].path} says why"
            raise PolicyError(f"{where}: none that would remain passes verification; nothing is deleted", hint=hint)
    elif run.checkpoints and not any(info.complete for info in run.checkpoints):
        notices = (*notices, f"{run.family}: no complete checkpoint is here; nothing is deleted")
    return Group(run=run, policy=policy, decisions=decisions, notices=notices)


def _resolved(run: Run, policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy with the metric and mode that this run gives it, and what is worth saying of it."""
    notices: list[str] = []
    if policy.anchor_every and not any(info.step for info in run.checkpoints):
        notices.append(f"{run.family}: there are only epochs, no steps: anchors do not apply")
    if not policy.best:
        return policy, tuple(notices)
    metric, mode = (policy.metric, None) if policy.metric else declared_metric(run)
    if not any(metric in info.metrics for info in run.checkpoints):
        known = ", ".join(sorted({name for info in run.checkpoints for name in info.metrics})[:8]) or "none"
        if policy.metric:
            message = f"{run.path}: no checkpoint of {run.family} has the metric {metric}; nothing is deleted"
            raise PolicyError(message, hint=f"metrics there are: {known}")
        why = f"{metric} is not recorded" if metric else "no metric is declared"
        notices.append(f"{run.family}: {why}: the best are not known (metrics: {known}; --metric names one)")
        return replace(policy, metric="", best=0), tuple(notices)
    mode = policy.mode or mode or mode_of(metric)
    if mode is None:
        notices.append(
            f"{run.family}: whether {metric} is better low or high is not known (--mode): both ends are kept"
        )
    return replace(policy, metric=metric, mode=mode), tuple(notices)


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
    from ckptctl.checks.intact import Outcome, check_bytes  # noqa: PLC0415  # only for those who ask

    return check_bytes(looked.checkpoint, root=path).outcome is not Outcome.FAILED


def _protected(directory: Directory, decision: Decision, surveys: dict[str, Survey]) -> Decision:
    """Keep what must never be removed: what holds a run, a mount, or a link that leads out."""
    if decision.action is not Action.DELETE:
        return decision
    found = {path.name: survey_of(directory, path.name) for path in decision.checkpoint.paths}
    why = next((one.why for one in found.values() if one.why), "")
    if not why and any(path.is_dir() and holds_run(path) for path in decision.checkpoint.paths):
        why = "it holds checkpoints of another run"
    if why:
        return replace(decision, action=Action.KEEP, reasons=(why,))
    surveys.update(found)
    return decision


def survey_of(directory: Directory, name: str) -> Survey:
    """Look at a checkpoint as a thing to remove."""
    return survey(directory, name, is_nested_run)
