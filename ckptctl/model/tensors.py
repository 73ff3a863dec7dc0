"""A tensor that has not been loaded: its type, its shape, and where its bytes lie."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ckptctl.model.dtypes import DType
    from ckptctl.storage import ByteRange


class Encoding(enum.Flag):
    """What must be done to the bytes of a piece to get its values; `RAW` is nothing."""

    RAW = 0
    SWAPPED = enum.auto()
    """Big-endian elements."""
    CONJ = enum.auto()
    """Complex numbers whose conjugate is meant."""
    NEG = enum.auto()
    """Numbers whose negative is meant."""
    ITEM = enum.auto()
    """A whole file of ``torch.save`` that holds the block (an item of a distributed checkpoint)."""
    CHUNK = enum.auto()
    """A chunk of an HDF5 dataset, packed by its filters or cut at its edge; a run of values in a deflated record."""
    LATIN1 = enum.auto()
    """Bytes written as UTF-8 text, a character each (NumPy arrays in pickles of protocol 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One block of a tensor: the bytes that hold it, and where it sits in the whole.

    `offsets` and `shape` are in elements, one for each dimension of the tensor, or a single one if the piece is a run
    of its elements, row by row. `strides` are in
    elements of the byte range, or None if the block lies there row by row without gaps. Where the bytes
    are packed, `unpack` returns those of the block, row by row; where they are a whole file that holds the block,
    `inner` returns the piece in it.
    """

    range: ByteRange
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    encoding: Encoding = Encoding.RAW
    unpack: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)
    inner: Callable[[], Piece] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A named tensor and the pieces it is made of.

    `shape` is that of the whole, even where the pieces cover only a part of it. `layout` is
    ``strided`` for ordinary tensors; a sparse, quantized or nested one names its layout and has
    the tensors that it is stored as in `parts`. `copies` are what other ranks hold under the same name, in their
    order: replicas of some of the pieces, or, where nothing says how it was cut, parts of a larger whole.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    layout: str = "strided"
    parts: tuple[TensorInfo, ...] = ()
    copies: tuple[Piece, ...] = ()

    @property
    def numel(self) -> int:
        """How many elements the whole has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the values take: of the pieces that are here, or of the parts."""
        if self.parts:
            return sum(part.nbytes for part in self.parts)
        return sum(math.prod(piece.shape) * self.dtype.bits for piece in self.pieces) // 8

    @property
    def whole(self) -> bool:
        """Whether the pieces that are here are as many elements as the tensor has."""
        return self.layout != "strided" or sum(math.prod(p.shape) for p in self.pieces) >= self.numel

    @property
    def identity(self) -> Hashable:
        """Equal for two names of the same bytes read in the same way: tied tensors."""
        pieces = tuple(
            (id(p.range.file), p.range.offset, p.range.length, p.offsets, p.strides, p.encoding) for p in self.pieces
        )
        return (self.dtype.name, self.shape, pieces, tuple(part.identity for part in self.parts))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor of `shape` stored row by row."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
