"""One tensor's entry in a safetensors header: its three fields, and the arithmetic they must obey."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ckptctl.errors import CorruptError
from ckptctl.formats import _json
from ckptctl.model import DTYPES, DType

if TYPE_CHECKING:
    from pathlib import Path

_FIELDS = ("dtype", "shape", "data_offsets")
_PLACES = ("begin", "end")
_MOST_SIZES = 8
_U64 = 1 << 64
_STORABLE = {name: dtype for name, dtype in DTYPES.items() if dtype.storable}


class Entry(NamedTuple):
    """The fields of an entry, not yet checked."""

    dtype: object
    shape: object
    offsets: object


class Span(NamedTuple):
    """A checked entry; `begin` and `end` in bytes from the start of the data."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


def entry_hook(members: list[tuple[str, object]]) -> object:
    """Turn the members of a regular entry into an `Entry` at once; keep those of all else."""
    if len(members) == 3:
        (a, dtype), (b, shape), (c, offsets) = members
        usual = a == "dtype" and b == "shape" and c == "data_offsets"
        if usual and type(dtype) is str and type(shape) is list and type(offsets) is list:
            return Entry(dtype, shape, offsets)
    return _json.Pairs(members)


def normal_entry(where: str, name: str, value: object, warnings: list[tuple[str, str]]) -> Entry:
    """Read an entry that is not in the usual form, as the reference's parser happens to.

    Raises
    ------
    CorruptError
        The reference would not read it either.
    """
    if type(value) is list and len(value) == len(_FIELDS):
        warnings.append(("entry-as-list", f"the entry of {name} is a list, not an object"))
        return Entry(_dtype_name(value[0], name, warnings), value[1], value[2])
    if not isinstance(value, _json.Pairs):
        raise CorruptError(f"{where}: the entry of {name} is not an object")
    fields = dict(value)
    if sum(key in _FIELDS for key, _ in value) != len(_FIELDS) or any(field not in fields for field in _FIELDS):
        raise CorruptError(f"{where}: the entry of {name} lacks dtype, shape or data_offsets, or has one twice")
    if len(value) > len(_FIELDS):
        if _json.depth(value) + 1 > _json.MAX_DEPTH:
            raise CorruptError(f"{where} is nested too deeply")
        warnings.append(("unknown-field", f"the entry of {name} has fields that the format does not know"))
    return Entry(_dtype_name(fields["dtype"], name, warnings), fields["shape"], fields["data_offsets"])


def fields_of(path: Path, name: str, entry: Entry) -> tuple[DType, list[int], tuple[int, int]]:
    """Check the types of the fields of an entry.

    Raises
    ------
    CorruptError
        The dtype is unknown, or sizes or positions are no unsigned 64-bit integers.
    """
    dtype_name, shape, offsets = entry
    dtype = _STORABLE.get(dtype_name) if type(dtype_name) is str else None
    if dtype is None:
        seen = dtype_name[:40] if isinstance(dtype_name, str) else "something that is no name"
        raise CorruptError(f"{path}: tensor {name} has the unknown dtype {seen}")
    if type(shape) is not list or not all(_is_u64(size) for size in shape):
        raise CorruptError(f"{path}: tensor {name} has a shape that is not a list of sizes")
    if type(offsets) is not list or len(offsets) != len(_PLACES) or not all(_is_u64(offset) for offset in offsets):
        raise CorruptError(f"{path}: tensor {name} has data_offsets that are not two positions")
    return dtype, shape, (offsets[0], offsets[1])


def span_of(path: Path, name: str, entry: Entry) -> Span:
    """Check an entry whole: that its bytes are as many as its shape needs, too.

    Raises
    ------
    CorruptError
        Something about it does not hold.
    """
    dtype, shape, (begin, end) = fields_of(path, name, entry)
    bits, count = dtype.bits, 1
    for size in shape:
        count *= size
        if count >= _U64:
            break
    if count * bits >= _U64:
        raise CorruptError(f"{path}: the shape of tensor {name}, {_shape(shape)}, overflows")
    if end < begin or (end - begin) * 8 != count * bits:
        raise CorruptError(
            f"{path}: tensor {name}, {dtype} {_shape(shape)}, needs {count * bits / 8:g} bytes, "
            f"its data_offsets span {end - begin}"
        )
    return Span(dtype, tuple(shape), begin, end)


def _shape(shape: list[int]) -> str:
    more = ", …" if len(shape) > _MOST_SIZES else ""
    return f"[{', '.join(map(str, shape[:_MOST_SIZES]))}{more}]"


def _is_u64(value: object) -> bool:
    return type(value) is int and value < _U64


def _dtype_name(value: object, name: str, warnings: list[tuple[str, str]]) -> object:
    """The reference also reads ``{"F32": null}``, the long form of an enum's member."""
    if isinstance(value, _json.Pairs) and len(value) == 1 and value[0][1] is None:
        warnings.append(("dtype-as-object", f"the dtype of {name} is an object, not a name"))
        return value[0][0]
    return value
