"""Where the pieces of tensors lie in a file, to account for its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.model import Contents, Piece, Region, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator


def account_for_pieces(contents: Contents, *, other: str) -> tuple[Region, ...]:
    """Return the regions of a file of which nothing is known but where tensors lie; the rest is `other`."""
    regions: list[Region] = []
    reached = 0
    for start, end in spans_of(contents):
        regions += region(reached, start, "header", other)
        regions += region(start, end, "data", "tensors")
        reached = end
    return (*regions, *region(reached, contents.range.length, "header", other))


def region(start: int, end: int, kind: str, what: str) -> Iterator[Region]:
    """Yield the region, unless it is empty."""
    if end > start:
        yield Region(offset=start, length=end - start, kind=kind, what=what)


def spans_of(contents: Contents) -> list[tuple[int, int]]:
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
