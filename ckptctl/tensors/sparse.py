"""Write sparse tensors out in full: zeros but where a value is stored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError, LimitError, UnsupportedError
from ckptctl.model import DTYPES, TensorInfo
from ckptctl.tensors._encodings import item
from ckptctl.tensors._sparse_items import Items, compressed_items, coo_items
from ckptctl.tensors.cast import TARGETS, cast
from ckptctl.tensors.gather import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_MOST_BYTES, _MOST_ITEMS, _MOST_ELEMENTS = 64 << 20, 1 << 24, 1 << 60
_FEW = 1 << 20
"""So many elements are put into their places at once."""
_NAMES = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
LAYOUTS = frozenset(_NAMES)
"""The layouts that are written out in full."""
_ADDED = {
    "BOOL": "?", "I8": "<i1", "U8": "<u1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
    "U64": "<u8", "F16": "<f4", "BF16": "<f4", "F32": "<f4", "F64": "<f8", "C64": "<c8", "C128": "<c16",
}  # fmt: skip
"""In which type several values for one place are added up."""


def densified(tensor: TensorInfo, *, most: int = 16 << 20) -> Iterator[memoryview]:
    """Yield the values of a sparse tensor as `blocks` yields those of a strided one of its dtype and shape.

    Values for the same place are added: narrow floats as float32 and rounded once, integers modulo
    their width. A stored minus zero stays one. All of what is stored is in memory meanwhile; how
    much is yielded, zeros included, is for the caller to judge.

    Raises
    ------
    ValueError
        The tensor's layout is not one of `LAYOUTS`.
    CorruptError
        Indices are outside the shape, or counts and shapes of its parts do not fit together.
    UnsupportedError
        Its values are narrower than a byte, or of a type whose values are not added up here and have to be.
    LimitError
        Its parts are more than 64 MiB, or it has more elements than any computer holds.
    """
    if tensor.layout not in LAYOUTS:
        raise ValueError(f"{tensor.name} is {tensor.layout}, not sparse")
    if tensor.dtype.bits % 8:
        raise UnsupportedError(f"{tensor.name} is sparse and of {tensor.dtype}, which is narrower than a byte")
    _check_limits(tensor)
    return _windows(tensor, _merged(tensor, _items(tensor)), most)


def stored_of_both(one: TensorInfo, other: TensorInfo) -> tuple[bytes, bytes, npt.NDArray[Any]] | None:
    """Return the values of two sparse tensors wherever either stores one, and where that is, row by row.

    None if one of them stores more than single values at their places; then both have to be written out.
    """
    import numpy as np

    items = []
    for tensor in (one, other):
        if tensor.layout not in LAYOUTS or tensor.dtype.bits % 8:
            return None
        _check_limits(tensor)
        items.append(_merged(tensor, _items(tensor)))
    if any(found.values.size and found.values.shape[1] != 1 for found in items):
        return None
    places = np.union1d(items[0].first, items[1].first)
    made = []
    for tensor, found in zip((one, other), items, strict=True):
        values = np.zeros(len(places), item(tensor.dtype))
        values[np.searchsorted(places, found.first)] = found.values.reshape(-1)
        made.append(values.tobytes())
    return made[0], made[1], places


def _check_limits(tensor: TensorInfo) -> None:
    size = sum(-(-part.numel * part.dtype.bits // 8) for part in tensor.parts)
    # Where a dimension is 0, there are no bytes to hold the others down.
    count = max((n for part in tensor.parts for n in (part.shape if 0 in part.shape else part.shape[:1])), default=0)
    elements = math.prod(max(length, 1) for length in tensor.shape)
    if size > _MOST_BYTES or count > _MOST_ITEMS or elements > _MOST_ELEMENTS:
        raise LimitError(
            f"{tensor.name} is sparse: its parts have {size} bytes (limit {_MOST_BYTES}), "
            f"it has {elements} elements (limit {_MOST_ELEMENTS})"
        )


def _items(tensor: TensorInfo) -> Items:
    """Read the parts, and tell where each stored item belongs."""
    parts = {part.name[len(tensor.name) + 1 :]: part for part in tensor.parts}
    names = _NAMES[tensor.layout]
    if any(name not in parts for name in names) or parts["values"].dtype is not tensor.dtype:
        raise CorruptError(f"{tensor.name} is {tensor.layout} and lacks {', '.join(names)} that go with it")
    indices = [_indices(parts[name], tensor.name) for name in names[:-1]]
    values = _read(parts["values"], item(tensor.dtype))
    if tensor.layout == "sparse_coo":
        return coo_items(tensor, indices[0], values)
    return compressed_items(tensor, indices[0], indices[1], values)


def _indices(part: TensorInfo, name: str) -> npt.NDArray[Any]:
    if part.dtype.name not in ("I64", "I32"):
        raise CorruptError(f"{name} is sparse and has indices of {part.dtype}")
    return _read(part, "<i8" if part.dtype.name == "I64" else "<i4").astype("<i8")


def _read(part: TensorInfo, code: Any) -> npt.NDArray[Any]:
    import numpy as np

    return np.frombuffer(b"".join(bytes(block) for block in blocks(part)), code).reshape(part.shape)


def _merged(tensor: TensorInfo, items: Items) -> Items:
    """Sort items by their places, and add up those of the same place in the order in which they are stored."""
    import numpy as np

    if not items.first.size:
        return items
    order = np.argsort(items.first, kind="stable")
    first, values = items.first[order], items.values[order]
    new = np.concatenate(([True], first[1:] != first[:-1]))
    if new.all():
        return Items(first, values, items.run, items.step)
    if tensor.dtype.name not in _ADDED:
        raise UnsupportedError(f"{tensor.name} has several values of {tensor.dtype} for one place")
    total = np.zeros((int(new.sum()), values.shape[1]), _ADDED[tensor.dtype.name])
    add: Any = np.logical_or if tensor.dtype.name == "BOOL" else np.add
    with np.errstate(all="ignore"):
        add.at(total, np.cumsum(new) - 1, _numbers(tensor, values))
    return Items(first[new], _bits(tensor, total), items.run, items.step)


def _numbers(tensor: TensorInfo, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return bits of the tensor's dtype as numbers that can be added."""
    import numpy as np

    code = _ADDED[tensor.dtype.name]
    if tensor.dtype.name in TARGETS:
        wide, _ = cast(values.tobytes(), tensor.dtype, DTYPES["F32"])
        return np.frombuffer(wide, code).reshape(values.shape)
    return values.view(code)


def _bits(tensor: TensorInfo, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    if tensor.dtype.name not in TARGETS:
        return numbers.view(item(tensor.dtype))
    narrow, _ = cast(numbers.tobytes(), DTYPES["F32"], tensor.dtype)
    return np.frombuffer(narrow, item(tensor.dtype)).reshape(numbers.shape)


def _windows(tensor: TensorInfo, items: Items, most: int) -> Iterator[memoryview]:
    import numpy as np

    step = min(max(most * 8 // tensor.dtype.bits, 1), max(tensor.numel, 1))
    buffer = np.empty(step, item(tensor.dtype))
    for start in range(0, tensor.numel, step):
        window = buffer[: min(step, tensor.numel - start)]
        window[...] = 0
        begin = int(np.searchsorted(items.first, start - items.span, side="right"))
        end = int(np.searchsorted(items.first, start + window.size, side="left"))
        for rows, columns in _tiles(begin, end, items.values.shape[1]):
            _place(items, rows, columns, start, window)
        yield window.view(np.uint8).data


def _tiles(begin: int, end: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of few elements that are all of the rows from `begin` to `end` of an array."""
    high = max(_FEW // max(width, 1), 1)
    for row in range(begin, end, high):
        for column in range(0, width, _FEW):
            yield slice(row, min(row + high, end)), slice(column, min(column + _FEW, width))


def _place(items: Items, rows: slice, columns: slice, start: int, window: npt.NDArray[Any]) -> None:
    """Put values into a window of the whole, which begins at element `start`."""
    import numpy as np

    line, along = np.divmod(np.arange(columns.start, columns.stop), items.run)
    places = items.first[rows, None] + (line * items.step + along - start)
    inside = (places >= 0) & (places < window.size)
    window[places[inside]] = items.values[rows, columns][inside]
