"""The verdict of a comparison in one line."""

from __future__ import annotations

from ckptctl.cli._diff_beside import named
from ckptctl.cli._output import joined
from ckptctl.cli._text import plural, size
from ckptctl.ops.diff import DiffReport, Kind


def verdict(report: DiffReport) -> str:
    """Return the answer in one line."""
    if report.same_file:
        return f"equal: both are the same file ({plural(report.compared, 'tensor')})"
    if report.equal:
        return f"equal: {_equal(report)}"
    changed = [one for one in report.tensors if one.different]
    unread = sum(one.kind is Kind.UNREAD for one in report.tensors)
    renamed = sum(one.count for one in report.renamed)
    ties = sum(one.known for one in report.ties)
    more = "" if report.complete else "stopped at the first difference"
    return joined(
        [
            ", ".join(
                part
                for part in (
                    _changed_of(len(changed), report),
                    f"{len(report.only_a):,} only in A" if report.only_a else "",
                    f"{len(report.only_b):,} only in B" if report.only_b else "",
                    f"{renamed:,} renamed" if renamed else "",
                    f"{plural(ties, 'tie')} changed" if ties else "",
                    f"{unread:,} could not be compared" if unread else "",
                )
                if part
            ),
            _differ(len(report.values), "value"),
            _differ(len(report.metadata), "metadata text"),
            f"{report.compared - len(changed) - unread:,} equal" if report.complete and report.compared else "",
            more,
        ]
    )


def _changed_of(changed: int, report: DiffReport) -> str:
    if not report.complete:
        first = next((one for one in report.tensors if one.different), None)
        return f"{named(first)} differs" if first else ""
    verb = "differs" if changed == 1 else "differ"
    return f"{changed:,} of {plural(report.compared, 'tensor')} {verb}" if report.compared else ""


def _differ(count: int, what: str) -> str:
    return f"{plural(count, what)} differ{'s' if count == 1 else ''}" if count else ""


def _equal(report: DiffReport) -> str:
    close = sum(one.kind is Kind.CLOSE for one in report.tensors)
    rounded = sum(one.kind is Kind.ROUNDED for one in report.tensors)
    how = "bit for bit" if not close and not rounded else ""
    return joined(
        [
            f"{plural(report.compared, 'tensor')} ({size(report.b.nbytes)}){', ' + how if how else ''}",
            f"{close:,} of them close" if close else "",
            f"{rounded:,} of them once rounded" if rounded else "",
            plural(report.values_compared, "value") if report.values_compared else "",
        ]
    )
