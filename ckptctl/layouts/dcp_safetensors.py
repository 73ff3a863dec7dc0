"""Safetensors shards of torch.distributed.checkpoint's HuggingFaceStorageWriter, one or more for each rank.

``shard-RRRRR-model-IIIII-of-NNNNN.safetensors``; the metadata of each tells where its blocks begin, nothing tells how
large the whole is: it ends where the last block ends.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, counted
from ckptctl.layouts._components import split
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.layouts._members import missing
from ckptctl.model import Checkpoint, Contents, Finding, Piece, TensorInfo
from ckptctl.storage import open_ahead
from ckptctl.tensors.coverage import uncovered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SHARD = re.compile(r"shard-([0-9]{1,6})-model-([0-9]{1,6})-of-([0-9]{1,6})\.safetensors")
_INFO = "DCP_SHARDING_INFO"
_MOST = 1 << 20


def accepts(seen: Scan) -> bool:
    """A directory with such shards."""
    return seen.directory and any(map(_SHARD.fullmatch, seen.names))


def open_(seen: Scan) -> Checkpoint:
    """Join the blocks of all shards."""
    shards = {name: found for name in seen.names if (found := _SHARD.fullmatch(name))}
    open_ahead(seen.path / name for name in shards)
    files = tuple(seen.read(name) for name in shards)
    tensors = _joined(seen, files)
    ranks = {int(found[1]) for found in shards.values()}
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=f"torch distributed checkpoint in safetensors, {counted(len(ranks), 'rank')}",
        files=tuple(
            replace(one, metadata={key: text for key, text in one.metadata.items() if key != _INFO}) for one in files
        ),
        parts=split(replace(files[0], tensors=tensors)),
        findings=(*_incomplete(seen, shards), *_uncovered(seen, tensors)),
    )


def _joined(seen: Scan, files: tuple[Contents, ...]) -> dict[str, TensorInfo]:
    """Put each block at its offsets; the same block of two ranks is a replica."""
    blocks: dict[str, dict[tuple[int, ...], tuple[TensorInfo, Piece | None]]] = {}
    for contents in files:
        offsets = _offsets(contents)
        for name, tensor in contents.tensors.items():
            at = offsets.get(name)
            if at is None or len(at) != len(tensor.shape):
                raise CorruptError(f"{contents.range.file.path}: {_INFO} does not say where {name} begins")
            piece = replace(tensor.pieces[0], offsets=at) if tensor.pieces else None
            blocks.setdefault(name, {}).setdefault(at, (tensor, piece))
    joined = {}
    for name, found in blocks.items():
        if len({(tensor.dtype, len(tensor.shape)) for tensor, _ in found.values()}) > 1:
            raise CorruptError(f"{seen.path}: the ranks describe {name} differently")
        ends = [[a + size for a, size in zip(at, tensor.shape, strict=True)] for at, (tensor, _) in found.items()]
        pieces = tuple(piece for _, piece in found.values() if piece)
        first = next(tensor for tensor, _ in found.values())
        joined[name] = replace(first, shape=tuple(map(max, zip(*ends, strict=True))), pieces=pieces)
    return joined


def _offsets(contents: Contents) -> Mapping[str, tuple[int, ...]]:
    """Return where the blocks of a shard begin, in elements."""
    try:
        document = json.loads(contents.metadata.get(_INFO, ""))
    except (ValueError, RecursionError):
        raise CorruptError(f"{contents.range.file.path}: no {_INFO} in its metadata, or it is no JSON") from None
    found: dict[str, tuple[int, ...]] = {}
    for name, entry in document.items() if isinstance(document, dict) else ():
        at = entry.get("saved_offsets") if isinstance(entry, dict) else None
        if isinstance(at, list) and all(type(number) is int and 0 <= number < 1 << 48 for number in at):
            found[name] = tuple(at)
    return found


def _incomplete(seen: Scan, shards: Mapping[str, re.Match[str]]) -> Iterator[Finding]:
    """Yield shards that must be there: all of every rank, and all ranks up to the highest one."""
    ranks = max(int(found[1]) for found in shards.values())
    files = max(int(found[3]) for found in shards.values())
    if ranks * files > _MOST:
        raise CorruptError(f"{seen.path}: the names promise {ranks * files} shards")
    there = {(int(found[1]), int(found[2])) for found in shards.values()}
    for rank in range(1, ranks + 1):
        for index in range(1, files + 1):
            if (rank, index) not in there:
                yield missing(seen, f"shard-{rank:05d}-model-{index:05d}-of-{files:05d}.safetensors")


def _uncovered(seen: Scan, tensors: Mapping[str, TensorInfo]) -> Iterator[Finding]:
    for name, tensor in tensors.items():
        covered = sum(math.prod(piece.shape) for piece in tensor.pieces)
        if covered < tensor.numel:
            message = f"the blocks of {name} are {covered} of {tensor.numel} elements"
            yield replace(missing(seen, name), slug="missing-block", message=message)
        elif len(tensor.pieces) > 1 and (problem := uncovered(tensor)):
            yield replace(missing(seen, name), slug="missing-block", message=f"{name}: {problem}")


LAYOUT = Layout(
    name="dcp-safetensors",
    title="torch distributed checkpoint in safetensors",
    about="`shard-RRRRR-model-IIIII-of-NNNNN.safetensors` of torch's HuggingFaceStorageWriter",
    accepts=accepts,
    open=open_,
)
