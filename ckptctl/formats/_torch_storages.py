"""The classes of storages that torch writes: their element types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.formats._pickle.levels import STORAGES_READ
from ckptctl.model import DType, dtype_of_torch

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.formats._pickle.records import Global

_UNTYPED = ("torch.storage", "UntypedStorage")


def dtype_of_storage(path: Path, kind: Global) -> DType | None:
    """Return the element type of a class of storages, None for the one without a type."""
    dtype = dtype_of_torch(STORAGES_READ.get(kind.name, "")) if kind.module == "torch" else None
    if dtype is None and kind.pair != _UNTYPED:
        raise CorruptError(f"{path}: damaged pickle: {kind} is no class of storage")
    return dtype


def width(dtype: DType | None) -> int:
    """Return the bytes of what a storage counts: elements narrower than a byte count as the bytes they share."""
    return max(dtype.bits, 8) // 8 if dtype else 1
