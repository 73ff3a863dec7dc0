"""Do the pieces of a tensor cover each of its elements exactly once? From offsets and shapes alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptctl.model import Piece, TensorInfo

_Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a block begins, and where it ends."""


def uncovered(tensor: TensorInfo) -> str:
    """Say what is wrong with how pieces cover a strided tensor; empty if each element is in exactly one."""
    if tensor.layout != "strided":
        return ""
    boxes = [_box(piece) for piece in tensor.pieces if 0 not in piece.shape]
    runs = bool(boxes) and len(boxes[0][0]) == 1 != len(tensor.shape)
    shape = (tensor.numel,) if runs else tensor.shape
    for start, end in boxes:
        if (
            len(start) != len(shape)
            or any(at > size for at, size in zip(end, shape, strict=True))
            or min(start, default=0) < 0
        ):
            return f"the block at {list(start)} reaches out of the shape {list(shape)}"
    twice = _overlap(boxes)
    if twice:
        return f"blocks at {list(twice[0][0])} and {list(twice[1][0])} overlap"
    covered = sum(math.prod(b - a for a, b in zip(start, end, strict=True)) for start, end in boxes)
    if covered < tensor.numel:
        return f"its blocks are {covered} of {tensor.numel} elements"
    return ""


def _box(piece: Piece) -> _Box:
    return piece.offsets, tuple(at + size for at, size in zip(piece.offsets, piece.shape, strict=True))


def _overlap(boxes: list[_Box]) -> tuple[_Box, _Box] | None:
    """Return two blocks that share elements, if there are any: a sweep along the dimension that cuts finest."""
    if len(boxes) < 2:
        return None
    count = len(boxes[0][0])
    if not count:
        return boxes[0], boxes[1]
    axis = max(range(count), key=lambda one: len({start[one] for start, _ in boxes}))
    active: list[_Box] = []
    for box in sorted(boxes, key=lambda box: box[0][axis]):
        active = [other for other in active if other[1][axis] > box[0][axis]]
        for other in active:
            if all(a < d and c < b for a, b, c, d in zip(*box, *other, strict=True)):
                return other, box
        active.append(box)
    return None
