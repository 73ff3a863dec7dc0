"""How a comparison looks on a terminal: the verdict, modules by how far they changed, tensors, names, values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptctl.cli._diff_beside import named, structure, values
from ckptctl.cli._diff_verdict import verdict
from ckptctl.cli._output import Printer, joined
from ckptctl.cli._text import escape, number, plural, size
from ckptctl.model import Component
from ckptctl.ops.diff import DiffReport, Kind, TensorDiff

if TYPE_CHECKING:
    from ckptctl.ops.diff import ModuleDiff
    from ckptctl.tensors.measure import Measures

_BAR, _WIDE, _NUMBERS = 20, 100, 40
"""How long a bar is; from which width of a terminal on; and how wide the other columns are at most."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_KINDS = {Kind.CLOSE: "close", Kind.ROUNDED: "equal once rounded", Kind.EQUAL: "equal"}


def show(printer: Printer, report: DiffReport, *, top: int, everything: bool, brief: bool) -> None:
    """Print what differs, the most important first."""
    printer.paragraph(verdict(report), style="green" if report.equal else "red")
    if brief:
        return
    for text in _about(report):
        printer.paragraph(f"  {text}")
    if report.modules and top:
        printer.line()
        printer.columns(list(_module_rows(report.modules, top, printer.width)), "<><>>")
    for lines in (
        _tensors(report, top, printer.width, everything=everything),
        structure(report, top),
        values(report, top),
    ):
        for index, (text, style) in enumerate(lines):
            if not index:
                printer.line()
            printer.paragraph(text, style=style)


def _about(report: DiffReport) -> Iterator[str]:
    if not report.equal:
        for letter, side in (("A", report.a), ("B", report.b)):
            step = f"step {number(side.step.value)}" if side.step else ""
            yield f"{letter}: {joined([escape(str(side.path)), escape(side.title), step, size(side.nbytes)])}"
    if report.byte_identical is not None:
        not_so = "not byte-identical: they are laid out or named otherwise inside"
        yield f"the two files are {'byte-identical' if report.byte_identical else not_so}"
    yield from map(escape, report.notes)


def _module_rows(modules: tuple[ModuleDiff, ...], top: int, width: int | None) -> Iterator[tuple[str, ...]]:
    long = _BAR if width is None or width > _WIDE else _BAR // 2
    room = None if width is None else max(width - long - _NUMBERS, _BAR)
    yield ("module", "changed", "relative change", "", "max |Δ|")
    found = [one.relative_l2 for one in modules if one.relative_l2 is not None and math.isfinite(one.relative_l2)]
    largest = max(found, default=0.0) or 1.0
    for one in modules[:top]:
        relative = one.relative_l2
        filled = 0.0 if relative is None else min(relative / largest, 1.0)
        yield (
            _tail(escape(one.name, limit=120), room),
            f"{one.changed:,} of {one.tensors:,}",
            "not finite" if one.not_finite else bar(filled, long),
            "–" if relative is None else f"{relative:.1e}",
            "–" if relative is None else f"{one.max_abs:.2g}",
        )
    if len(modules) > top:
        yield (f"… {len(modules) - top:,} more (--top)", "", "", "", "")


def _tail(name: str, room: int | None) -> str:
    """Return the end of a name that is too long, which says more than its beginning."""
    return name if room is None or len(name) <= room else f"…{name[1 - room :]}"


def bar(filled: float, long: int = _BAR) -> str:
    """Return a bar as long as a number from 0 to 1 is large, at most `long` characters."""
    eighths = round(filled * long * 8)
    if filled and not eighths:
        eighths = 1
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _tensors(report: DiffReport, top: int, width: int | None, *, everything: bool) -> Iterator[tuple[str, str | None]]:
    unread = [one for one in report.tensors if one.kind is Kind.UNREAD]
    changed = sorted((one for one in report.tensors if one.different and one.kind is not Kind.ROUNDED), key=_rank)
    yield from ((f"? {named(one)}: {escape(one.why, limit=300)}", "yellow") for one in unread[:top])
    for one in changed[:top]:
        yield from ((text, "red") for text in _headed(f"~ {named(one)}", _types(one), width))
        yield from ((f"    {text}", None) for text in _measured(one))
    if len(changed) > top:
        yield f"… {len(changed) - top:,} more tensors (--top, or --json has them all)", None
    yield from _rounded(report)
    for one in report.tensors if everything else [one for one in report.tensors if one.kind is Kind.CLOSE][:top]:
        if not one.different and one.kind is not Kind.UNREAD:
            yield f"= {named(one)}   {_types(one)}   {_KINDS[one.kind]}", None


def _headed(name: str, what: str, width: int | None) -> list[str]:
    """Return one line, or two where it would be broken inside a name."""
    return [f"{name}   {what}"] if width is None or len(name) + len(what) + 3 <= width else [name, f"    {what}"]


def _rounded(report: DiffReport) -> Iterator[tuple[str, str | None]]:
    """Fold tensors of which only the type changed."""
    types = Counter((one.dtype_a, one.dtype_b) for one in report.tensors if one.different and one.kind is Kind.ROUNDED)
    for (old, new), count in types.most_common():
        message = f"! {old} → {new} in {plural(count, 'tensor')}, equal once rounded (--dtype-tolerant lets them pass)"
        yield message, "red"


def _rank(one: TensorDiff) -> tuple[bool, bool, bool, float]:
    relative = one.measures.relative_l2 if one.measures else math.inf
    lost = bool(one.measures and (one.measures.nan or one.measures.infinite))
    model, shape = one.component is Component.MODEL, one.kind is Kind.SHAPE
    return not model, not shape, not lost, 0.0 if math.isnan(relative) else -relative


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
            f"{found.infinite:,} infinite on one side, or with the other sign" if found.infinite else "",
            f"{found.beyond:,} not close" if found.beyond is not None else "",
        ]
    )
    yield joined(
        [
            f"max |Δ| {_short(found.max_abs)}, mean {_short(found.mean_abs)}",
            _worst(found),
        ]
    )
    ulps = f"up to {found.ulps:,} ulp" if found.ulps else ""
    yield joined([f"relative L2 {_short(found.relative_l2)}", *_angles(found), ulps])


def _worst(found: Measures) -> str:
    if found.worst is None:
        return ""
    place = f"at {list(found.worst)}: " if found.worst else ""
    return f"{place}{_value(found.worst_a)} → {_value(found.worst_b)}"


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
