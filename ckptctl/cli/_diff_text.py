"""How a comparison looks on a terminal: the verdict, modules by how far they changed, tensors, names, values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from ckptctl.cli._inspect_tree import inline_value
from ckptctl.cli._output import Printer, joined
from ckptctl.cli._text import escape, number, plural, size
from ckptctl.model import Component
from ckptctl.ops.diff import DiffReport, Kind, Renaming, TensorDiff, TensorLine, ValueDiff

if TYPE_CHECKING:
    from ckptctl.ops.diff import ModuleDiff
    from ckptctl.tensors.measure import Measures

_BAR = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"
_KINDS = {Kind.CLOSE: "close", Kind.ROUNDED: "equal once rounded", Kind.EQUAL: "equal"}


def show(printer: Printer, report: DiffReport, *, top: int, everything: bool, brief: bool) -> None:
    """Print what differs, the most important first."""
    printer.paragraph(verdict(report), style="green" if report.equal else "red")
    if brief:
        return
    for text in _about(report):
        printer.paragraph(f"  {text}")
    if report.modules:
        printer.line()
        printer.columns(list(_module_rows(report.modules, top)), "<><>>")
    for lines in (_tensors(report, top, everything=everything), _structure(report, top), _values(report, top)):
        for index, (text, style) in enumerate(lines):
            if not index:
                printer.line()
            printer.paragraph(text, style=style)


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
                    f"{len(changed):,} of {plural(report.compared, 'tensor')} differ" if report.compared else "",
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
            f"{report.compared - len(changed) - unread:,} equal" if report.complete else "",
            more,
        ]
    )


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


def _about(report: DiffReport) -> Iterator[str]:
    if not report.equal:
        for letter, side in (("A", report.a), ("B", report.b)):
            step = f"step {number(side.step.value)}" if side.step else ""
            yield f"{letter}: {joined([escape(str(side.path)), escape(side.title), step, size(side.nbytes)])}"
    if report.byte_identical is not None:
        yield f"the two files are {'' if report.byte_identical else 'not '}byte-identical"
    yield from map(escape, report.notes)


def _module_rows(modules: tuple[ModuleDiff, ...], top: int) -> Iterator[tuple[str, ...]]:
    yield ("module", "changed", "relative change", "", "max |Δ|")
    found = [one.relative_l2 for one in modules if one.relative_l2 is not None and math.isfinite(one.relative_l2)]
    largest = max(found, default=0.0) or 1.0
    for one in modules[:top]:
        relative = one.relative_l2
        filled = 0.0 if relative is None else min(relative / largest, 1.0)
        yield (
            escape(one.name, limit=120),
            f"{one.changed:,} of {one.tensors:,}",
            bar(filled),
            "–" if relative is None else f"{relative:.1e}",
            "–" if relative is None else f"{one.max_abs:.2g}",
        )
    if len(modules) > top:
        yield (f"… {len(modules) - top:,} more (--top)", "", "", "", "")


def bar(filled: float) -> str:
    """Return a bar as long as a number from 0 to 1 is large."""
    eighths = round(filled * _BAR * 8)
    if filled and not eighths:
        eighths = 1
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _tensors(report: DiffReport, top: int, *, everything: bool) -> Iterator[tuple[str, str | None]]:
    unread = [one for one in report.tensors if one.kind is Kind.UNREAD]
    changed = sorted((one for one in report.tensors if one.different and one.kind is not Kind.ROUNDED), key=_rank)
    yield from ((f"? {_named(one)}: {escape(one.why, limit=300)}", "yellow") for one in unread[:top])
    for one in changed[:top]:
        yield f"~ {_named(one)}   {_types(one)}", "red"
        yield from ((f"    {text}", None) for text in _measured(one))
    if len(changed) > top:
        yield f"… {len(changed) - top:,} more tensors (--top, or --json has them all)", None
    yield from _rounded(report)
    for one in report.tensors if everything else [one for one in report.tensors if one.kind is Kind.CLOSE][:top]:
        if not one.different and one.kind is not Kind.UNREAD:
            yield f"= {_named(one)}   {_types(one)}   {_KINDS[one.kind]}", None


def _rounded(report: DiffReport) -> Iterator[tuple[str, str | None]]:
    """Fold tensors of which only the type changed."""
    types = Counter((one.dtype_a, one.dtype_b) for one in report.tensors if one.different and one.kind is Kind.ROUNDED)
    for (old, new), count in types.most_common():
        message = f"! {old} → {new} in {plural(count, 'tensor')}, equal once rounded (--dtype-tolerant lets them pass)"
        yield message, "red"


def _rank(one: TensorDiff) -> tuple[bool, bool, float]:
    relative = one.measures.relative_l2 if one.measures else math.inf
    return one.component is not Component.MODEL, one.kind is not Kind.SHAPE, -relative if relative == relative else 0.0  # noqa: PLR0124  # NaN is last


def _named(one: TensorDiff | TensorLine) -> str:
    prefix = "" if one.component is Component.MODEL else f"{one.component.value}: "
    was = getattr(one, "was", "")
    return prefix + escape(one.name, limit=120) + (f" (in A {escape(was, limit=120)})" if was else "")


def _types(one: TensorDiff) -> str:
    dtype = one.dtype_a if one.dtype_a == one.dtype_b else f"{one.dtype_a} → {one.dtype_b}"
    shape = str(list(one.shape_a))
    return f"{dtype} {shape if one.shape_a == one.shape_b else f'{shape} → {list(one.shape_b)}'}"


def _measured(one: TensorDiff) -> Iterator[str]:
    found = one.measures
    if found is None or not found.changed:
        return
    after = "" if one.dtype_a == one.dtype_b else " once rounded"
    yield joined(
        [
            f"{found.changed:,} of {plural(found.numel, 'element')}{after} ({_percent(found.share)})",
            f"{plural(found.signs, 'sign')} changed" if found.signs else "",
            f"{found.nan:,} became NaN or ceased to be" if found.nan else "",
            f"{found.infinite:,} infinite, or otherwise so" if found.infinite else "",
            f"{found.beyond:,} not close" if found.beyond is not None else "",
        ]
    )
    yield joined(
        [
            f"max |Δ| {_short(found.max_abs)}, mean {_short(found.mean_abs)}",
            f"at {list(found.worst)}: {_value(found.worst_a)} → {_value(found.worst_b)}" if found.worst else "",
            f"{found.ulps:,} ulp" if found.ulps else "",
        ]
    )
    yield joined([f"relative L2 {_short(found.relative_l2)}", *_angles(found)])


def _angles(found: Measures) -> Iterator[str]:
    if found.cosine is not None:
        yield f"cosine {found.cosine:.6f}"
    if math.isfinite(found.snr_db):
        yield f"SNR {found.snr_db:.1f} dB"


def _percent(share: float) -> str:
    return (
        f"{share:.2%}" if 0.0001 <= share < 0.9999 or share in (0, 1) else f"{share:.1e}" if share < 0.5 else ">99.99%"
    )


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _value(value: float | str) -> str:
    return escape(value) if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _structure(report: DiffReport, top: int) -> Iterator[tuple[str, str | None]]:
    for sign, side, lines in (("-", "A", report.only_a), ("+", "B", report.only_b)):
        whole = [component for component in Component if _all_of(component, lines, report)]
        for component in whole:
            inside = [one for one in lines if one.component is component]
            what = f"{plural(len(inside), 'tensor')}, {size(sum(one.nbytes for one in inside))}"
            yield f"{sign} {component.value}: only in {side}, all of it ({what}; --only compares one component)", None
        some = [one for one in lines if one.component not in whole]
        for one in some[:top]:
            tied = f"   tied there with {escape(one.tied, limit=120)}" if one.tied else ""
            yield f"{sign} {_named(one)}   {one.dtype} {list(one.shape)}{tied}", None
        if len(some) > top:
            yield f"{sign} … {len(some) - top:,} more only in {side}", None
    for renaming in report.renamed[:top]:
        yield _renamed(renaming), None
    if len(report.renamed) > top:
        yield f"> … {len(report.renamed) - top:,} more kinds of renaming", None
    for tie in report.ties[:top]:
        names = ", ".join(escape(name, limit=80) for name in tie.names[:4])
        here, there = ("B", "A") if tie.made else ("A", "B")
        why = "" if tie.known else f" ({there} is of a format that does not say)"
        yield f"! tied only in {here}{why}: {names}{', …' if len(tie.names) > 4 else ''}", None
    if len(report.ties) > top:
        yield f"! … {len(report.ties) - top:,} more ties", None


def _all_of(component: Component, lines: tuple[TensorLine, ...], report: DiffReport) -> bool:
    """Whether a whole component, one of several, is on one side only."""
    here = sum(one.component is component for one in lines)
    return here > 2 and component is not Component.MODEL and here == _count(component, lines, report)


def _count(component: Component, lines: tuple[TensorLine, ...], report: DiffReport) -> int:
    return report.a.components.get(component, 0) if lines is report.only_a else report.b.components.get(component, 0)


def _renamed(one: Renaming) -> str:
    was, name = (escape(text, limit=100) for text in one.example)
    if one.count == 1:
        return f"> renamed: {was} → {name}"
    old, new = escape(one.old, limit=80), escape(one.new, limit=80)
    old, new = (
        (f"{old}." if old else "", f"{new}." if new else "") if one.front else (old or "nothing", new or "nothing")
    )
    what = f"{old}* → {new}*" if one.front else f"{old} → {new}"
    return f"> renamed: {what} in {plural(one.count, 'name')} (such as {was} → {name})"


def _values(report: DiffReport, top: int) -> Iterator[tuple[str, str | None]]:
    for title, found in (("values", report.values), ("metadata", report.metadata)):
        for one in islice(found, top):
            yield f"{title}: {_changed(one)}", None
        if len(found) > top:
            yield f"{title}: … {len(found) - top:,} more differ (--top, or --json has them all)", None


def _changed(one: ValueDiff) -> str:
    path = escape(one.path, limit=160)
    if one.only:
        return f"{path}: only in {one.only.upper()}: {inline_value(one.a if one.only == 'a' else one.b)}"
    return f"{path}: {inline_value(one.a)} → {inline_value(one.b)}"
