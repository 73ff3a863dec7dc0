"""What elements mean as numbers: their bits as float64, whatever their type."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ckptctl.tensors.cast import FLOATS, widened

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ckptctl.model import DType

_INTEGERS = {
    "BOOL": "u1", "I8": "i1", "U8": "u1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
    "U64": "<u8", "QI8": "i1", "QU8": "u1", "QI32": "<i4",
}  # fmt: skip
_COMPLEX = {"C32": "F16", "C64": "F32", "C128": "F64"}
_F4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Codes of a sign, two bits of exponent and one of mantissa: https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf."""


def is_number(dtype: DType) -> bool:
    """Whether the elements of a type are known as numbers; not so where several share a byte, but for F4."""
    return dtype.name in FLOATS or is_integer(dtype) or is_complex(dtype) or dtype.name == "F4"


def is_integer(dtype: DType) -> bool:
    """Whether the elements of a type are integers, or true and false."""
    return dtype.name in _INTEGERS


def is_complex(dtype: DType) -> bool:
    """Whether an element is two numbers."""
    return dtype.name in _COMPLEX


def real(dtype: DType) -> str:
    """Return the name of the type of which each element has one, or of a complex type two."""
    return _COMPLEX.get(dtype.name, dtype.name)


def integers(block: bytes | bytearray | memoryview, dtype: DType) -> npt.NDArray[Any]:
    """Return elements of an integer type as such."""
    import numpy as np

    return np.frombuffer(block, _INTEGERS[dtype.name])


def codes(block: bytes | bytearray | memoryview, dtype: DType) -> npt.NDArray[Any]:
    """Return the bits of elements, two of them for each of a complex type."""
    import numpy as np

    if dtype.name == "F4":
        packed = np.frombuffer(block, "u1")
        return np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
    return np.frombuffer(block, f"<u{dtype.bits // 8 // (2 if is_complex(dtype) else 1)}")


def numbers(bits: npt.NDArray[Any], dtype: DType) -> npt.NDArray[np.float64]:
    """Return what `codes` mean as float64, exactly but for integers beyond 2**53."""
    if is_integer(dtype):
        return bits.view(_INTEGERS[dtype.name]).astype("<f8")
    if dtype.name == "F4":
        found: npt.NDArray[np.float64] = _table_of_f4()[bits]
        return found
    return widened(bits, real(dtype)).astype("<f8", copy=False)


@lru_cache(maxsize=1)
def _table_of_f4() -> npt.NDArray[np.float64]:
    import numpy as np

    return np.array([*_F4, *(-value for value in _F4)], "<f8")
