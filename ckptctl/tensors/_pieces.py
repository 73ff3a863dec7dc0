"""Read parts of pieces into arrays, whatever the pieces are packed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError, LimitError, UnsupportedError
from ckptctl.model import Encoding, Piece, TensorInfo, contiguous_strides
from ckptctl.tensors._boxes import Part, reads, span
from ckptctl.tensors._encodings import decode, item, text_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

_HELD = 32 << 20
"""So many bytes of unpacked pieces are kept for the next box; one piece is kept whatever its size."""
_PACKED = Encoding.ITEM | Encoding.CHUNK


class Pieces:
    """Reads parts of the pieces of one tensor; keeps unpacked ones until they are dropped."""

    def __init__(self, tensor: TensorInfo) -> None:
        self._tensor = tensor
        self._width = tensor.dtype.bits // 8
        self._item = item(tensor.dtype)
        self._held: dict[int, bytes] = {}

    def strides(self, piece: Piece) -> tuple[int, ...]:
        """Return how the elements of a piece lie in its bytes, or in those it unpacks to.

        Raises
        ------
        CorruptError
            They do not fit into its bytes.
        UnsupportedError
            They are packed, and nobody has said how to unpack them.
        """
        if not len(piece.shape) == len(piece.offsets) == len(self._tensor.shape):
            raise CorruptError(f"{self._what(piece)} has a block of other dimensions than its own")
        if piece.unpack:
            return contiguous_strides(piece.shape)
        if piece.encoding & _PACKED:
            raise UnsupportedError(f"{self._what(piece)} is packed in a way that is not unpacked here")
        strides = contiguous_strides(piece.shape) if piece.strides is None else piece.strides
        text = Encoding.LATIN1 in piece.encoding
        if min(strides, default=0) < 0 or (not text and span(piece.shape, strides) * self._width > piece.range.length):
            raise CorruptError(f"{self._what(piece)} reaches out of the {piece.range.length} bytes that it has")
        return tuple(stride if size > 1 else 0 for stride, size in zip(strides, piece.shape, strict=True))

    def read(self, part: Part, out: npt.NDArray[Any]) -> None:
        """Fill an array of `part.sizes` and of the `item` of the tensor; if values are encoded, a contiguous one."""
        if part.piece.unpack or Encoding.LATIN1 in part.piece.encoding:
            self._copy(self._unpacked(part.piece), part.offset * self._width, part.strides, out)
        else:
            for offset, place in reads(part, self._width):
                at: tuple[Any, ...] = (*place, ...)  # an array also of no dimension
                target = out[at]
                extent = span(target.shape, part.strides)
                raw = part.piece.range.read(offset * self._width, extent * self._width)
                self._copy(raw, 0, part.strides, target)
        if part.piece.encoding:
            decode(out, self._tensor.dtype, part.piece.encoding, self._what(part.piece))

    def drop(self, piece: Piece) -> None:
        """Forget what a piece unpacks to."""
        self._held.pop(id(piece), None)

    def _copy(self, raw: bytes, offset: int, strides: tuple[int, ...], out: npt.NDArray[Any]) -> None:
        import numpy as np

        steps = tuple(stride * self._width for stride in strides)
        out[...] = np.ndarray(out.shape, self._item, buffer=raw, offset=offset, strides=steps)

    def _unpacked(self, piece: Piece) -> bytes:
        held = self._held.get(id(piece))
        if held is not None:
            return held
        raw = piece.unpack() if piece.unpack else self._text(piece)
        needed = span(piece.shape, self.strides(piece)) * self._width
        if len(raw) < needed or (piece.unpack and len(raw) != needed):
            raise CorruptError(f"{self._what(piece)} unpacks to {len(raw)} bytes, {needed} are needed")
        if not self._held or sum(map(len, self._held.values())) + len(raw) <= _HELD:
            self._held[id(piece)] = raw
        return raw

    def _text(self, piece: Piece) -> bytes:
        if piece.range.length > 2 * _HELD:
            raise LimitError(
                f"{self._what(piece)} is a view of {piece.range.length} bytes of text; of one that is not stored "
                f"row by row at most {2 * _HELD} are read"
            )
        return b"".join(text_bytes(piece.range, self._what(piece), 1 << 20))

    def _what(self, piece: Piece) -> str:
        return f"{piece.range.file.path}: {self._tensor.name}"
