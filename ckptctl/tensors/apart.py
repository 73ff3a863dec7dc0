"""How far two runs of elements are apart: what `measure` adds up, of as many elements as stay in the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptctl.tensors.cast import FLOATS
from ckptctl.tensors.numbers import codes, integers, is_complex, is_integer, numbers, real
from ckptctl.tensors.rounded import rounded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ckptctl.model import DType
    from ckptctl.tensors.tolerance import Tolerance

    Array = npt.NDArray[Any]
    Bytes = bytes | bytearray | memoryview


@dataclass(slots=True, kw_only=True)
class Part:
    """Counts and sums over some elements. `sums` are of squares of A, of B, of the difference, and of A times B."""

    numel: int
    finite: int
    sums: tuple[float, float, float, float]
    changed: int = 0
    beyond: int = 0
    max_abs: float = 0
    size: float = 0.0
    worst: int = -1
    worst_rank: float = -1.0
    worst_a: float | str = 0.0
    worst_b: float | str = 0.0
    ulps: int | None = None
    signs: int = 0
    nan: int = 0
    infinite: int = 0

    def add(self, after: Part) -> None:
        """Count the elements that follow as well."""
        if after.worst_rank > self.worst_rank:
            self.worst, self.worst_rank = self.numel + after.worst, after.worst_rank
            self.worst_a, self.worst_b = after.worst_a, after.worst_b
        self.numel += after.numel
        self.finite += after.finite
        self.changed += after.changed
        self.beyond += after.beyond
        self.size += after.size
        self.signs += after.signs
        self.nan += after.nan
        self.infinite += after.infinite
        self.max_abs = max(self.max_abs, after.max_abs)
        a2, b2, d2, ab = self.sums
        p2, q2, e2, pq = after.sums
        self.sums = (a2 + p2, b2 + q2, d2 + e2, ab + pq)
        if after.ulps is not None:
            self.ulps = max(self.ulps or 0, after.ulps)


def apart(x: Bytes, y: Bytes, dtypes: tuple[DType, DType], tolerance: Tolerance | None) -> Part:
    """Compare elements of A and of B.

    What overflows or is no number is for the caller to pass over in silence, once for all parts.
    """
    return _Pair(x, y, dtypes).part(tolerance)


class _Pair:
    """The elements of both sides as codes and as numbers; complex ones as two of each."""

    def __init__(self, x: Bytes, y: Bytes, dtypes: tuple[DType, DType]) -> None:
        self._raw, self._dtypes = (x, y), dtypes
        self._same = dtypes[0].name == dtypes[1].name
        self._pairs = is_complex(dtypes[0]) or is_complex(dtypes[1])
        bits = codes(x, dtypes[0]), codes(y, dtypes[1])
        self._a, self._b = numbers(bits[0], dtypes[0]), numbers(bits[1], dtypes[1])
        if self._pairs:
            self._a, self._b = _as_pairs(self._a, dtypes[0]), _as_pairs(self._b, dtypes[1])
        self._codes, self._coded = (bits, dtypes[0]) if self._same else rounded(bits, (self._a, self._b), dtypes)

    def part(self, tolerance: Tolerance | None) -> Part:
        import numpy as np

        a, b = self._a, self._b
        different = self._codes[0] != self._codes[1]
        if not self._same:
            different &= ~(np.isnan(a) & np.isnan(b))
        each = self._each(different)
        changed = int(np.count_nonzero(each))
        if self._same and not changed:
            return _equal(a, self._numel, self._elementwise)
        return self._apart(different, each, changed, tolerance)

    @property
    def _integers(self) -> bool:
        return not self._same and all(map(is_integer, self._dtypes))

    @property
    def _numel(self) -> int:
        return len(self._a) // 2 if self._pairs else len(self._a)

    def _each(self, flags: Array) -> Array:
        """Of complex numbers: whether it holds for either part."""
        return flags[::2] | flags[1::2] if self._pairs else flags

    def _elementwise(self, flags: Array) -> Array:
        """Of complex numbers: whether it holds for both parts, said of each."""
        import numpy as np

        found: Array = np.repeat(flags.reshape(-1, 2).all(axis=1), 2) if self._pairs else flags
        return found

    def _apart(self, different: Array, each: Array, changed: int, tolerance: Tolerance | None) -> Part:
        import numpy as np

        a, b = self._a, self._b
        delta = self._delta()
        size = self._sizes(delta)
        if self._integers:  # of two types, as float64: apart by one at least
            size = np.maximum(size, each)
        total = float(size.sum())
        if not math.isfinite(total):
            return self._partly(different, each, changed, tolerance)
        found = Part(numel=self._numel, finite=self._numel, sums=_sums(a, b, delta), changed=changed)
        found.size, found.max_abs = total, self._largest(size)
        found.signs = self._signs(None)
        found.ulps = self._ulps(None)
        self._worst(found, None, size, each)
        if tolerance:
            found.beyond = int(np.count_nonzero(size > self._close(tolerance, a)))
        return found

    def _partly(self, different: Array, each: Array, changed: int, tolerance: Tolerance | None) -> Part:
        """Compare where some numbers are not finite; those have counts of their own."""
        import numpy as np

        a, b = self._a, self._b
        ok = self._elementwise(np.isfinite(a) & np.isfinite(b))
        usable = ok if not self._pairs else ok[::2]
        nan_a, nan_b = self._each(np.isnan(a)), self._each(np.isnan(b))
        infinite = self._each((np.isinf(a) | np.isinf(b)) & (a != b)) & ~nan_a & ~nan_b
        sized = np.where(usable, self._sizes(self._delta()), 0)
        found = Part(
            numel=self._numel, finite=int(np.count_nonzero(usable)), sums=_sums(a[ok], b[ok], (b - a)[ok]),
            changed=changed, nan=int(np.count_nonzero(nan_a != nan_b)), infinite=int(np.count_nonzero(infinite)),
        )  # fmt: skip
        found.size, found.max_abs = float(sized.sum()), self._largest(sized)
        found.signs = self._signs(~(nan_a | nan_b))
        found.ulps = self._ulps(different & ok)
        self._worst(found, each & ~usable, sized, each)
        if tolerance:
            far = sized > self._close(tolerance, np.where(ok, a, 0))
            found.beyond = int(np.count_nonzero(far | (each & ~usable & ~(nan_a & nan_b))))
        return found

    def _close(self, tolerance: Tolerance, a: Array) -> Array:
        rtol, atol = tolerance.of(*self._dtypes)
        return atol + rtol * self._sizes(a)

    def _signs(self, numbers: Array | None) -> int:
        """Count elements whose sign changed, among those that are numbers; None if all are."""
        import numpy as np

        one, other = self._codes
        if self._coded is not None and self._coded.name == "F8_E8M0":
            return 0  # it has no sign
        if self._same and real(self._dtypes[0]) in FLOATS:
            turned = (one ^ other) >> one.dtype.type(8 * one.itemsize - 1)
        else:
            turned = np.signbit(self._a) != np.signbit(self._b)
        turned = self._each(turned)
        return int(np.count_nonzero(turned if numbers is None else turned.astype(np.bool_) & numbers))

    def _sizes(self, values: Array) -> Array:
        import numpy as np

        found: Array = np.hypot(values[::2], values[1::2]) if self._pairs else np.abs(values)
        return found

    def _delta(self) -> Array:
        """Return B less A; of integers worked out before they are rounded, without a sign."""
        exact = self._exact
        return self._b - self._a if exact is None else exact.astype("<f8")

    @cached_property
    def _exact(self) -> Array | None:
        """Return the absolute differences of integers of one type."""
        import numpy as np

        if not (self._same and is_integer(self._dtypes[0])):
            return None
        x, y = (integers(raw, self._dtypes[0]) for raw in self._raw)
        up, unsigned = x > y, f"<u{x.itemsize}"
        found: Array = np.where(up, x.view(unsigned) - y.view(unsigned), y.view(unsigned) - x.view(unsigned))
        return found

    def _largest(self, sized: Array) -> float:
        """Return the largest difference; of integers exactly."""
        exact = self._exact
        return float(sized.max()) if exact is None else int(exact.max())

    def _ulps(self, among: Array | None) -> int | None:
        """Return how many numbers of the type lie between, at most; of elements `among` all, None if of all."""
        import numpy as np

        if self._coded is None or real(self._coded) not in FLOATS:
            return None
        one, other = self._codes if among is None else (self._codes[0][among], self._codes[1][among])
        if not len(one):
            return 0
        if one.itemsize < 8:
            delta = _ordered(other, self._coded) - _ordered(one, self._coded)
            return int(max(delta.max(), -delta.min()))
        top = one.dtype.type(1 << 63)
        m, n = one & ~top, other & ~top
        return int(np.where((one ^ other) & top, m + n, np.where(m > n, m - n, n - m)).max())

    def _worst(self, found: Part, lost: Array | None, sized: Array, each: Array) -> None:
        """Note the element that is farthest off; one that is not finite before all others."""
        import numpy as np

        if lost is not None and lost.any():
            found.worst, found.worst_rank = int(np.argmax(lost)), math.inf
        elif found.max_abs > 0:
            found.worst = int(np.argmax(sized))
            found.worst_rank = float(sized[found.worst])
        elif found.changed:
            found.worst, found.worst_rank = int(np.argmax(each)), 0.0
        else:
            return
        found.worst_a, found.worst_b = self._value(0, found.worst), self._value(1, found.worst)

    def _value(self, side: int, at: int) -> float | str:
        values, dtype = (self._a, self._b)[side], self._dtypes[side]
        if self._pairs:
            return str(complex(values[2 * at], values[2 * at + 1])).strip("()")
        return int(integers(self._raw[side], dtype)[at]) if is_integer(dtype) else float(values[at])


def _as_pairs(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[np.float64]:
    import numpy as np

    return values if is_complex(dtype) else np.stack([values, np.zeros_like(values)], axis=1).reshape(-1)


def _equal(a: Array, numel: int, elementwise: Any) -> Part:
    import numpy as np

    square = dot(a, a)
    if math.isfinite(square):
        return Part(numel=numel, finite=numel, sums=(square, square, 0.0, square))
    ok = elementwise(np.isfinite(a))
    square = dot(a[ok], a[ok])
    return Part(numel=numel, finite=int(np.count_nonzero(ok)) * numel // len(a), sums=(square, square, 0.0, square))


def _ordered(bits: Array, dtype: DType) -> Array:
    """Return numbers that are one apart for neighbours: the bits without the sign, negative ones turned around."""
    wide = "<i8" if bits.itemsize > 2 else "<i4"
    if dtype.name == "F8_E8M0":
        return bits.astype(wide)
    signed = bits.view(f"<i{bits.itemsize}").astype(wide)
    negative = signed >> (8 * signed.itemsize - 1)
    signed &= (1 << (8 * bits.itemsize - 1)) - 1
    signed ^= negative
    signed -= negative
    return signed


def _sums(a: Array, b: Array, delta: Array) -> tuple[float, float, float, float]:
    return dot(a, a), dot(b, b), dot(delta, delta), dot(a, b)


def dot(a: Array, b: Array) -> float:
    """Return the sum of products; not by a library of linear algebra, which has threads of its own."""
    import numpy as np

    return float(np.einsum("i,i->", a, b))
