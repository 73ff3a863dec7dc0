"""What differs besides values of tensors: names, ties, plain values, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ckptctl.cli._inspect_tree import inline_value
from ckptctl.cli._text import escape, plural, size
from ckptctl.model import Component
from ckptctl.ops.diff import DiffReport, Renaming, TensorDiff, TensorLine, ValueDiff

_AROUND = 16


def named(one: TensorDiff | TensorLine) -> str:
    """Return the name of a tensor, with its component where that is not the model."""
    prefix = "" if one.component is Component.MODEL else f"{one.component.value}: "
    was = getattr(one, "was", "")
    return prefix + escape(one.name, limit=120) + (f" (in A {escape(was, limit=120)})" if was else "")


def structure(report: DiffReport, top: int) -> Iterator[tuple[str, str | None]]:
    """Yield lines on what is on one side only, renamed, or tied on one side."""
    for sign, side, lines in (("-", "A", report.only_a), ("+", "B", report.only_b)):
        whole = [component for component in Component if _all_of(component, lines, report)]
        for component in whole:
            inside = [one for one in lines if one.component is component]
            what = f"{plural(len(inside), 'tensor')}, {size(sum(one.nbytes for one in inside))}"
            yield f"{sign} {component.value}: only in {side}, all of it ({what}; --only compares one component)", None
        some = [one for one in lines if one.component not in whole]
        for one in some[:top]:
            tied = f"   tied there with {escape(one.tied, limit=120)}" if one.tied else ""
            yield f"{sign} {named(one)}   {one.dtype} {list(one.shape)}{tied}", None
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


def values(report: DiffReport, top: int) -> Iterator[tuple[str, str | None]]:
    """Yield lines on plain values and metadata."""
    for title, found in (("values", report.values), ("metadata", report.metadata)):
        for one in islice(found, top):
            yield f"{title}: {_changed(one)}", None
        if len(found) > top:
            yield f"{title}: … {len(found) - top:,} more differ (--top, or --json has them all)", None


def _changed(one: ValueDiff) -> str:
    path = escape(one.path, limit=160)
    if one.unread:
        return f"{path}: not compared: {inline_value(one.a)}"
    if one.only:
        return f"{path}: only in {one.only.upper()}: {inline_value(one.a if one.only == 'a' else one.b)}"
    old, new = inline_value(one.a), inline_value(one.b)
    if old == new or isinstance(one.a, bytes):
        old, new = _where(one.a, one.b)
    return f"{path}: {old} → {new}"


def _where(a: object, b: object) -> tuple[str, str]:
    """Return what stands around the place at which two long values differ."""
    texts = [one.hex() if isinstance(one, bytes) else str(one) if isinstance(one, (str, int)) else "" for one in (a, b)]
    if not all(texts):
        return inline_value(a), f"{inline_value(b)}, of other content"
    at = next((at for at, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), min(map(len, texts)))
    start = max(at - _AROUND, 0)
    old, new = (escape(("…" if start else "") + text[start : at + _AROUND]) for text in texts)
    return f"{old} at character {at:,}" if start else old, new
