"""How far two tensors of one shape are apart: one pass over both in blocks, sums in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.tensors.apart import Part, apart
from ckptctl.tensors.compare import unravelled
from ckptctl.tensors.norms import derived, scaled_norms
from ckptctl.tensors.numbers import real
from ckptctl.tensors.stream import Stream, small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckptctl.model import DType, TensorInfo
    from ckptctl.tensors.tolerance import Tolerance

_LEAST = 1e-280
_PART = 1 << 14
"""Elements looked at together, so that what is worked out of them stays in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """How B differs from A, element by element; of complex numbers absolute values count.

    `changed` counts elements whose bits differ (of other types: once the wider one is rounded to the narrower), `share`
    is their part of all; `beyond` counts those that are not close, None if that was not asked. `max_abs` and `mean_abs`
    are the largest and the mean absolute difference of what is finite in both; `norm_a`, `norm_b` and `norm_delta` the
    square roots of the sums of squares of those; `relative_l2` is the norm of the difference over that of A, `cosine`
    None where a norm is 0, and `snr_db` the ratio of A to the difference in decibel. `worst` is the index of the
    element that is farthest off, one that became NaN or infinite, or ceased to be, before all others; None if none is.
    `ulps` is how many representable numbers lie between, at most; None for what is no floating type. `signs`, `nan` and
    `infinite` count elements whose sign, or being NaN or infinite, changed.
    """

    numel: int
    changed: int
    share: float
    beyond: int | None
    max_abs: float
    mean_abs: float
    norm_a: float
    norm_b: float
    norm_delta: float
    relative_l2: float
    cosine: float | None
    snr_db: float
    worst: tuple[int, ...] | None
    worst_a: float | str
    worst_b: float | str
    ulps: int | None
    signs: int
    nan: int
    infinite: int


def merged(several: Sequence[Measures]) -> Measures:
    """Return the measures of blocks as those of all of them; the worst element is that of the block that has it."""
    worst = max(several, key=lambda one: (one.nan + one.infinite > 0, one.max_abs, one.changed))
    numel = sum(one.numel for one in several)
    changed = sum(one.changed for one in several)
    ulps = [one.ulps for one in several if one.ulps is not None]
    beyond = [one.beyond for one in several if one.beyond is not None]
    norms = {name: math.hypot(*(getattr(one, name) for one in several)) for name in ("norm_a", "norm_b", "norm_delta")}
    products = sum((one.cosine or 0.0) * one.norm_a * one.norm_b for one in several)
    mean = sum(one.mean_abs * one.numel for one in several) / numel
    return replace(
        worst,
        max_abs=max(one.max_abs for one in several),
        numel=numel,
        changed=changed,
        share=changed / numel,
        beyond=sum(beyond) if beyond else None,
        ulps=max(ulps, default=None),
        signs=sum(one.signs for one in several),
        nan=sum(one.nan for one in several),
        infinite=sum(one.infinite for one in several),
        **derived(norms["norm_a"], norms["norm_b"], norms["norm_delta"], products, mean),
    )


def measure(
    one: TensorInfo,
    other: TensorInfo,
    *,
    tolerance: Tolerance | None = None,
    dense: tuple[Iterator[memoryview] | None, Iterator[memoryview] | None] = (None, None),
    progress: Callable[[int], None] = lambda _: None,
) -> Measures:
    """Measure how far the values of B, `other`, are from those of A, `one`; both must be numbers and of one shape.

    `dense` are the values themselves, for tensors that are stored in another way; `tolerance` says what is close;
    `progress` is told of the bytes of each side that were read.
    """
    import numpy as np

    dtypes = one.dtype, other.dtype
    with np.errstate(all="ignore"):
        parts = (apart(x, y, dtypes, tolerance) for x, y in _runs(one, other, dense, progress))
        found = next(parts)
        for part in parts:
            found.add(part)
        made = _measures(found, one.shape, tolerance)
        if dense == (None, None) and not _is_safe(found) and "F64" in map(real, dtypes):
            # Squares of float64 overflow or vanish where the numbers themselves do not.
            norms = scaled_norms(lambda: _runs(one, other, dense, lambda _: None), dtypes)
            made = replace(made, **norms)
    return made


def _is_safe(found: Part) -> bool:
    """Whether sums of squares are neither too large nor so small that some vanished."""
    return math.isfinite(found.size) and all(_LEAST < one < math.inf for one in found.sums[: 3 if found.changed else 2])


def _runs(
    one: TensorInfo,
    other: TensorInfo,
    dense: tuple[Iterator[memoryview] | None, Iterator[memoryview] | None],
    progress: Callable[[int], None],
) -> Iterator[tuple[bytes | bytearray | memoryview, bytes | bytearray | memoryview]]:
    """Yield the same few elements of both sides, run by run."""
    here, there = (small(one), small(other)) if dense == (None, None) else (None, None)
    if here and there and one.numel <= _PART:
        progress(here.length)
        yield here.read(), there.read()
        return
    left, right = Stream(one, dense=dense[0]), Stream(other, dense=dense[1])
    while count := min(_elements(left, one.dtype), _elements(right, other.dtype)):
        a, b = left.take(_bytes(count, one.dtype)), right.take(_bytes(count, other.dtype))
        for at in range(0, count, _PART):
            few = min(_PART, count - at)
            places = (slice(_bytes(at, dtype), _bytes(at + few, dtype)) for dtype in (one.dtype, other.dtype))
            x, y = (memoryview(raw)[place] for raw, place in zip((a, b), places, strict=True))
            yield x, y
        progress(len(a))


def _elements(stream: Stream, dtype: DType) -> int:
    return stream.ready() * 8 // dtype.bits


def _bytes(count: int, dtype: DType) -> int:
    return count * dtype.bits // 8


def _measures(found: Part, shape: tuple[int, ...], tolerance: Tolerance | None) -> Measures:
    a2, b2, d2, ab = found.sums
    norms = derived(math.sqrt(a2), math.sqrt(b2), math.sqrt(d2), ab, found.size / found.finite if found.finite else 0.0)
    return Measures(
        numel=found.numel,
        changed=found.changed,
        share=found.changed / found.numel if found.numel else 0.0,
        beyond=found.beyond if tolerance else None,
        max_abs=found.max_abs,
        **norms,
        worst=unravelled(found.worst, shape) if found.worst >= 0 else None,
        worst_a=found.worst_a,
        worst_b=found.worst_b,
        ulps=found.ulps,
        signs=found.signs,
        nan=found.nan,
        infinite=found.infinite,
    )
