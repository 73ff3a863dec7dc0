"""What the values of a tensor are like: NaN, infinities, nothing but zeros or subnormal numbers. By bits, in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptctl.tensors.gather import blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.model import TensorInfo

_PART = 1 << 17
"""Elements looked at together, so that what is worked out of them stays in the cache."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The bits of a floating type: width in bytes, sign, the pattern of infinity, the smallest normal number.

    Where a type has no infinity, `infinite` is one above its largest number, and everything from there on is NaN.
    One that has neither zero nor subnormal numbers has 0 for `normal`.
    """

    width: int
    sign: int
    infinite: int
    normal: int
    has_infinity: bool = True
    nan: int = -1
    """The only NaN, of types that have one with the sign bit alone; else everything above `infinite`."""


_LAYOUTS = {
    "F64": _Layout(8, 1 << 63, 0x7FF << 52, 1 << 52),
    "F32": _Layout(4, 1 << 31, 0xFF << 23, 1 << 23),
    "F16": _Layout(2, 1 << 15, 0x1F << 10, 1 << 10),
    "BF16": _Layout(2, 1 << 15, 0xFF << 7, 1 << 7),
    "F8_E5M2": _Layout(1, 1 << 7, 0x1F << 2, 1 << 2),
    "F8_E4M3": _Layout(1, 1 << 7, 0x7F, 1 << 3, has_infinity=False),
    "F8_E4M3FNUZ": _Layout(1, 1 << 7, 0x80, 1 << 3, has_infinity=False, nan=0x80),
    "F8_E5M2FNUZ": _Layout(1, 1 << 7, 0x80, 1 << 2, has_infinity=False, nan=0x80),
    "F8_E8M0": _Layout(1, 1 << 8, 1 << 8, 0, has_infinity=False, nan=0xFF),
}
_COMPLEX = {"C64": "F32", "C128": "F64", "C32": "F16"}


@dataclass(slots=True)
class Stats:
    """Counts over all elements of a tensor; of complex ones, over both parts.

    `first` is the flat index of the first element that is NaN or infinite, -1 if there is none.
    """

    nan: int = 0
    infinite: int = 0
    first: int = -1
    zero: bool = True
    subnormal: bool = True
    """Whether no element is larger than the subnormal numbers."""


def has_stats(tensor: TensorInfo) -> bool:
    """Whether a tensor holds numbers that could be NaN, and can be read."""
    known = tensor.dtype.name in _LAYOUTS or tensor.dtype.name in _COMPLEX
    return known and tensor.layout == "strided" and tensor.whole and bool(tensor.numel)


def stats(tensor: TensorInfo, progress: Callable[[int], None] = lambda _: None) -> Stats:
    """Go through the values of a tensor for which `has_stats` holds; `progress` is told of the bytes done."""
    import numpy as np  # only those who ask for values need it

    parts = 2 if tensor.dtype.name in _COMPLEX else 1
    layout = _LAYOUTS[_COMPLEX.get(tensor.dtype.name, tensor.dtype.name)]
    found, at = Stats(), 0
    for block in blocks(tensor, most=4 << 20):
        numbers = np.frombuffer(block, dtype=f"<u{layout.width}")
        for start in range(0, len(numbers), _PART):
            _look(np, numbers[start : start + _PART], layout, found, (at + start) // parts, parts)
        at += len(numbers)
        progress(len(block))
    found.subnormal = found.subnormal and not found.zero
    return found


def _look(np: Any, numbers: Any, layout: _Layout, found: Stats, at: int, parts: int) -> None:  # noqa: PLR0913, PLR0917
    """One pass over a part; a second one only if something is not finite."""
    if layout.nan >= 0:
        # The sign bit alone is NaN here: it is the largest number once one is taken from each.
        bad = numbers == layout.nan
        size = np.where(bad, 0, numbers & np.asarray(layout.sign - 1, numbers.dtype))
        wrong = bool(bad.any())
    else:
        size = numbers & np.asarray(layout.sign - 1, numbers.dtype)
        bad = None
        wrong = int(size.max()) >= layout.infinite
    if wrong:
        bad = size >= layout.infinite if bad is None else bad
        infinite = int(np.count_nonzero(size == layout.infinite)) if layout.has_infinity else 0
        found.infinite += infinite
        found.nan += int(np.count_nonzero(bad)) - infinite
        if found.first < 0:
            found.first = at + int(np.argmax(bad)) // parts
        found.zero = found.subnormal = False
    largest = int(size.max())
    found.zero = found.zero and largest == 0 and layout.normal > 0
    found.subnormal = found.subnormal and largest < layout.normal
