"""Whether two tensors hold the same bytes, block by block, however each of them is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.storage import StoredFile
from ckptctl.tensors.stream import Stream, equal, small

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

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


def alone(tensor: TensorInfo, piece: Piece) -> TensorInfo:
    """Return a piece of a tensor as a tensor by itself."""
    place = replace(piece, offsets=(0,) * len(piece.shape))
    return replace(tensor, shape=piece.shape, pieces=(place,), copies=())


def replicas(tensor: TensorInfo) -> Iterator[tuple[Piece | None, Piece, bool]]:
    """Yield the copies of a tensor, each after the piece that has its place and shape, and whether their bytes agree.

    The piece is None, and nothing is read, if there is none.
    """
    places = {piece.offsets: piece for piece in tensor.pieces}
    for copy in tensor.copies:
        first = places.get(copy.offsets)
        if first is None or first.shape != copy.shape:
            yield None, copy, False
        else:
            yield first, copy, same_bytes(alone(tensor, first), alone(tensor, copy))


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
    if not isinstance(file, StoredFile):
        return None
    shape = (piece.offsets, piece.shape, piece.strides, piece.encoding)
    return (file.identity, piece.range.offset, piece.range.length, *shape)
