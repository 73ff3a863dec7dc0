"""Undo what a piece's encoding says: swapped bytes, conjugation, negation, bytes written as text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError, UnsupportedError
from ckptctl.model import DType, Encoding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from ckptctl.storage import ByteRange

_UNSIGNED = frozenset({"BOOL", "F8_E8M0"})


def item(dtype: DType) -> np.dtype[Any]:
    """Return a NumPy type as wide as an element, whose copies are exact: its bits are not interpreted."""
    import numpy as np

    width = dtype.bits // 8
    return np.dtype("<c16" if width == 16 else f"<u{width}")


def decode(values: npt.NDArray[Any], dtype: DType, encoding: Encoding, what: str) -> None:
    """Turn the elements of a contiguous array, which are bits of `dtype`, into little-endian values, in place.

    Raises
    ------
    UnsupportedError
        The negative is meant of what has no sign; `what` names the tensor.
    """
    import numpy as np

    pair = dtype.name.startswith("C")
    width = dtype.bits // 8 // (2 if pair else 1)
    flat = values.reshape(-1).view(f"<u{width}")
    sign = flat.dtype.type(1 << (8 * width - 1))
    if Encoding.SWAPPED in encoding:
        flat.byteswap(inplace=True)
    if Encoding.CONJ in encoding and pair:
        np.bitwise_xor(flat[1::2], sign, out=flat[1::2])
    if Encoding.NEG not in encoding:
        return
    if dtype.name in _UNSIGNED:
        raise UnsupportedError(f"{what} is the negative of {dtype.name}, which has no sign")
    if dtype.name.endswith("FNUZ"):  # where minus zero would stand is NaN
        np.bitwise_xor(flat, sign, out=flat, where=(flat & ~sign) != 0)
    elif dtype.name[0] in "FBC":
        np.bitwise_xor(flat, sign, out=flat)
    else:
        np.negative(flat, out=flat)


def text_bytes(source: ByteRange, what: str, most: int) -> Iterator[bytes]:
    """Yield the bytes that UTF-8 text stands for, a character each, from at most `most` bytes of it at a time.

    Raises
    ------
    CorruptError
        It is no such text; `what` names the tensor.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, source.length, most):
            length = min(most, source.length - at)
            yield decoder.decode(source.read(at, length), final=at + length == source.length).encode("latin1")
    except UnicodeError:
        raise CorruptError(f"{what} is not text of which each character stands for a byte") from None
