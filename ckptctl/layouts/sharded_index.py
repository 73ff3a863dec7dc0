"""Shards with an index: ``*.safetensors.index.json`` or ``*.bin.index.json`` of the Hugging Face libraries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.errors import counted
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import facts
from ckptctl.layouts._index import indexes_of, read_shards
from ckptctl.layouts._layout import Layout, Scan, scan
from ckptctl.model import Checkpoint, Contents

if TYPE_CHECKING:
    from ckptctl.layouts._index import Shards


def accepts(seen: Scan) -> bool:
    """A directory with an index in it, or the index itself."""
    return bool(indexes_of(seen))


def open_(seen: Scan) -> Checkpoint:
    """Describe all shards as one checkpoint."""
    path = indexes_of(seen)[0]
    if not seen.directory:
        seen = scan(path.parent)
    shards = read_shards(seen, path)
    first = shards.files[0]
    whole = formats.restore_state(
        Contents(format=first.format, range=first.range, tensors=shards.tensors, metadata=shards.metadata)
    )
    parts = split(whole)  # plain values that stand among the weights make nothing else of these
    if whole.values is None:
        whole = replace(whole, values=shards.values)
    found = facts(seen.path, whole) if whole.values is not None else None
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=_title(shards),
        files=shards.files,
        parts=parts,
        values=whole.values,
        step=found.step if found else None,
        epoch=found.epoch if found else None,
        metrics=found.metrics if found else (),
        findings=shards.findings,
    )


def _title(shards: Shards) -> str:
    return f"{formats.title_of(shards.files[0])}, {counted(shards.wanted, 'shard')} with an index"


LAYOUT = Layout(
    name="sharded-index",
    title="shards with an index",
    about="`*.safetensors.index.json` or `*.bin.index.json` and the shards that it names",
    accepts=accepts,
    open=open_,
)
