"""The header of an ``.npy`` array: a dtype, an order and a shape, written as a Python dict. Nothing is evaluated.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3, and of the dicts only those
that NumPy writes for arrays of plain numbers; what is not one of these is named.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, LimitError, UnsafePickleError, UnsupportedError
from ckptctl.model import DTYPES, contiguous_strides

if TYPE_CHECKING:
    from ckptctl.model import DType

MAGIC = b"\x93NUMPY"
PREAMBLE = 12
"""So many bytes, or fewer if there are no more, tell how long a header is."""
_MAX_HEADER, _MAX_DIMS, _MAX_BYTES, _SHOWN = 1 << 16, 64, 1 << 63, 80
_WIDTHS = {1: 2, 2: 4, 3: 4}
"""How many bytes give the length of the dict, by version."""
_DICT = re.compile(r"\{(.*)\} *\n", re.DOTALL)
_ITEM = re.compile(r" *'(descr|fortran_order|shape)' *: *('[^'\\]*'|True|False|\([0-9L, ]*\)) *(?:,|\Z)")
_SIZE = r"(?:0|[1-9][0-9]{0,18})L?"
_SHAPE = re.compile(rf"\((?:|{_SIZE},|{_SIZE}(?:, *{_SIZE})+,?) *\)")
_FIELDS = re.compile(r"\{ *'descr' *: *[\[(]")
_CODE = re.compile(r"([<>|=])?([A-Za-z?])([0-9]*)(\[.{1,20}\])?")
KINDS = {
    "f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64",
    "u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64", "b1": "BOOL", "c8": "C64", "c16": "C128",
}  # fmt: skip
"""Names of element types, by kind and width in bytes as NumPy writes them."""
_OTHERS = {
    "S": "text, which is not read",
    "U": "text, which is not read",
    "V": "opaque bytes (so NumPy writes bfloat16 and other types that are not its own), which are not read",
    "M": "dates, which are not read",
    "m": "spans of time, which are not read",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says, and how many bytes it takes, the first of the file included."""

    dtype: DType
    shape: tuple[int, ...]
    fortran: bool
    length: int

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        return math.prod(self.shape) * self.dtype.bits // 8

    @property
    def strides(self) -> tuple[int, ...] | None:
        """How values lie that do not lie row by row, in elements."""
        if not self.fortran or not self.nbytes or sum(size > 1 for size in self.shape) < 2:
            return None
        return contiguous_strides(self.shape[::-1])[::-1]


def length_of(head: bytes, what: str) -> int:
    """Return how long the header is that begins with these bytes; `what` begins the message if it is none.

    Raises
    ------
    CorruptError, UnsupportedError, LimitError
        It is no array of NumPy, of a version that is not known, or too long for one of numbers.
    """
    if not head.startswith(MAGIC) or len(head) < 8:
        raise CorruptError(f"{what} does not begin as a NumPy array does")
    width = _WIDTHS.get(head[6])
    if width is None or head[7]:
        raise UnsupportedError(f"{what} is of version {head[6]}.{head[7]} of the format, which is not known")
    length = int.from_bytes(head[8 : 8 + width], "little")
    if len(head) < 8 + width:
        raise CorruptError(f"{what} breaks off in its header")
    if length > _MAX_HEADER:
        raise LimitError(f"{what} has a header of {length} bytes (limit {_MAX_HEADER})")
    return 8 + width + length


def parse(raw: bytes, what: str) -> Header:
    """Read a whole header.

    Raises
    ------
    CorruptError
        It breaks a rule, or its shape is larger than any file.
    UnsupportedError
        The array holds something else than numbers in little-endian order.
    UnsafePickleError
        It holds Python objects.
    """
    if len(raw) != length_of(raw[:PREAMBLE], what):
        raise CorruptError(f"{what} breaks off in its header")
    try:
        text = raw[8 + _WIDTHS[raw[6]] :].decode("utf-8" if raw[6] == 3 else "latin1")
    except UnicodeDecodeError:
        raise CorruptError(f"{what} has a header that is not UTF-8") from None
    if _FIELDS.match(text):
        raise UnsupportedError(f"{what} is a structured array, of fields; only arrays of numbers are read")
    fields = _fields(text)
    order, shape = fields.get("fortran_order", ""), fields.get("shape", "")
    if order not in ("True", "False") or not _SHAPE.fullmatch(shape) or fields.get("descr", "")[:1] != "'":
        raise CorruptError(f"{what} has a header that is not one of NumPy: {text[:_SHOWN].rstrip()!r}")
    sizes = tuple(map(int, re.findall(r"[0-9]+", shape)))
    dtype = _dtype(fields["descr"][1:-1], what)
    if len(sizes) > _MAX_DIMS:
        raise CorruptError(f"{what} has {len(sizes)} dimensions (NumPy has at most {_MAX_DIMS})")
    if math.prod(size or 1 for size in sizes) * dtype.bits // 8 >= _MAX_BYTES:
        raise CorruptError(f"{what} has a shape that overflows: {shape[:_SHOWN]}")
    return Header(dtype, sizes, order == "True", len(raw))


def _fields(text: str) -> dict[str, str]:
    """Return the three items of the dict as they are written; none if there are others, or one is there twice."""
    found, items, at = _DICT.fullmatch(text), {}, 0
    body = found[1].rstrip(" ") if found else ""
    while at < len(body):
        item = _ITEM.match(body, at)
        if not item or item[1] in items:
            return {}
        items[item[1]] = item[2]
        at = item.end()
    return items


def _dtype(code: str, what: str) -> DType:
    found = _CODE.fullmatch(code)
    if not found:
        raise CorruptError(f"{what} has a dtype that NumPy does not write: {code[:_SHOWN]!r}")
    order, kind, width, _ = found.groups()
    if kind == "O":
        raise UnsafePickleError(
            f"{what} holds Python objects: a pickle, which a loader would run; it is not read",
            hint="save numbers as arrays of a plain dtype, and text as JSON beside them",
        )
    if kind in _OTHERS:
        raise UnsupportedError(f"{what} holds {_OTHERS[kind]}")
    known = KINDS.get(kind + width)
    if not known:
        raise UnsupportedError(f"{what} is of the dtype {code[:_SHOWN]!r}, which is not read")
    dtype = DTYPES[known]
    if order == ">" and dtype.bits > 8:
        raise UnsupportedError(
            f"{what} is big-endian ({code}), which is not read",
            hint="in NumPy: array.astype(array.dtype.newbyteorder('<')) and save it again",
        )
    if order != "<" and dtype.bits > 8:
        raise CorruptError(f"{what} has a dtype that NumPy does not write: {code!r}")
    return dtype
