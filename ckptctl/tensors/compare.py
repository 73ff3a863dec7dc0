"""Whether two tensors hold the same bytes, block by block, however each of them is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.tensors.stream import Stream, equal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.model import TensorInfo


def same_bytes(one: TensorInfo, other: TensorInfo, progress: Callable[[int], None] = lambda _: None) -> bool:
    """Whether the values of two strided tensors of one dtype and number of elements are the same, bit for bit.

    `progress` is told of the bytes of each side that were read.
    """
    left, right = Stream(one), Stream(other)
    while True:
        count = min(left.ready(), right.ready())
        if not count:
            return left.ready() == right.ready()
        if not equal(left.take(count), right.take(count)):
            return False
        progress(count)
