"""How an inspect report looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.cli._inspect_tree import module_rows, value_rows
from ckptctl.cli._output import Printer, joined
from ckptctl.cli._text import count, escape, number, plural, size
from ckptctl.model import Component, Found, GlobalUse, Level, Severity
from ckptctl.ops.inspect import ComponentRow, InspectReport, TensorRow

_NONE = "–"
_MOST_NOTES, _MOST_KEYS, _MOST_TIES = 8, 6, 3
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: None}


def show(printer: Printer, report: InspectReport, *, depth: int, brief: bool) -> None:
    """Print the report: head, components, what is missing, notes, modules; then what was asked for."""
    _title(printer, report)
    if brief:
        return
    facts = joined([_fact("step", report.step), _fact("epoch", report.epoch), *_metrics(report)])
    if facts:
        printer.paragraph(facts)
    _components(printer, report)
    _notes(printer, report)
    if report.modules and depth and report.tensor_list is None:
        printer.line()
        printer.columns(module_rows(report, depth), "<>><")
    if report.tensor_list is not None:
        printer.line()
        _tensors(printer, report.tensor_list)
    if report.values is not None:
        printer.line()
        _values(printer, report)
    if report.regions is not None:
        printer.line()
        _regions(printer, report)


def _title(printer: Printer, report: InspectReport) -> None:
    """The path and what it is, on one line if they fit."""
    parameters = f"{count(report.parameters)} parameter{'s' * (report.parameters != 1)}" if report.parameters else ""
    what = joined([escape(report.title), size(report.nbytes), plural(report.tensors, "tensor"), parameters])
    path = escape(str(report.path))
    if printer.width and len(path) + len(what) + 3 > printer.width:
        printer.line(path)
        printer.paragraph(f"  {what}")
    else:
        printer.line(f"{path}   {what}")


def _fact(name: str, found: Found | None) -> str:
    return f"{name} {number(found.value)} ({escape(found.where)})" if found else ""


def _metrics(report: InspectReport) -> Iterator[str]:
    for metric in report.metrics[:2]:
        yield _fact(escape(metric.name, limit=40), metric)


def _components(printer: Printer, report: InspectReport) -> None:
    rows = [("component", "tensors", "parameters", "bytes", "dtypes", "")]
    rows += [
        (
            row.component.value,
            f"{row.tensors:,}" if row.tensors else _NONE,
            count(row.parameters) if row.tensors else _NONE,
            size(row.nbytes) if row.tensors else _NONE,
            " ".join(row.dtypes) or _NONE,
            _about(row),
        )
        for row in report.components
    ]
    printer.line()
    if not report.components:
        printer.line("empty: it holds neither tensors nor values")
        return
    printer.columns(rows, "<>>><<")
    if report.selected is not None:
        printer.line(f"selected: {report.selected:,} of {plural(report.tensors, 'tensor')}")


def _about(row: ComponentRow) -> str:
    slots = ", ".join(f"{slot.name} {size(slot.nbytes)}" for slot in row.slots if slot.name != "step")
    if row.component is Component.MODEL and row.prefix:
        return f"under {escape(row.prefix, limit=40)}"
    if row.component in (Component.TRAINER, Component.DATA, Component.OTHER):
        keys = row.about.split(", ")
        return escape(", ".join(keys[:_MOST_KEYS]), limit=160) + (", …" if len(keys) > _MOST_KEYS else "")
    return escape(joined([row.about, slots], ": "), limit=160)


def _notes(printer: Printer, report: InspectReport) -> None:
    every = report.missing if report.selected is None else ()  # who asks for a part knows that the rest is not in it
    missing = [(f"missing: {finding.where}", finding.message) for finding in every]
    printer.columns(missing, "<<", styles=["yellow"] * len(missing))
    lines = [(f"{f.severity.value}: {escape(f.message, limit=300)}", _STYLES[f.severity]) for f in report.findings]
    lines += [(f"note: {text}", None) for text in _ties(report.tied)]
    if report.metadata:
        pairs = joined(f"{escape(k, limit=40)} {escape(v, limit=60)}" for k, v in list(report.metadata.items())[:6])
        more = f" and {len(report.metadata) - 6} more" if len(report.metadata) > 6 else ""
        lines.append((f"metadata: {pairs}{more}", None))
    lines += list(_safety(report.globals))
    if lines:
        printer.line()
    for text, style in lines[:_MOST_NOTES]:
        printer.paragraph(text, style=style)
    if len(lines) > _MOST_NOTES:
        printer.line(f"… and {len(lines) - _MOST_NOTES} more notes (--json has them all)")


def _ties(groups: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    if len(groups) > _MOST_TIES:
        yield f"{len(groups)} groups of names share storage (the first is {_some(groups[0])})"
        return
    yield from (f"{len(group)} names share storage ({_some(group)})" for group in groups)


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(escape(name, limit=80) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _safety(uses: tuple[GlobalUse, ...]) -> Iterator[tuple[str, str | None]]:
    dangerous = [u for u in uses if u.level is Level.DANGEROUS]
    foreign = [u for u in uses if u.level is Level.FOREIGN]
    inert = [u for u in uses if u.level is Level.INERT]
    if dangerous:
        yield f"unsafe: a loader would run {_named(dangerous)}; nothing was run", "red"
    if foreign:
        yield f"unsafe: a loader would import {_named(foreign)}; nothing was imported", "yellow"
    if inert:
        yield f"note: kept as data, not built: {_named(inert)}", None


def _named(uses: list[GlobalUse]) -> str:
    shown = ", ".join(
        f"{escape(str(use), limit=80)} ({use.level.value}, {f'called {use.calls}×' if use.calls else 'not called'})"
        for use in uses[:4]
    )
    return shown + (f" and {len(uses) - 4} more" if len(uses) > 4 else "")


def _tensors(printer: Printer, tensors: tuple[TensorRow, ...]) -> None:
    several = len({row.file for row in tensors if row.file}) > 1
    rows = [("name", "dtype", "shape", "bytes", "offset", "file" if several else "", "")]
    rows += [
        (
            escape(row.name),
            row.dtype,
            _shape(row.shape),
            f"{row.nbytes:,}",
            _NONE if row.offset is None else f"{row.offset:,}",
            escape(row.file) if several else "",
            _remark(row),
        )
        for row in tensors
    ]
    printer.columns(rows, "<<<>><<")


def _remark(row: TensorRow) -> str:
    return joined(
        [
            f"this rank has {_shape(row.shard)}" if row.shard is not None else "",
            f"tied with {escape(row.tied, limit=60)}" if row.tied else "",
            escape(row.layout, limit=60) if row.layout != "strided" else "",
        ]
    )


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _values(printer: Printer, report: InspectReport) -> None:
    printer.line("values")
    for text in value_rows(report.values.items if report.values else {}):
        printer.line(text)


def _regions(printer: Printer, report: InspectReport) -> None:
    regions = report.regions or ()
    rows = [("offset", "length", "kind", "what")]
    rows += [(f"{r.offset:,}", f"{r.length:,}", r.kind, escape(r.what)) for r in regions]
    printer.columns(rows, ">><<")
    totals: dict[str, int] = {}
    for region in regions:
        totals[region.kind] = totals.get(region.kind, 0) + region.length
    printer.line()
    total = sum(totals.values())
    printer.line(
        joined(f"{kind} {amount:,}" for kind, amount in totals.items()) + f" · {total:,} of {report.nbytes:,} bytes"
    )
