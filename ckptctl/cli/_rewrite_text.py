"""How files that were, or would be, written look on a terminal: a line for each, and what is worth knowing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.cli._output import joined
from ckptctl.cli._text import escape, plural, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.rewrite.report import RewriteReport, WrittenFile, WrittenTensor

_MOST = 4
_LARGE = 50_000_000
"""Fewer bytes are written too soon for a rate to say anything."""


def head(report: RewriteReport) -> str:
    files = report.files
    name = str(files[0].path) if len(files) == 1 else str(report.index)
    worth = report.nbytes >= _LARGE and report.seconds > 0
    speed = f" ({size(int(report.nbytes / report.seconds))}/s)" if worth else ""
    facts = [
        plural(len(files), "shard") if len(files) > 1 else "",
        plural(report.tensors, "tensor"),
        size(report.nbytes),
        f"{report.seconds:.1f} s{speed}" if report.written else f"from {escape(report.source.name)}",
    ]
    return f"{escape(name)}   {joined(facts)}"


def details(report: RewriteReport) -> Iterator[tuple[str, str | None]]:
    if report.written:
        yield _checked(report), None if report.bytes_checked == "verified" else "yellow"
    for text in (_ties(report), _cast(report), _renamed(report)):
        if text:
            yield text, None
    if report.values:
        yield f"{plural(report.values, 'plain value')} kept", None
    if report.left_out:
        yield f"left out, as asked: {_some(f'{place} ({why})' for place, why in report.left_out.items())}", "yellow"
    if report.aside:
        yield f"not selected: {_some(report.aside)}", None
    for name, count in list(report.overflows.items())[:_MOST]:
        yield f"{plural(count, 'number')} of {escape(name)} became infinite", "yellow"
    yield from ((f"note: {escape(note, limit=300)}", None) for note in report.notes)
    yield from ((f"warning: {escape(text, limit=300)}", "yellow") for text in report.warnings)


def _checked(report: RewriteReport) -> str:
    if report.bytes_checked == "verified":
        counts = [(report.records_verified, "recorded CRC", ""), (report.digests_verified, "digest", " on record")]
        said = " and ".join(f"{plural(count, what)}{where}" for count, what, where in counts if count)
        checked = f"bytes checked against {said}"
    else:
        checked = "unverified: no checksum of the source was compared"
    digest = report.files[0].sha256
    if not digest:
        return f"{checked} · no digest written"
    if len(report.files) > 1:
        return f"{checked} · a .sha256 beside each shard"
    return f"{checked} · sha256 {digest[:4]}…{digest[-4:]} in {escape(report.files[0].path.name)}.sha256"


def _ties(report: RewriteReport) -> str:
    return f"tied: {_some(f'{name} → {kept}' for name, kept in report.tied.items())}" if report.tied else ""


def _cast(report: RewriteReport) -> str:
    if not report.cast:
        return ""
    every = [tensor for file in report.files for tensor in file.tensors if tensor.name in set(report.cast)]
    kinds = dict.fromkeys(f"{tensor.source_dtype} → {tensor.dtype}" for tensor in every)
    return f"cast: {plural(len(report.cast), 'tensor')}, {', '.join(kinds)}"


def _renamed(report: RewriteReport) -> str:
    if not report.renamed:
        return ""
    return f"renamed: {plural(len(report.renamed), 'tensor')}, {_some(f'{a} → {b}' for a, b in report.renamed)}"


def _some(texts: Iterator[str] | tuple[str, ...]) -> str:
    every = list(texts)
    more = f" and {len(every) - _MOST:,} more" if len(every) > _MOST else ""
    return ", ".join(escape(text, limit=120) for text in every[:_MOST]) + more


def tensor_rows(file: WrittenFile, report: RewriteReport) -> Iterator[tuple[str, ...]]:
    yield ("name", "dtype", "shape", "bytes", "")
    ties: dict[str, list[str]] = {}
    for name, kept in report.tied.items():
        ties.setdefault(kept, []).append(name)
    for tensor in file.tensors:
        shape = f"[{', '.join(map(str, tensor.shape))}]"
        yield escape(tensor.name), tensor.dtype, shape, f"{tensor.nbytes:,}", _remark(tensor, ties.get(tensor.name, []))


def _remark(tensor: WrittenTensor, tied: list[str]) -> str:
    return joined(
        [
            f"from {escape(tensor.source, limit=80)}" if tensor.source != tensor.name else "",
            f"cast from {tensor.source_dtype}" if tensor.source_dtype != tensor.dtype else "",
            f"also {_some(tuple(tied))}" if tied else "",
        ]
    )
