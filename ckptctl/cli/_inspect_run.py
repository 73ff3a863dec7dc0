"""How a run looks on a terminal: a table by step, and what else is there."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptctl.cli._output import Printer, joined
from ckptctl.cli._text import age, escape, number, plural, size
from ckptctl.model.run import State

if TYPE_CHECKING:
    from ckptctl.model.run import CheckpointInfo, Run
    from ckptctl.ops.inspect.run import RunReport

_NONE = "–"
_MOST_OTHERS = 5
_STYLES = {State.WHOLE: None, State.UNFINISHED: "yellow", State.DAMAGED: "red", State.UNKNOWN: "yellow"}


def show_run(printer: Printer, report: RunReport, *, brief: bool) -> None:
    """Print a run: totals, a row for each checkpoint, pointers that lead nowhere, names that are no checkpoints."""
    run, now = report.run, datetime.now(tz=timezone.utc)
    _title(printer, report, now)
    if brief:
        return
    rows: list[tuple[str, ...]] = [("name", "step", "epoch", escape(report.metric, limit=24), "size", "age", "state")]
    rows += [_row(info, report.metric, now) for info in run.checkpoints]
    printer.line()
    styles = [None, *(_STYLES[info.completeness.state] for info in run.checkpoints)]
    printer.columns(rows, "<>>>>><", styles=styles)
    notes = [*_dangling(run), *_others(run)]
    if notes:
        printer.line()
    for text in notes:
        printer.paragraph(text)


def _title(printer: Printer, report: RunReport, now: datetime) -> None:
    run, newest = report.run, report.newest
    unwhole = len(run.checkpoints) - report.whole
    what = joined(
        [
            escape(run.title),
            plural(len(run.checkpoints), "checkpoint"),
            f"{unwhole} not whole" if unwhole else "",
            size(report.nbytes),
            f"newest whole: {_when(newest)}, {age(now, newest.saved_at)} ago" if newest else "none is whole",
        ]
    )
    path = escape(str(run.path))
    if printer.width and len(path) + len(what) + 3 > printer.width:
        printer.line(path)
        printer.paragraph(f"  {what}")
    else:
        printer.line(f"{path}   {what}")


def _when(info: CheckpointInfo) -> str:
    if info.step:
        return number(info.step.value)
    return f"epoch {number(info.epoch.value)}" if info.epoch else escape(info.path.name)


def _row(info: CheckpointInfo, metric: str, now: datetime) -> tuple[str, ...]:
    value = info.metrics.get(metric)
    more = f" +{len(info.paths) - 1}" if len(info.paths) > 1 else ""
    return (
        escape(info.path.name, limit=80) + more,
        number(info.step.value) if info.step else _NONE,
        number(info.epoch.value) if info.epoch else _NONE,
        number(value) if value is not None else _NONE if metric else "",
        size(info.nbytes),
        age(now, info.saved_at),
        _state(info),
    )


def _state(info: CheckpointInfo) -> str:
    found = info.completeness
    marks = joined([*info.pointers, "pinned" if info.pinned else ""], ", ")
    more = f" (and {len(found.why) - 1} more)" if len(found.why) > 1 else ""
    why = f": {escape(found.why[0], limit=160)}{more}" if found.why else ""
    return joined([f"{found.state.value}{why}", escape(marks)], "   ")


def _dangling(run: Run) -> list[str]:
    return [
        f"warning: {escape(pointer.name)} points at {escape(pointer.target)}, which is not there"
        for pointer in run.pointers
        if pointer.dangling
    ]


def _others(run: Run) -> list[str]:
    if not run.others:
        return []
    shown = ", ".join(escape(name, limit=60) for name in run.others[:_MOST_OTHERS])
    more = f" and {len(run.others) - _MOST_OTHERS} more" if len(run.others) > _MOST_OTHERS else ""
    return [f"note: not taken for checkpoints: {shown}{more}"]
