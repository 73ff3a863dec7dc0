"""Elements of two types made comparable: the wider ones rounded to the narrower type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptctl.model import DTYPES
from ckptctl.tensors.cast import FLOATS, cast, is_target
from ckptctl.tensors.numbers import is_complex, is_integer, real

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ckptctl.model import DType

    Array = npt.NDArray[Any]

_TOP = {"F8_E4M3": 0x7E, "F8_E4M3FNUZ": 0x7F, "F8_E5M2": 0x7B, "F8_E5M2FNUZ": 0x7F}
"""The codes of the largest numbers, which some cast what is beyond them to."""


def rounded(
    bits: tuple[Array, Array], values: tuple[Array, Array], dtypes: tuple[DType, DType]
) -> tuple[tuple[Array, Array], DType | None]:
    """Return both sides in the type of the narrower one, which is the second; None if they are plain numbers instead.

    `bits` are the codes of both sides, `values` what they mean. Of types of one width B's is meant. Integers and what
    is never rounded to are compared as they are.
    """
    import numpy as np

    a, b = (DTYPES[real(dtype)] for dtype in dtypes)
    to_b = is_integer(a) or (b.name in FLOATS and a.bits >= b.bits)
    source, target = (a, b) if to_b else (b, a)
    if is_complex(dtypes[0]) != is_complex(dtypes[1]) or not is_target(target) or target.name == source.name:
        return _plainly(bits, values, (a, b)), None
    wide, narrow = (0, 1) if to_b else (1, 0)
    if source.name in FLOATS:
        made = _cast(bits[wide], source, target)
        if source.name == "F64" and target.name != "F32":  # torch rounds to float32 first
            twice = _cast(_cast(bits[wide], source, DTYPES["F32"]), DTYPES["F32"], target)
            made = np.where(twice == bits[narrow], twice, made)
    elif is_integer(source):
        made = _cast(values[wide], DTYPES["F64"], target)
    else:
        return _plainly(bits, values, (a, b)), None
    if target.name in _TOP:
        made = _saturated(made, bits[narrow], values[wide], target)
    return ((made, bits[1]) if to_b else (bits[0], made)), target


def _cast(values: Array, source: DType, target: DType) -> npt.NDArray[np.unsignedinteger[Any]]:
    import numpy as np

    return np.frombuffer(cast(values.tobytes(), source, target)[0], f"<u{target.bits // 8}")


def _saturated(made: Array, given: Array, values: Array, target: DType) -> Array:
    """Let what lies beyond all numbers be the largest of its sign, or any NaN, if that is what the other side has."""
    import numpy as np

    top = _TOP[target.name]
    beyond = made == 0x80 if target.name.endswith("FNUZ") else (made & 0x7F) > top
    largest = ((given & 0x7F) == top) & ((given >> 7) == np.signbit(values))
    if target.name == "F8_E4M3":
        largest |= (given & 0x7F) > top
    return np.where(beyond & largest & ~np.isnan(values), given, made)


def _plainly(
    bits: tuple[Array, Array], values: tuple[Array, Array], dtypes: tuple[DType, DType]
) -> tuple[Array, Array]:
    """Compare integers with integers exactly, and all else as float64."""
    import numpy as np

    if not all(map(is_integer, dtypes)):
        return values
    # Two integers are the same if their lowest 64 bits and their signs are.
    wide = [_wide(one, dtype) for one, dtype in zip(bits, dtypes, strict=True)]
    signs = [np.signbit(one) for one in values]
    return wide[0], np.where(signs[0] == signs[1], wide[1], ~wide[0])


def _wide(bits: Array, dtype: DType) -> Array:
    signed = dtype.name.startswith(("I", "QI"))
    return bits.view(f"<i{bits.itemsize}").astype("<i8") if signed else bits.astype("<u8").view("<i8")
