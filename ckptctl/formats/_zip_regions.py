"""What every byte of a torch zip file is for."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ckptctl.formats import _zip
from ckptctl.model import Contents, Piece, Region, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator


def account(contents: Contents) -> tuple[Region, ...]:
    """Return the regions of the file in order, without a gap."""
    source = contents.range
    directory = _zip.read_directory(source)
    spans = _spans(contents)
    regions: list[Region] = []
    end = 0
    for member in directory.members:
        name_end = member.header + 30 + len(member.name.encode())
        regions += _region(end, member.header, "header", "data descriptor")
        regions += _region(member.header, name_end, "header", f"header of {member.name}")
        regions += _region(name_end, member.data, "padding", f"before {member.name}")
        inner = member.name.partition("/")[2]
        if inner.startswith("data/"):
            regions += _storage(member, spans)
        else:
            regions += _region(member.data, member.end, "header", member.name)
        end = member.end
    regions += _region(end, directory.start, "header", "data descriptor")
    regions += _region(directory.start, directory.end, "index", "directory")
    regions += _region(directory.end, source.length, "index", "end records")
    return tuple(regions)


def _region(start: int, end: int, kind: str, what: str) -> Iterator[Region]:
    if end > start:
        yield Region(offset=start, length=end - start, kind=kind, what=what)


def _storage(member: _zip.Member, spans: list[tuple[int, int]]) -> Iterator[Region]:
    """Split a storage into what some tensor uses and what none does."""
    reached = member.data
    first = bisect_left(spans, (member.data, 0))
    for start, end in spans[first : bisect_left(spans, (member.end, 0), first)]:
        yield from _region(reached, start, "unused", f"{member.name}: no tensor uses it")
        yield from _region(start, end, "data", member.name)
        reached = end
    yield from _region(reached, member.end, "unused", f"{member.name}: no tensor uses it")


def _spans(contents: Contents) -> list[tuple[int, int]]:
    """Return where the pieces of tensors lie in this file, merged and sorted."""
    ranges = sorted(
        (piece.range.offset - contents.range.offset, piece.range.offset - contents.range.offset + piece.range.length)
        for tensor in contents.tensors.values()
        for piece in _pieces(tensor)
        if piece.range.file is contents.range.file
    )
    merged: list[tuple[int, int]] = []
    for start, end in ranges:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _pieces(tensor: TensorInfo) -> Iterator[Piece]:
    yield from tensor.pieces
    for part in tensor.parts:
        yield from _pieces(part)
