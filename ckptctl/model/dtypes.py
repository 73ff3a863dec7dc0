"""Element types under the names that safetensors gives them, and the few torch has beside those."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type.

    `bits` is the width of one element; `torch` the name without ``torch.``, empty where torch has
    none; `storable` tells whether a safetensors file can hold it.
    """

    name: str
    bits: int
    torch: str
    storable: bool = True

    def __str__(self) -> str:
        return self.name


# https://github.com/huggingface/safetensors, the `Dtype` enum of version 0.8.
_STORABLE = {
    "BOOL": (8, "bool"),
    "F4": (4, "float4_e2m1fn_x2"),
    "F6_E2M3": (6, ""),
    "F6_E3M2": (6, ""),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "I16": (16, "int16"),
    "U16": (16, "uint16"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "int32"),
    "U32": (32, "uint32"),
    "F32": (32, "float32"),
    "C64": (64, "complex64"),
    "F64": (64, "float64"),
    "I64": (64, "int64"),
    "U64": (64, "uint64"),
}
_TORCH_ONLY = {
    "C32": (32, "complex32"),
    "C128": (128, "complex128"),
    "QI8": (8, "qint8"),
    "QU8": (8, "quint8"),
    "QI32": (32, "qint32"),
    "QU4X2": (4, "quint4x2"),
    "QU2X4": (2, "quint2x4"),
    "F4X2": (8, "float4_e2m1fn_x2"),
}

DTYPES = {name: DType(name, bits, torch) for name, (bits, torch) in _STORABLE.items()} | {
    name: DType(name, bits, torch, storable=False) for name, (bits, torch) in _TORCH_ONLY.items()
}
_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "cfloat": "complex64"}
# F4X2 is what torch counts (one byte, two values); a tensor of it is described as F4 where it can be.
_BY_TORCH = {d.torch: d for d in DTYPES.values() if d.torch and d.name != "F4"}


def dtype_of_torch(name: str) -> DType | None:
    """Return the type that torch calls ``torch.NAME``, if there is one."""
    return _BY_TORCH.get(_ALIASES.get(name, name))
