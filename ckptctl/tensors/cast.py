"""Round floating values to narrower types, once and to the nearest, and widen them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from ckptctl.model import DType


_F8: dict[str, tuple[int, int, bool]] = {
    # Bits of the mantissa, bias of the exponent, whether a code with a sign and nothing else is the only NaN.
    "F8_E4M3": (3, 7, False),
    "F8_E5M2": (2, 15, False),
    "F8_E4M3FNUZ": (3, 8, True),
    "F8_E5M2FNUZ": (2, 16, True),
}
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E8M0", *_F8})
"""Names of the types whose values are real and floating."""
TARGETS = frozenset({"BF16", "F16", "F32"})
"""Names of the types that `cast` rounds to; besides these, those of `_F8`."""

_FEW = 128 << 10
"""So many elements are worked on at once; what is made of them meanwhile stays in the processor's cache."""
_QUIET = {"BF16": 0x40, "F16": 0x200, "F32": 0x400000}
_INFINITE = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}


def cast(
    block: bytes | bytearray | memoryview, source: DType, target: DType
) -> tuple[bytes | bytearray | memoryview, int]:
    """Return little-endian values of `source` as those of `target`, and how many finite ones became infinite (or NaN).

    Values are rounded once, to the nearest, ties to even. NaN stays NaN with its sign, and becomes a
    quiet one; infinity, minus zero and subnormal values are kept. `block` itself is returned if the
    types are the same.

    Raises
    ------
    ValueError
        `source` is not of `FLOATS`, `target` not a type to round to, or `block` is no whole number of elements.
    """
    import numpy as np

    if source.name not in FLOATS or not is_target(target):
        raise ValueError(f"no cast from {source} to {target}")
    if source.name == target.name:
        return block, 0
    given = np.frombuffer(block, _code(source))
    out = np.empty(given.size, _code(target))
    overflowed = 0
    with np.errstate(all="ignore"):
        for at in range(0, given.size, _FEW):
            few = given[at : at + _FEW]
            overflowed += _round(_wide(few, source.name, target.name), target.name, out[at : at + _FEW])
            overflowed -= 0 if target.name in _F8 else _infinities(few, source.name)
    return out.view(np.uint8).data, overflowed


def is_target(dtype: DType) -> bool:
    """Whether `cast` rounds to a type."""
    return dtype.name in TARGETS or dtype.name in _F8


def widened(bits: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return what the bits of a type of `FLOATS` mean: float64 of F64, float32 of all others, exactly."""
    if name == "F64":
        return bits.view("<f8")
    if name == "F32":
        return bits.view("<f4")
    if name == "F16":
        return bits.view("<f2").astype("<f4")
    if name == "BF16":
        return (bits.astype("<u4") << 16).view("<f4")
    wide: npt.NDArray[Any] = _table(name)[bits]
    return wide


def _code(dtype: DType) -> str:
    return f"<u{dtype.bits // 8}"


def _infinities(bits: npt.NDArray[Any], name: str) -> int:
    """Count infinite values; only the types that can overflow or hold some do."""
    import numpy as np

    if name == "F64":
        return int(np.count_nonzero(np.isinf(bits.view("<f8"))))
    if name == "F8_E5M2":
        return int(np.count_nonzero((bits & 0x7F) == 0x7C))
    if name not in _INFINITE:
        return 0
    top = bits.dtype.type(_INFINITE[name])
    return int(np.count_nonzero((bits << 1) == top << 1))


def _wide(bits: npt.NDArray[Any], name: str, target: str) -> npt.NDArray[Any]:
    """Return values as float32 that round to `target` as they would themselves."""
    values = widened(bits, name)
    if name == "F64":
        return values.astype("<f4") if target == "F32" else _to_odd(values)
    return values


def _to_odd(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Round float64 to float32 so that whatever was lost makes the last bit odd, and no tie out of what is none."""
    import numpy as np

    near = values.astype("<f4")
    back = near.astype("<f8")
    bits = near.view("<u4")
    bits -= np.abs(back) > np.abs(values)
    bits |= (back != values) & (values == values)  # noqa: PLR0124  # not NaN
    return near


def _round(values: npt.NDArray[Any], target: str, out: npt.NDArray[Any]) -> int:
    """Round float32 values into the bits `out` of `target`.

    Return how many of those are infinite; of a type of 8 bits, how many are beyond it that were finite.
    """
    import numpy as np

    if target == "F32":
        out[...] = values.view("<u4")
    elif target == "F16":
        out.view("<f2")[...] = values
    elif target in _F8:
        return _round_to_8(values, target, out)
    else:
        bits = values.view("<u4")
        out[...] = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    lost = np.isnan(values)
    if lost.any():
        _keep_nan(values.view("<u4"), lost, target, out)
    return _infinities(out, target)


def _round_to_8(values: npt.NDArray[Any], target: str, out: npt.NDArray[Any]) -> int:
    """Round to a type of 8 bits. Beyond its range lies infinity, or NaN where a type has no infinity, as in torch."""
    import numpy as np

    unsigned_zero = _F8[target][2]
    middles, beyond = _middles(target)
    size = np.abs(values)
    found = np.searchsorted(middles, size)
    tie = found < len(middles)
    tie &= middles[np.minimum(found, len(middles) - 1)] == size
    found += tie & (found & 1 == 1)
    codes = np.minimum(found, beyond).astype("u1")
    overflowed = int(np.count_nonzero((codes == beyond) & np.isfinite(size)))
    negative = np.signbit(values) & ~((codes == 0) & unsigned_zero)
    codes |= negative.astype("u1") << 7
    nan = np.isnan(values)
    codes[nan] = 0x80 if unsigned_zero else 0x7F | (np.signbit(values[nan]).astype("u1") << 7)
    out[...] = codes
    return overflowed


@lru_cache(maxsize=4)
def _middles(target: str) -> tuple[npt.NDArray[np.float32], int]:
    """Return the numbers half-way between positive codes that follow each other, and the code beyond all numbers."""
    import numpy as np

    values = _table(target)[:128].astype("<f8")
    last = int(np.flatnonzero(np.isfinite(values))[-1])
    steps = np.diff(values[: last + 1])
    middles = values[:last] + steps / 2
    return np.append(middles, values[last] + steps[-1] / 2).astype("<f4"), last + 1


def _keep_nan(bits: npt.NDArray[Any], lost: npt.NDArray[np.bool_], target: str, out: npt.NDArray[Any]) -> None:
    """Put quiet NaN of the same sign, and of as much of the payload as fits, where `lost` says."""
    shift = 32 - 8 * out.itemsize
    payload = _QUIET[target] - 1
    given = bits[lost]
    kept = (given >> (13 if target == "F16" else shift)) & payload
    sign = (given >> 31) << (8 * out.itemsize - 1)
    out[lost] = sign | _INFINITE[target] | _QUIET[target] | kept


@lru_cache(maxsize=8)
def _table(name: str) -> npt.NDArray[np.float32]:
    """Return what each code of an 8-bit type means, exactly."""
    import numpy as np

    value: Callable[[int], float] = _power if name == "F8_E8M0" else lambda code: _f8(code, name)
    return np.array([value(code) for code in range(256)], "<f4")


def _power(code: int) -> float:
    return math.nan if code == 0xFF else math.ldexp(1.0, code - 127)


def _f8(code: int, name: str) -> float:
    """Return the value of a code of a sign, an exponent and a mantissa."""
    mantissa_bits, bias, unsigned_zero = _F8[name]
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = divmod(code & 0x7F, 1 << mantissa_bits)
    if unsigned_zero:
        special = math.nan if code == 0x80 else None
    elif name == "F8_E5M2":
        special = (math.nan if mantissa else math.inf) if exponent == 0x1F else None
    else:
        special = math.nan if code & 0x7F == 0x7F else None
    if special is not None:
        return math.copysign(special, sign)
    leading = 1 << mantissa_bits if exponent else 0
    return sign * math.ldexp(leading + mantissa, max(exponent, 1) - bias - mantissa_bits)
