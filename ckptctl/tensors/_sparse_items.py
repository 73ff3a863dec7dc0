"""Where the stored items of a sparse tensor belong in the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ckptctl.model import TensorInfo


@dataclass(frozen=True, slots=True)
class Items:
    """Stored items, a row of `values` each, whose first element has the row-major index `first` in the whole.

    An item is lines of `run` elements that follow each other; lines are `step` elements apart.
    """

    first: npt.NDArray[Any]
    values: npt.NDArray[Any]
    run: int
    step: int

    @property
    def span(self) -> int:
        """How many elements of the whole lie from the first to the last of an item, both included."""
        lines: int = self.values.shape[1] // self.run
        return (lines - 1) * self.step + self.run


def coo_items(tensor: TensorInfo, indices: npt.NDArray[Any], values: npt.NDArray[Any]) -> Items:
    """Place items by `indices`, of shape (sparse dimensions, items); `values` is (items, dense dimensions...).

    Raises
    ------
    CorruptError
        An index is outside the shape, or the shapes do not fit together.
    """
    import numpy as np

    sparse = indices.shape[0] if indices.ndim == 2 else -1
    if (
        sparse > len(tensor.shape)
        or not values.ndim
        or indices.shape != (sparse, values.shape[0])
        or tensor.shape[sparse:] != values.shape[1:]
    ):
        raise _unfit(tensor)
    run = math.prod(values.shape[1:])
    first = np.zeros(values.shape[0], np.int64)
    step = run
    for size, index in zip(reversed(tensor.shape[:sparse]), indices[::-1], strict=True):
        _check_range(tensor, index, size)
        first += index * step
        step *= size
    return Items(first, values.reshape(len(first), run), max(run, 1), max(run, 1))


def compressed_items(
    tensor: TensorInfo, pointers: npt.NDArray[Any], plain: npt.NDArray[Any], values: npt.NDArray[Any]
) -> Items:
    """Place the items of a CSR, CSC, BSR or BSC tensor.

    `pointers` is (batch..., lines + 1), `plain` (batch..., items), `values` (batch..., items, block..., dense...).

    Raises
    ------
    CorruptError
        An index is outside the shape, pointers decrease, or the shapes do not fit together.
    """
    import numpy as np

    batch, blocked = pointers.ndim - 1, tensor.layout in ("sparse_bsr", "sparse_bsc")
    count = plain.shape[-1] if plain.ndim else 0
    if batch < 0 or values.ndim < batch + 1 + 2 * blocked or len(tensor.shape) < batch + 2:
        raise _unfit(tensor)
    high, wide = values.shape[batch + 1 : batch + 3] if blocked else (1, 1)
    rows, columns, dense = tensor.shape[batch], tensor.shape[batch + 1], tensor.shape[batch + 2 :]
    lead = tensor.shape[:batch]
    block = (high, wide) if blocked else ()
    if not high or not wide or rows % high or columns % wide or values.shape != (*lead, count, *block, *dense):
        raise _unfit(tensor)
    by_row = tensor.layout in ("sparse_csr", "sparse_bsr")
    lines, others = (rows // high, columns // wide) if by_row else (columns // wide, rows // high)
    if plain.shape != (*lead, count) or pointers.shape != (*lead, lines + 1):
        raise _unfit(tensor)
    _check_range(tensor, plain, others)
    line = _lines(tensor, pointers.reshape(-1, lines + 1), count)
    row, column = (line, plain.ravel()) if by_row else (plain.ravel(), line)
    run = math.prod(dense)
    whole = np.repeat(np.arange(math.prod(lead)), count) * (rows * columns * run)
    first = whole + (row * high * columns + column * wide) * run
    return Items(first, values.reshape(len(first), high * wide * run), max(wide * run, 1), columns * run)


def _lines(tensor: TensorInfo, pointers: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return the line of each item, batch after batch, from where the items of each line begin and end."""
    import numpy as np

    lengths = np.diff(pointers, axis=1)
    outside = ((pointers < 0) | (pointers > count)).any()
    if outside or (pointers[:, 0] != 0).any() or (pointers[:, -1] != count).any() or (lengths < 0).any():
        raise CorruptError(f"{tensor.name} is {tensor.layout} and its pointers do not go up from 0 to {count}")
    return np.repeat(np.tile(np.arange(lengths.shape[1]), len(lengths)), lengths.ravel())


def _check_range(tensor: TensorInfo, indices: npt.NDArray[Any], size: int) -> None:
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < size:
        raise CorruptError(f"{tensor.name} is {tensor.layout} and an index is outside its shape {list(tensor.shape)}")


def _unfit(tensor: TensorInfo) -> CorruptError:
    return CorruptError(f"{tensor.name} is {tensor.layout} and the shapes of its parts do not fit {list(tensor.shape)}")
