"""How a verdict looks on a terminal: one line if all is right, each finding with its place if not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.cli._output import joined
from ckptctl.cli._text import escape, plural
from ckptctl.model import Severity
from ckptctl.ops.verify import Judgement, Outcome

if TYPE_CHECKING:
    from ckptctl.checks.resumable import ResumeReport
    from ckptctl.cli._output import Printer
    from ckptctl.model import Finding
    from ckptctl.ops.verify import VerifyReport

_MARKS = {Judgement.GOOD: ("✓", "green"), Judgement.WRONG: ("✗", "red"), Judgement.UNSEEN: ("?", "yellow")}
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: None}
_MOST = 20


def show(printer: Printer, report: VerifyReport, *, brief: bool) -> None:
    """Print the verdict on one checkpoint, and what it rests on."""
    mark, style = _MARKS[report.judgement]
    if report.good and report.bytes is Outcome.UNVERIFIED:
        mark, style = "?", "yellow"
    printer.paragraph(f"{mark} {escape(str(report.path))}   {_verdict(report)}", style=style)
    if brief:
        return
    shown = [f for f in report.findings if f.severity is not Severity.NOTE or f.aspect.value == "values" or f.unread]
    hinted: set[str] = set()
    for finding in shown[:_MOST]:
        _finding(printer, finding, report.path.name)
        hint = finding.hint if finding.severity is Severity.ERROR else ""
        if hint and hint not in hinted:
            hinted.add(hint)
            printer.paragraph(f"      hint: {escape(hint, limit=300)}")
    if len(shown) > _MOST:
        printer.line(f"    … and {len(shown) - _MOST} more findings (--json has them all)")
    if report.resume:
        _resume(printer, report.resume)
    for path in report.wrote:
        printer.line(f"    wrote {escape(str(path))}")


def _verdict(report: VerifyReport) -> str:
    wrong = sum(finding.severity is Severity.ERROR for finding in report.findings)
    tensors = plural(report.tensors, "tensor") if report.tensors else ""
    if report.judgement is Judgement.UNSEEN:
        return "could not be looked at"
    if wrong:
        return joined([plural(wrong, "finding"), tensors])
    return joined(["whole", tensors, _bytes(report)])


def _bytes(report: VerifyReport) -> str:
    if report.bytes is None:
        return ""
    if report.bytes is Outcome.UNVERIFIED:
        return "unverified until now" if report.wrote else _unverified(report)
    checked = [plural(report.records, "CRC") if report.records else "", "digest" if report.compared else ""]
    return f"{' and '.join(part for part in checked if part)} verified"


def _unverified(report: VerifyReport) -> str:
    """Say of which files nothing is on record, where of others something is."""
    some = report.unverified and (report.records or report.compared)
    more = f" and {len(report.unverified) - 1} more" if len(report.unverified) > 1 else ""
    of = f" of {escape(report.unverified[0], limit=60)}{more}" if some else ""
    beside = f"{plural(report.records, 'CRC')} of others verified, " if of and report.records else ""
    return f"{beside}unverified: no digest on record{of} (--write makes one)"


def _finding(printer: Printer, finding: Finding, name: str) -> None:
    head = f"    {finding.aspect.value}/{escape(finding.slug, limit=40)}   "
    where = escape(finding.where)
    about = "" if finding.where == name or (where and where in finding.message) else f"{where}: "
    printer.paragraph(f"{head}{about}{escape(finding.message, limit=400)}", style=_STYLES[finding.severity])


def _resume(printer: Printer, resume: ResumeReport) -> None:
    why = f": {resume.reason}" if resume.why else ""
    printer.paragraph(f"    resume {resume.verdict.value.upper()}{escape(why, limit=300)}")
    words = {True: "there", False: "missing", None: "–"}
    rows = [
        ("      " + item.name, words[item.there], escape(item.about if item.there else item.without, limit=120))
        for item in resume.items
    ]
    printer.columns(rows, "<<<", styles=["yellow" if item.there is False else None for item in resume.items])
