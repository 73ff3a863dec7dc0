"""What `consolidate` prints: the file, what it was made of, what was left out; or one document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.cli._convert_options import told
from ckptctl.cli._output import Printer, joined, print_json, to_json
from ckptctl.cli._progress import Bar, stopped_by_sigterm
from ckptctl.cli._rewrite_text import details, head, tensor_rows
from ckptctl.cli._text import escape, number, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.ops.consolidate import ConsolidatePlan, ConsolidateReport

_SCHEMA = "ckptctl.consolidate/1"
_NOTHING = "nothing was written (--dry-run)"
_MOST = 4


def answer(plan: ConsolidatePlan, *, dry_run: bool, json: bool, brief: bool, quiet: bool) -> None:
    """Carry out a plan, or only show it."""
    if dry_run:
        report = plan.describe()
    else:
        with stopped_by_sigterm(), Bar(plan.nbytes, shown=not quiet) as bar:
            report = plan.apply(bar.advance)
    if not dry_run and told(plan.options.share):
        return
    if json and not quiet:
        print_json({"schema": _SCHEMA, "dry_run": dry_run, "consolidation": to_json(report)})
    elif not quiet:
        _show(Printer(), report, brief=brief, dry_run=dry_run)


def _show(printer: Printer, report: ConsolidateReport, *, brief: bool, dry_run: bool) -> None:
    printer.paragraph(head(report.output))
    if brief:
        return
    printer.paragraph(f"  {_origin(report)}")
    for text, style in details(report.output):
        if not text.startswith("not selected"):
            printer.paragraph(f"  {text}", style=style)
    for text in _beside(report):
        printer.paragraph(f"  {text}")
    if dry_run:
        for file in report.output.files:
            printer.line()
            printer.columns(list(tensor_rows(file, report.output)), "<<<><")
        printer.line()
        printer.line(_NOTHING)


def _origin(report: ConsolidateReport) -> str:
    left = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in report.left_out.items())
    return joined(
        [
            f"from {escape(report.title)}",
            f"step {number(report.step)}" if report.step is not None else "",
            f"under {escape(report.taken, limit=80)}" if report.taken else "",
            f"left out: {left} (--only all)" if left else "",
        ]
    )


def _beside(report: ConsolidateReport) -> Iterator[str]:
    for what, names in (("copied", [path.name for path in report.copied]), ("not part of it, ignored", report.ignored)):
        if names:
            more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
            yield f"{what}: {', '.join(escape(name, limit=80) for name in names[:_MOST])}{more}"
