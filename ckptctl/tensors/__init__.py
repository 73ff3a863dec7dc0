"""Bring the bytes of tensors together and read values out of them."""

from __future__ import annotations

import struct

from ckptctl.model import Encoding, TensorInfo

_CODES = {
    "BOOL": "?", "I8": "b", "U8": "B", "I16": "h", "U16": "H", "I32": "i", "U32": "I",
    "I64": "q", "U64": "Q", "F16": "e", "F32": "f", "F64": "d",
}  # fmt: skip

_LONGEST = 16
"""Bytes of the longest number, when each of them is written as a character of two."""


def scalar(tensor: TensorInfo) -> float | None:
    """Read the value of a tensor of one real number; None if it is not one, or not here.

    Works without NumPy, for the few numbers (a step, a best metric) that a listing needs.
    """
    if tensor.numel != 1 or len(tensor.pieces) != 1 or tensor.layout != "strided":
        return None
    piece = tensor.pieces[0]
    if piece.unpack or piece.range.length > _LONGEST:
        return None
    raw = piece.range.read()
    if piece.encoding is Encoding.LATIN1:
        raw = raw.decode().encode("latin1")
    order = ">" if Encoding.SWAPPED in piece.encoding else "<"
    if tensor.dtype.name == "BF16":
        raw, code = (raw + bytes(2) if order == ">" else bytes(2) + raw), "f"
    else:
        code = _CODES.get(tensor.dtype.name, "")
    if not code or struct.calcsize(code) != len(raw):
        return None
    value: float = struct.unpack(order + code, raw)[0]
    return -value if Encoding.NEG in piece.encoding else value
