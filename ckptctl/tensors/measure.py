"""How far two tensors of one shape are apart: one pass over both in blocks, sums in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.tensors.apart import Part, apart
from ckptctl.tensors.stream import Stream, small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptctl.model import DType, TensorInfo
    from ckptctl.tensors.tolerance import Tolerance

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
    element that is farthest off, one that became NaN or infinite, or ceased to be, before all others. `ulps` is
    how many representable numbers lie between, at most; None for what is no floating type. `signs`, `nan` and
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
    worst: tuple[int, ...]
    worst_a: float | str
    worst_b: float | str
    ulps: int | None
    signs: int
    nan: int
    infinite: int


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

    power = 0
    with np.errstate(all="ignore"):
        found = _total(_parts(one, other, tolerance, dense, 0, progress))
        if dense == (None, None) and (power := _power(found)):
            # Squares of float64 overflow or vanish where the numbers themselves do not: the same once more, scaled.
            found.sums = _total(_parts(one, other, tolerance, dense, power, lambda _: None)).sums
    return _measures(found, one.shape, power, tolerance)


def _total(parts: Iterator[Part]) -> Part:
    found = next(parts)
    for part in parts:
        found.add(part)
    return found


def _power(found: Part) -> int:
    """By which power of two to multiply, if sums of squares are not to be had otherwise."""
    largest = found.max_abs
    if all(map(math.isfinite, found.sums)) and (found.sums[2] > 1e-290 or not largest):
        return 0
    return -600 if largest > 1 or not all(map(math.isfinite, found.sums)) else 600


def _parts(  # noqa: PLR0913, PLR0917  # what goes along with two streams
    one: TensorInfo,
    other: TensorInfo,
    tolerance: Tolerance | None,
    dense: tuple[Iterator[memoryview] | None, Iterator[memoryview] | None],
    power: int,
    progress: Callable[[int], None],
) -> Iterator[Part]:
    here, there = (small(one), small(other)) if dense == (None, None) else (None, None)
    if here and there and one.numel <= _PART:
        progress(here.length)
        yield apart(here.read(), there.read(), (one.dtype, other.dtype), tolerance, power)
        return
    left, right = Stream(one, dense=dense[0]), Stream(other, dense=dense[1])
    while count := min(_elements(left, one.dtype), _elements(right, other.dtype)):
        a, b = left.take(_bytes(count, one.dtype)), right.take(_bytes(count, other.dtype))
        for at in range(0, count, _PART):
            few = min(_PART, count - at)
            places = (slice(_bytes(at, dtype), _bytes(at + few, dtype)) for dtype in (one.dtype, other.dtype))
            x, y = (memoryview(raw)[place] for raw, place in zip((a, b), places, strict=True))
            yield apart(x, y, (one.dtype, other.dtype), tolerance, power)
        progress(len(a))


def _elements(stream: Stream, dtype: DType) -> int:
    return stream.ready() * 8 // dtype.bits


def _bytes(count: int, dtype: DType) -> int:
    return count * dtype.bits // 8


def _measures(found: Part, shape: tuple[int, ...], power: int, tolerance: Tolerance | None) -> Measures:
    scale = 2.0**-power
    a2, b2, d2, ab = found.sums
    norms = math.sqrt(a2) * math.sqrt(b2)
    relative = _ratio(math.sqrt(d2), math.sqrt(a2))
    return Measures(
        numel=found.numel,
        changed=found.changed,
        share=found.changed / found.numel if found.numel else 0.0,
        beyond=found.beyond if tolerance else None,
        max_abs=found.max_abs,
        mean_abs=found.size / found.finite if found.finite else 0.0,
        norm_a=math.sqrt(a2) * scale,
        norm_b=math.sqrt(b2) * scale,
        norm_delta=math.sqrt(d2) * scale,
        relative_l2=relative,
        snr_db=math.inf if not relative else -math.inf if math.isinf(relative) else -20 * math.log10(relative),
        cosine=ab / norms if norms and math.isfinite(norms) else None,
        worst=_index(found.worst, shape) if found.worst >= 0 else (),
        worst_a=found.worst_a,
        worst_b=found.worst_b,
        ulps=found.ulps,
        signs=found.signs,
        nan=found.nan,
        infinite=found.infinite,
    )


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        found.append(at)
    return tuple(reversed(found))


def _ratio(over: float, under: float) -> float:
    return over / under if under else math.inf if over else 0.0
