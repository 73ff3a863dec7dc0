"""Whether two tensors hold the same bytes, block by block, however each of them is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.tensors.gather import blocks

if TYPE_CHECKING:
    from ckptctl.model import TensorInfo

_BLOCK = 4 << 20


def same_bytes(one: TensorInfo, other: TensorInfo) -> bool:
    """Whether the values of two strided tensors of one dtype and number of elements are the same, bit for bit."""
    left, right = blocks(one, most=_BLOCK), blocks(other, most=_BLOCK)
    a = b = memoryview(b"")
    while True:
        a = a or next(left, memoryview(b""))
        b = b or next(right, memoryview(b""))
        if not len(a) or not len(b):
            return len(a) == len(b)
        count = min(len(a), len(b))
        if a[:count] != b[:count]:
            return False
        a, b = a[count:], b[count:]
