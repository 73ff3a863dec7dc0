"""One rank's file of several that make one checkpoint: which of its tensors are blocks of larger ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, counted
from ckptctl.values import BLOCKS_KEY, RANK_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.model import Contents, TensorInfo

_MOST = 1 << 48


def as_part(contents: Contents) -> tuple[Contents, str]:
    """Put the blocks of a rank where they belong; return a note that says what the file is, too.

    Raises
    ------
    CorruptError
        Its metadata does not say where they belong.
    """
    tensors = dict(contents.tensors)
    blocks = _blocks(contents)
    for name, (shape, offsets) in blocks.items():
        tensors[name] = _placed(contents, tensors.get(name), shape, offsets)
    blocky = f", with blocks of {counted(len(blocks), 'tensor')}" if blocks else ""
    note = f"the file of one rank, {contents.metadata[RANK_KEY]}{blocky}"
    return replace(contents, tensors=tensors), note


def _blocks(contents: Contents) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    try:
        document = json.loads(contents.metadata.get(BLOCKS_KEY, "{}"))
        found = {name: (tuple(shape), tuple(offsets)) for name, (shape, offsets) in document.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise CorruptError(f"{contents.range.file.path}: {BLOCKS_KEY} in its metadata is malformed") from None
    for shape, offsets in found.values():
        if len(shape) != len(offsets) or any(type(one) is not int or not 0 <= one < _MOST for one in shape + offsets):
            raise CorruptError(f"{contents.range.file.path}: {BLOCKS_KEY} in its metadata is malformed")
    return found


def _placed(
    contents: Contents, tensor: TensorInfo | None, shape: tuple[int, ...], offsets: tuple[int, ...]
) -> TensorInfo:
    inside = tensor and len(tensor.shape) == len(shape)
    if not tensor or not inside or any(a + b > c for a, b, c in zip(offsets, tensor.shape, shape, strict=True)):
        name = tensor.name if tensor else "its tensors"
        raise CorruptError(f"{contents.range.file.path}: {BLOCKS_KEY} in its metadata does not fit {name}")
    return replace(tensor, shape=shape, pieces=(replace(tensor.pieces[0], offsets=offsets),))
