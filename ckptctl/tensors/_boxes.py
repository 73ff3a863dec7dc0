"""Boxes of a tensor whose elements follow each other row by row, what of a box a piece holds, and how to read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.model import Piece

_SMALL = 1 << 16
"""So many bytes are read at once whatever of them is needed."""
_PAGE, _PAGES = 1 << 12, 1 << 20
"""Elements closer than a page make every page be read anyhow, so more of them are read at once."""


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor, in elements; `first` is the row-major index of its first element."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int

    @property
    def numel(self) -> int:
        """How many elements it has; they are those from `first` on."""
        return math.prod(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes without those that are one, of which a tensor may have more than NumPy counts."""
        return tuple(size for size in self.sizes if size > 1)


@dataclass(frozen=True, slots=True)
class Part:
    """What a piece holds of a box.

    It begins `offset` elements into the piece's bytes, is of `sizes` and `strides` (in elements)
    there, and belongs at `place` of an array of the box's `shape`. `whole` says that it is all of it.
    """

    piece: Piece
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    place: tuple[slice, ...]
    whole: bool

    @property
    def dense(self) -> bool:
        """Whether its elements follow each other in the piece's bytes."""
        step = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size > 1 and stride != step:
                return False
            step *= size
        return True


def boxes(shape: tuple[int, ...], most: int) -> Iterator[Box]:
    """Yield boxes of at most `most` elements that follow each other and are all of a tensor of `shape`."""
    if 0 in shape:
        return
    split, inner = len(shape), 1
    while split and inner * shape[split - 1] <= most:
        split -= 1
        inner *= shape[split]
    if not split:
        yield Box((0,) * len(shape), shape, 0)
        return
    outer, size, tail = shape[: split - 1], shape[split - 1], shape[split:]
    rows = most // inner
    for lead in range(math.prod(outer)):
        place = _unravel(lead, outer)
        for at in range(0, size, rows):
            starts = (*place, at, *(0 for _ in tail))
            sizes = (*(1 for _ in outer), min(rows, size - at), *tail)
            yield Box(starts, sizes, (lead * size + at) * inner)


def _unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    place: list[int] = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        place.append(at)
    return tuple(reversed(place))


def overlap(box: Box, piece: Piece, strides: tuple[int, ...]) -> Part | None:
    """Return what a piece whose bytes have these `strides` holds of a box, or None if that is nothing."""
    offset = 0
    kept: list[tuple[int, int, slice]] = []
    for begin, size, at, length, stride in zip(box.starts, box.sizes, piece.offsets, piece.shape, strides, strict=True):
        start, end = max(begin, at), min(begin + size, at + length)
        if start >= end:
            return None
        offset += (start - at) * stride
        if size > 1:
            kept.append((end - start, stride, slice(start - begin, end - begin)))
    sizes = tuple(size for size, _, _ in kept)
    return Part(
        piece,
        offset,
        sizes,
        tuple(stride for _, stride, _ in kept),
        tuple(place for _, _, place in kept),
        sizes == box.shape,
    )


def span(sizes: tuple[int, ...] | list[int], strides: tuple[int, ...]) -> int:
    """Return how many elements lie from the first to the last of a view that is not empty, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def reads(part: Part, width: int) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """Cut a part into blocks worth reading at once: their offsets, in elements as in `Part`, and places inside it.

    A block spans at most about twice the bytes that are needed of it, or few bytes. `width` is that
    of an element in bytes.
    """
    steps = _steps(part.sizes, part.strides, width)
    cut = [axis for axis, step in enumerate(steps) if step < part.sizes[axis]]
    place = [slice(0, size) for size in part.sizes]
    return _walk(part, steps, cut, place, part.offset)


def _walk(
    part: Part, steps: list[int], cut: list[int], place: list[slice], offset: int
) -> Iterator[tuple[int, tuple[slice, ...]]]:
    if not cut:
        yield offset, tuple(place)
        return
    axis, *rest = cut
    size, step, stride = part.sizes[axis], steps[axis], part.strides[axis]
    for at in range(0, size, step):
        place[axis] = slice(at, min(at + step, size))
        if rest:
            yield from _walk(part, steps, rest, place, offset + at * stride)
        else:
            yield offset + at * stride, tuple(place)


def _steps(sizes: tuple[int, ...], strides: tuple[int, ...], width: int) -> list[int]:
    """Return how much of each dimension is read at once: those with the largest strides are cut first."""
    steps = list(sizes)
    for axis in sorted(range(len(sizes)), key=lambda axis: -strides[axis]):
        if strides[axis] == 0 or _worth(steps, strides, width):
            break
        if sizes[axis] == 1:
            continue
        steps[axis] = 1
        few = (_PAGES if strides[axis] * width <= _PAGE else _SMALL) // width
        room = (few - span(steps, strides)) // strides[axis]
        if room > 0:
            steps[axis] = min(room + 1, sizes[axis])
            break
    return steps


def _worth(sizes: list[int], strides: tuple[int, ...], width: int) -> bool:
    extent = span(sizes, strides)
    needed = math.prod(size for size, stride in zip(sizes, strides, strict=True) if stride)
    return extent * width <= _SMALL or extent <= 2 * needed
