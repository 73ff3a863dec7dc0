"""The checkpoints of one run, what becomes of each, and by which rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.errors import PolicyError
from ckptctl.retention import Action
from ckptctl.runs.declared import declared_metric, mode_of
from ckptctl.runs.metrics import unread_metrics

if TYPE_CHECKING:
    from ckptctl.model.run import CheckpointInfo, Run
    from ckptctl.retention import Decision, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The checkpoints of one run, what becomes of each, and the policy that was applied; notices in plain words."""

    run: Run
    policy: Policy
    decisions: tuple[Decision, ...]
    notices: tuple[str, ...] = ()


def victims_of(decisions: tuple[Decision, ...]) -> list[CheckpointInfo]:
    """Return what is to be deleted."""
    return [decision.checkpoint for decision in decisions if decision.action is Action.DELETE]


def kept_of(decisions: tuple[Decision, ...]) -> list[CheckpointInfo]:
    """Return the complete ones that remain, the oldest first."""
    return [d.checkpoint for d in decisions if d.checkpoint.complete and d.action is not Action.DELETE]


def resolved(run: Run, policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy with the metric and mode that this run gives it, and what is worth saying of it.

    Raises
    ------
    PolicyError
        No rule has anything to go by here, or the metric is one that nothing records.
    """
    notices: list[str] = []
    by_steps = any(info.step for info in run.checkpoints)
    if policy.anchor_every and not by_steps:
        notices.append(f"{run.family}: there are only epochs, no steps: anchors do not apply")
    if policy.best:
        policy = _with_metric(run, policy, notices)
    rules = (policy.last, policy.best, policy.within, policy.every, policy.globs)
    if not any(rules) and not (by_steps and (policy.anchor_every or policy.steps)):
        raise PolicyError(f"{run.path}: {run.family}: no rule that was given applies here; nothing is deleted")
    return policy, tuple(notices)


def _with_metric(run: Run, policy: Policy, notices: list[str]) -> Policy:
    unread = unread_metrics(run.path)
    if unread:
        raise PolicyError(f"{unread}: the best are not known; nothing is deleted", hint="--keep-best 0 goes on without")
    metric, mode = (policy.metric, None) if policy.metric else declared_metric(run)
    known = ", ".join(sorted({name for info in run.checkpoints for name in info.metrics})[:8]) or "none"
    if not metric:
        notices.append(
            f"{run.family}: no metric is declared: the best are not known (metrics: {known}; --metric names one)"
        )
        return replace(policy, best=0)
    if not any(metric in info.metrics for info in run.checkpoints):
        if policy.metric:
            message = f"{run.path}: no checkpoint of {run.family} has the metric {metric}; nothing is deleted"
            raise PolicyError(message, hint=f"metrics there are: {known}")
        notices.append(
            f"{run.family}: {metric} is declared and not recorded yet: all wait for it (--keep-best 0 does not)"
        )
    mode = policy.mode or mode or mode_of(metric)
    if mode is None:
        notices.append(
            f"{run.family}: whether low or high {metric} is better is not known: both ends are kept (--mode)"
        )
    return replace(policy, metric=metric, mode=mode)
