"""How a plan to prune looks on a terminal: the policy, a row for each checkpoint with its reasons, the sums."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptctl.cli._output import Printer, joined
from ckptctl.cli._text import age, escape, number, plural, size
from ckptctl.retention import Action, AnchorMode

if TYPE_CHECKING:
    from datetime import datetime

    from ckptctl.model.run import CheckpointInfo
    from ckptctl.ops.prune import Group, PrunePlan, PruneReport
    from ckptctl.retention import Decision, Policy

_NONE = "–"
_STYLES = {Action.KEEP: None, Action.DELETE: "red", Action.SKIP: "yellow"}
_RECENT = timedelta(hours=1)


def show_plan(printer: Printer, plan: PrunePlan, now: datetime, *, brief: bool) -> None:
    """Print what is to be done in one directory, and why."""
    for group in plan.groups:
        title = [
            escape(str(plan.path)),
            f"{plural(len(group.decisions), 'checkpoint')}{_called(plan, group)}",
            _policy(group.policy),
        ]
        printer.paragraph(joined(title))
        if not brief:
            printer.line()
            rows, styles = _table(group, now)
            printer.columns(rows, "<>>>><", styles=styles)
            printer.line()
        for text in group.notices:
            printer.paragraph(f"note: {escape(text, limit=300)}", style="yellow")
    for text in plan.notices:
        printer.paragraph(f"note: {text}", style="yellow")
    due = sum(one.deadline <= now for one in plan.trash)
    if due:
        printer.line(f"in the trash from before, to be emptied: {due:,}")


def _called(plan: PrunePlan, group: Group) -> str:
    """Tell groups in one directory apart."""
    return f" called {escape(group.run.family or 'by a number', limit=60)}" if len(plan.groups) > 1 else ""


def _table(group: Group, now: datetime) -> tuple[list[tuple[str, ...]], list[str | None]]:
    metric = group.policy.metric
    rows: list[tuple[str, ...]] = [("action", "step", "saved", "size", escape(metric, limit=24), "reasons")]
    labels = Counter(_label(decision.checkpoint) for decision in group.decisions)
    for decision in group.decisions:
        info = decision.checkpoint
        label = _label(info)
        value = info.metrics.get(metric)
        rows.append(
            (
                decision.action.value,
                label if labels[label] == 1 else escape(info.path.name, limit=60),
                _saved(info, now),
                size(info.nbytes),
                number(value) if value is not None else _NONE if metric else "",
                " · ".join(escape(reason) for reason in decision.reasons),
            )
        )
    return rows, [None, *(_STYLES[decision.action] for decision in group.decisions)]


def _label(info: CheckpointInfo) -> str:
    if info.step:
        return number(info.step.value)
    return f"epoch {number(info.epoch.value)}" if info.epoch else escape(info.path.name, limit=60)


def _saved(info: CheckpointInfo, now: datetime) -> str:
    if timedelta(0) <= now - info.saved_at < _RECENT:
        return f"{age(now, info.saved_at)} ago"
    local = info.saved_at.astimezone()
    return f"{local:%b %d %H:%M}" if local.year == now.astimezone().year else f"{local:%Y-%m-%d}"


def _policy(policy: Policy) -> str:
    better = f" ({policy.mode.value})" if policy.mode else " (both ends)"
    anchor = "" if policy.anchor_mode is AnchorMode.FIRST else f" ({policy.anchor_mode.value})"
    rules = [
        f"last {policy.last}" if policy.last else "",
        f"best {policy.best} by {escape(policy.metric, limit=40)}{better}" if policy.best else "",
        f"anchor every {policy.anchor_every:,}{anchor}" if policy.anchor_every else "",
        f"within {_time(policy.within)}" if policy.within else "",
        f"one in {_time(policy.every)}" if policy.every else "",
        plural(len(policy.steps), "step") if policy.steps else "",
        *(f"name {escape(glob, limit=40)}" for glob in policy.globs),
    ]
    return f"keep {joined(rules, ', ')}" if any(rules) else "keep what no rule names"


def _time(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts = []
    for unit, worth in units:
        amount, seconds = divmod(seconds, worth)
        parts += [f"{amount} {unit}"] if amount else []
    return " ".join(parts)


def planned(plans: list[PrunePlan], *, in_trash: bool) -> str:
    """Return what plans come to: delete 17 of 25, free 952.0 GB, keep 7, skip 1."""
    verb = "free later" if in_trash else "free"
    counts = _counts(plans)
    total = sum(counts.values())
    return joined(
        [
            f"delete {counts[Action.DELETE]:,} of {total:,}",
            f"{verb} {size(sum(plan.frees for plan in plans))}",
            f"keep {counts[Action.KEEP]:,}",
            f"skip {counts[Action.SKIP]:,}" if counts[Action.SKIP] else "",
        ],
        ", ",
    )


def _counts(plans: list[PrunePlan]) -> Counter[Action]:
    every: list[Decision] = [one for plan in plans for group in plan.groups for one in group.decisions]
    return Counter(decision.action for decision in every)


def done(plans: list[PrunePlan], reports: list[PruneReport], trash_for: timedelta) -> str:
    """Return what was done: deleted 17 of 25, freed 952.0 GB."""
    total = sum(_counts(plans).values())
    deleted = sum(report.count for report in reports)
    emptied = sum(len(report.emptied) for report in reports)
    verb = f"put into the trash for {_time(trash_for)}:" if trash_for else "deleted"
    first = next((path.name for report in reports for path in report.deleted), "") if trash_for else ""
    return joined(
        [
            f"{verb} {deleted:,} of {total:,}",
            f"emptied {emptied:,} from the trash" if emptied else "",
            f"freed {size(sum(report.freed for report in reports))}",
            f"--restore {escape(first, limit=60)} brings it back" if first else "",
        ],
        ", ",
    )
