"""Norms of float64 whose squares overflow or vanish: each scaled by a power of two of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptctl.tensors.numbers import codes, is_complex, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from ckptctl.model import DType

    Array = npt.NDArray[Any]
    Runs = Callable[[], Iterator[tuple[bytes | bytearray | memoryview, bytes | bytearray | memoryview]]]


def scaled_norms(runs: Runs, dtypes: tuple[DType, DType]) -> dict[str, Any]:
    """Return the measures that rest on sums of squares, of what is finite in both; reads it all twice."""
    import numpy as np

    largest = _Largest()
    for a, b in _finite(runs, dtypes):
        largest.see(a, b)
    half = math.isinf(largest.delta)  # it is taken of halves then, which lose nothing that counts beside it
    if half:
        largest.delta = largest.delta_of_halves
    pa, pb, pd = (-math.frexp(one)[1] for one in (largest.a, largest.b, largest.delta))
    sums, size, count = np.zeros(4), 0.0, 0
    for a, b in _finite(runs, dtypes):
        delta = np.ldexp(b * 0.5 - a * 0.5 if half else b - a, pd)
        x, y = np.ldexp(a, pa), np.ldexp(b, pb)
        sums += [np.dot(x, x), np.dot(y, y), np.dot(delta, delta), np.dot(x, y)]
        pairs = any(map(is_complex, dtypes))
        size += float((np.hypot(delta[::2], delta[1::2]) if pairs else np.abs(delta)).sum())
        count += len(a) // (2 if pairs else 1)
    a2, b2, d2, ab = map(float, sums)
    shift = (1 if half else 0) - pd
    return derived(
        _ldexp(math.sqrt(a2), -pa), _ldexp(math.sqrt(b2), -pb), _ldexp(math.sqrt(d2), shift),
        ab, _ldexp(size / count if count else 0.0, shift), norms=math.sqrt(a2) * math.sqrt(b2),
        relative=_ldexp(_ratio(math.sqrt(d2), math.sqrt(a2)), shift + pa),
    )  # fmt: skip


def derived(  # noqa: PLR0913  # sums, and what they come to
    norm_a: float,
    norm_b: float,
    norm_delta: float,
    ab: float,
    mean: float,
    *,
    norms: float | None = None,
    relative: float | None = None,
) -> dict[str, Any]:
    """Return what follows from norms and from the sum of products `ab`; `norms` is what that is to be divided by."""
    relative = _ratio(norm_delta, norm_a) if relative is None else relative
    norms = norm_a * norm_b if norms is None else norms
    return {
        "mean_abs": mean,
        "norm_a": norm_a,
        "norm_b": norm_b,
        "norm_delta": norm_delta,
        "relative_l2": relative,
        "cosine": ab / norms if norms and math.isfinite(norms) else None,
        "snr_db": math.inf if not relative else -math.inf if math.isinf(relative) else -20 * math.log10(relative) + 0.0,
    }


def _ratio(over: float, under: float) -> float:
    return over / under if under else math.inf if over else 0.0


def _ldexp(value: float, power: int) -> float:
    try:
        return math.ldexp(value, power)
    except OverflowError:
        return math.inf


@dataclass(slots=True)
class _Largest:
    a: float = 0.0
    b: float = 0.0
    delta: float = 0.0
    delta_of_halves: float = 0.0

    def see(self, a: Array, b: Array) -> None:
        import numpy as np

        self.a = max(self.a, float(np.abs(a).max(initial=0)))
        self.b = max(self.b, float(np.abs(b).max(initial=0)))
        self.delta = max(self.delta, float(np.abs(b - a).max(initial=0)))
        self.delta_of_halves = max(self.delta_of_halves, float(np.abs(b * 0.5 - a * 0.5).max(initial=0)))


def _finite(runs: Runs, dtypes: tuple[DType, DType]) -> Iterator[tuple[Array, Array]]:
    """Yield the numbers of both sides, those that are finite in both; complex ones as two of each."""
    import numpy as np

    pairs = any(map(is_complex, dtypes))
    for raw in runs():
        a, b = (numbers(codes(one, dtype), dtype) for one, dtype in zip(raw, dtypes, strict=True))
        if pairs:
            a, b = (one if is_complex(dtype) else np.stack([one, 0 * one], axis=1).reshape(-1) for one, dtype in
                    zip((a, b), dtypes, strict=True))  # fmt: skip
        ok = np.isfinite(a) & np.isfinite(b)
        if pairs:
            ok = np.repeat(ok.reshape(-1, 2).all(axis=1), 2)
        yield a[ok], b[ok]
