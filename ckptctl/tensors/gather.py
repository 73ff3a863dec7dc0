"""Bring the values of a tensor together in their logical order, wherever and however they are stored."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError, UnsupportedError
from ckptctl.model import Encoding, Piece, TensorInfo, contiguous_strides
from ckptctl.storage import MemoryFile
from ckptctl.tensors._boxes import Box, Part, boxes, overlap
from ckptctl.tensors._encodings import decode, item, text_bytes
from ckptctl.tensors._pieces import Pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from ckptctl.storage import ByteRange

    _Entry = tuple[int, int, Piece, tuple[int, ...]]
    """Row-major indices of a piece's first and last element in the whole, the piece, and its strides."""
_NEAR = 64 << 20
"""Bytes of a tensor in a store that are read at once where its values do not follow each other."""


def raw_range(tensor: TensorInfo) -> ByteRange | None:
    """Return the bytes that are the tensor's values as they are to be written, if there is one such range.

    That is: row by row, little-endian, nothing to decode. None also for a tensor without elements.
    """
    if tensor.layout != "strided" or len(tensor.pieces) != 1 or not tensor.numel:
        return None
    piece = opened(tensor).pieces[0]
    plain = piece.encoding is Encoding.RAW and piece.strides is None and piece.unpack is None
    fits = piece.shape in (tensor.shape, (tensor.numel,)) and piece.range.length == tensor.nbytes
    return piece.range if plain and fits else None


def raw_ranges(tensor: TensorInfo) -> tuple[ByteRange, ...] | None:
    """Return the bytes of several pieces that are, one after another, the tensor's values as they are to be written.

    None if some have to be decoded, or do not follow each other.
    """
    if tensor.layout != "strided" or tensor.dtype.bits % 8 or not tensor.numel:
        return None
    tensor = _as_row(opened(tensor))
    inner = contiguous_strides(tensor.shape)
    found: list[ByteRange] = []
    end = 0
    pieces = [piece for piece in tensor.pieces if 0 not in piece.shape]
    for piece in sorted(pieces, key=lambda one: sum(at * step for at, step in zip(one.offsets, inner, strict=True))):
        plain = piece.encoding is Encoding.RAW and piece.strides is None and piece.unpack is None
        rows = piece.shape[1:] == tensor.shape[1:] and not any(piece.offsets[1:])
        nbytes = math.prod(piece.shape) * tensor.dtype.bits // 8
        if not plain or not rows or piece.offsets[:1] != (end,)[: len(tensor.shape)] or piece.range.length != nbytes:
            return None
        found.append(piece.range)
        end += piece.shape[0] if piece.shape else 1
    return tuple(found) if end == (tensor.shape[0] if tensor.shape else 1) else None


def _as_row(tensor: TensorInfo) -> TensorInfo:
    """Return a tensor whose pieces are runs of its elements as the row that they are runs of."""
    runs = len(tensor.shape) != 1 and bool(tensor.pieces) and all(len(piece.shape) == 1 for piece in tensor.pieces)
    return replace(tensor, shape=(tensor.numel,)) if runs else tensor


def opened(tensor: TensorInfo) -> TensorInfo:
    """Return the tensor with the pieces that lie inside whole files of their own, in place of those files.

    Raises
    ------
    CkptctlError
        Such a file cannot be read, or holds something else.
    """
    if not any(piece.inner for piece in tensor.pieces):
        return tensor
    return replace(tensor, pieces=tuple(piece.inner() if piece.inner else piece for piece in tensor.pieces))


def blocks(tensor: TensorInfo, *, most: int = 16 << 20) -> Iterator[memoryview]:
    """Yield the values of a strided tensor, row by row and little-endian, in blocks of at most `most` bytes.

    A block is a whole number of elements, and is overwritten when the next one is asked for. Memory
    is a small multiple of `most`, however large the tensor is, and 32 MiB more for pieces that have
    to be unpacked (or the largest one of them).

    Raises
    ------
    ValueError
        The tensor's layout is not ``strided``.
    CorruptError
        Its pieces do not cover it, or do not hold what they should.
    UnsupportedError
        Its elements are narrower than a byte and not stored as plain bytes, or it is packed in a way
        that nobody has said how to unpack.
    LimitError
        It is a view of long text that stands for bytes.
    """
    if tensor.layout != "strided":
        raise ValueError(f"{tensor.name} is {tensor.layout}, not strided")
    if not tensor.numel:
        return iter(())
    if not tensor.whole:
        raise _incomplete(tensor)
    tensor = _as_row(opened(tensor))
    source = raw_range(tensor)
    if source is not None:
        return _plain(source, math.lcm(tensor.dtype.bits, 8) // 8, most)
    if tensor.dtype.bits % 8:
        raise UnsupportedError(
            f"{tensor.name}: elements of {tensor.dtype.bits} bits ({tensor.dtype}) are read only where they lie plainly"
        )
    return _text(tensor, most) if _is_text(tensor) else _gathered(tensor, most)


def _incomplete(tensor: TensorInfo) -> CorruptError:
    where = f"{tensor.pieces[0].range.file.path}: " if tensor.pieces else ""
    return CorruptError(f"{where}{tensor.name} is not whole: a block of its values is not here")


def _plain(source: ByteRange, unit: int, most: int) -> Iterator[memoryview]:
    step = max(most - most % unit, unit)
    for at in range(0, source.length, step):
        yield memoryview(source.read(at, min(step, source.length - at)))


def _is_text(tensor: TensorInfo) -> bool:
    piece = tensor.pieces[0]
    rows = piece.strides is None and piece.unpack is None and piece.shape == tensor.shape
    return rows and Encoding.LATIN1 in piece.encoding and len(tensor.pieces) == 1


def _text(tensor: TensorInfo, most: int) -> Iterator[memoryview]:
    """Yield the values of a tensor that is one text, without ever having all of it."""
    import numpy as np

    piece, width = tensor.pieces[0], tensor.dtype.bits // 8
    what = f"{piece.range.file.path}: {tensor.name}"
    left, rest = tensor.nbytes, b""
    for raw in text_bytes(piece.range, what, max(most - width, 1)):
        rest += raw
        ready, rest = rest[: len(rest) // width * width], rest[len(rest) // width * width :]
        left -= len(ready)
        if left < 0:
            break
        if ready:
            values = np.frombuffer(bytearray(ready), item(tensor.dtype))
            decode(values, tensor.dtype, piece.encoding, what)
            yield values.view(np.uint8).data
    if left or rest:
        raise CorruptError(f"{what} is text that stands for more or fewer bytes than the {tensor.nbytes} it needs")


def _gathered(tensor: TensorInfo, most: int) -> Iterator[memoryview]:
    """Yield the values of a tensor box by box."""
    import numpy as np

    tensor = _brought_near(tensor)
    width = tensor.dtype.bits // 8
    room = min(max(most // width, 1), tensor.numel)
    buffer = np.empty(room, item(tensor.dtype))
    pieces = Pieces(tensor)
    sweep = _Sweep(tensor, pieces)
    for box in boxes(tensor.shape, room):
        parts = sweep.parts(box)
        raw = _direct(parts, width)
        if raw is not None:
            yield memoryview(raw)
            continue
        out = buffer[: box.numel]
        if not _fill(out.reshape(box.shape), parts, pieces):
            raise _incomplete(tensor)
        yield out.view(np.uint8).data


def _brought_near(tensor: TensorInfo) -> TensorInfo:
    """Read pieces of a store whose values do not follow each other at once: each box would ask for most of it again."""
    left, pieces = _NEAR, []
    for piece in tensor.pieces:
        if piece.strides is not None and piece.range.distant and piece.range.length <= left:
            left -= piece.range.length
            near = MemoryFile(piece.range.read(), path=piece.range.file.path).range()
            pieces.append(replace(piece, range=near))
        else:
            pieces.append(piece)
    return replace(tensor, pieces=tuple(pieces))


def _direct(parts: list[Part], width: int) -> bytes | None:
    """Return the bytes of a box that lies in a file as it is."""
    part = parts[0] if parts else None
    if part is None or not part.whole or part.piece.encoding or part.piece.unpack or not part.dense:
        return None
    return part.piece.range.read(part.offset * width, math.prod(part.sizes) * width)


def _fill(out: npt.NDArray[Any], parts: list[Part], pieces: Pieces) -> bool:
    """Fill an array of a box's shape; return whether the parts cover it. Parts may overlap."""
    import numpy as np

    if parts and parts[0].whole:
        pieces.read(parts[0], out)
        return True
    if _tile(parts, out.size):
        for part in parts:
            pieces.read(part, out[part.place])
        return True
    filled = np.zeros(out.shape, np.bool_)
    for part in parts:
        block = np.empty(part.sizes, out.dtype)
        pieces.read(part, block)
        out[part.place] = block
        filled[part.place] = True
    return bool(filled.all())


def _tile(parts: list[Part], size: int) -> bool:
    """Whether parts are, as they lie in their files, all of a box and none of it twice."""
    if sum(math.prod(part.sizes) for part in parts) != size or any(p.piece.encoding or p.piece.unpack for p in parts):
        return False
    for index, part in enumerate(parts):
        for other in parts[index + 1 :]:
            if all(a.start < b.stop and b.start < a.stop for a, b in zip(part.place, other.place, strict=True)):
                return False
    return True


class _Sweep:
    """The pieces of a tensor in the order of their first elements, as boxes pass over them."""

    def __init__(self, tensor: TensorInfo, pieces: Pieces) -> None:
        steps = contiguous_strides(tensor.shape)
        self._pieces = pieces
        self._active: list[_Entry] = []
        held = [(piece, pieces.strides(piece)) for piece in tensor.pieces if 0 not in piece.shape]
        entries = [(*_ends(piece, steps), piece, strides) for piece, strides in held]
        self._todo: list[_Entry] = sorted(entries, key=lambda entry: entry[0], reverse=True)

    def parts(self, box: Box) -> list[Part]:
        """Return what pieces hold of a box, which follows the last one asked for; one that is all of it alone."""
        while self._todo and self._todo[-1][0] < box.first + box.numel:
            self._active.append(self._todo.pop())
        for _, last, piece, _ in self._active:
            if last < box.first:
                self._pieces.drop(piece)
        self._active = [entry for entry in self._active if entry[1] >= box.first]
        found: list[Part] = []
        for _, _, piece, strides in self._active:
            part = overlap(box, piece, strides)
            if part is not None and part.whole:
                return [part]
            if part is not None:
                found.append(part)
        return found


def _ends(piece: Piece, steps: tuple[int, ...]) -> tuple[int, int]:
    """Return the row-major indices, in the whole tensor, of the first and the last element of a piece."""
    first = sum(at * step for at, step in zip(piece.offsets, steps, strict=True))
    return first, first + sum((size - 1) * step for size, step in zip(piece.shape, steps, strict=True))
