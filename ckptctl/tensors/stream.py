"""The values of a tensor as a stream from which so many bytes are taken at a time: two are compared in step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.tensors.gather import blocks, raw_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.model import TensorInfo
    from ckptctl.storage import ByteRange

STEP = 1 << 20
"""So many bytes of each side are compared at once; a multiple of the width of every element."""


_SMALL = 1 << 16


class Stream:
    """Values row by row and little-endian. What was taken is overwritten when more is."""

    def __init__(self, tensor: TensorInfo, *, dense: Iterator[memoryview] | None = None) -> None:
        ranges = raw_ranges(tensor) if dense is None else None
        self._ranges = list(reversed(ranges or ()))
        self._at = 0
        self._blocks = dense if dense is not None else (iter(()) if ranges else blocks(tensor, most=STEP))
        self._held = memoryview(b"")
        self._buffer = bytearray(STEP) if ranges and tensor.nbytes >= STEP else bytearray()

    def ready(self) -> int:
        """Return how many bytes can be taken at once: at most `STEP`, 0 at the end."""
        if self._ranges:
            return min(STEP, self._ranges[-1].length - self._at)
        if not self._held:
            self._held = next(self._blocks, self._held)
        return min(STEP, len(self._held))

    def take(self, count: int) -> bytes | bytearray | memoryview:
        """Return that many bytes, which are `ready`."""
        if not self._ranges:
            taken, self._held = self._held[:count], self._held[count:]
            return taken
        place = self._ranges[-1]
        raw = self._read(place, count)
        self._at += count
        if self._at == place.length:
            self._ranges.pop()
            self._at = 0
        return raw

    def _read(self, place: ByteRange, count: int) -> bytes | bytearray:
        if count != len(self._buffer):
            return place.read(self._at, count)
        place.read_into(memoryview(self._buffer), self._at)
        return self._buffer


def small(tensor: TensorInfo) -> ByteRange | None:
    """Return the bytes of a tensor that lie in one place as they are, and are few enough to be read at once."""
    if len(tensor.pieces) != 1 or tensor.layout != "strided":
        return None
    piece = tensor.pieces[0]
    plain = not piece.encoding and piece.strides is None and piece.unpack is None and piece.inner is None
    few = piece.range.length <= _SMALL and piece.range.length * 8 == tensor.numel * tensor.dtype.bits
    return piece.range if plain and few and piece.shape == tensor.shape else None


def equal(one: bytes | bytearray | memoryview, other: bytes | bytearray | memoryview) -> bool:
    """Whether two buffers hold the same bytes; views are slow to compare with each other, arrays of bytes are not."""
    if isinstance(one, bytes) and isinstance(other, bytes):
        return one == other
    left = one if isinstance(one, bytearray) else bytearray(one)
    return left == other
