"""Whether two tensors hold the same bytes, block by block, however each of them is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.storage import LocalFile
from ckptctl.tensors.stream import Stream, equal, small

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ckptctl.model import Piece, TensorInfo


def same_bytes(one: TensorInfo, other: TensorInfo, progress: Callable[[int], None] = lambda _: None) -> bool:
    """Whether the values of two strided tensors of one dtype and number of elements are the same, bit for bit.

    `progress` is told of the bytes of each side that were read.
    """
    here, there = small(one), small(other)
    if here and there:
        progress(here.length)
        return here.read() == there.read()
    left, right = Stream(one), Stream(other)
    while True:
        count = min(left.ready(), right.ready())
        if not count:
            return left.ready() == right.ready()
        if not equal(left.take(count), right.take(count)):
            return False
        progress(count)


def unravelled(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element, one number for each dimension, by its number row by row."""
    found: list[int] = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        found.append(at)
    return tuple(reversed(found))


def same_place(one: TensorInfo, other: TensorInfo) -> bool:
    """Whether two tensors are the same bytes of the same file on disk, read in the same way."""
    if not one.pieces or not other.pieces or _place(one.pieces[0]) != _place(other.pieces[0]):
        return False
    here, there = [_place(piece) for piece in one.pieces], [_place(piece) for piece in other.pieces]
    return None not in here and here == there and one.dtype is other.dtype and one.shape == other.shape


def _place(piece: Piece) -> Hashable:
    file = piece.range.file
    if not isinstance(file, LocalFile):
        return None
    shape = (piece.offsets, piece.shape, piece.strides, piece.encoding)
    return (file.identity, piece.range.offset, piece.range.length, *shape)
