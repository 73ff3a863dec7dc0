"""Directories of torch.distributed.checkpoint: ``.metadata``, and ``.distcp`` files with a block of a tensor each.

Also where Lightning (``meta.pt``) and Megatron-Core (``common.pt``, ``metadata.json``) put them. The metadata
is written last: without it the save never finished.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import counted
from ckptctl.layouts._components import merged, split
from ckptctl.layouts._dcp import DATA, holds_dcp, read_dcp
from ckptctl.layouts._facts import Facts, facts
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.layouts._members import missing
from ckptctl.model import Checkpoint, Component, Contents, Finding, Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.layouts._dcp import Distributed

_MEGATRON = ("common.pt", "metadata.json")
_BESIDE = ("meta.pt", "common.pt")


def open_(seen: Scan) -> Checkpoint:
    """Describe what the metadata says, and hold it against the files that are there."""
    read = read_dcp(seen)
    beside = [seen.read(name, values=True) for name in _BESIDE if name in seen.names]
    found = _facts(seen, read, beside)
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=_title(seen),
        files=(*read.files, *beside),
        parts=_parts(read, beside),
        step=found.step,
        epoch=found.epoch,
        metrics=found.metrics,
        findings=(*read.findings, *_megatron_gaps(seen)),
    )


def _facts(seen: Scan, read: Distributed, beside: list[Contents]) -> Facts:
    """Look into the file beside the data, or else among the items that are no tensors."""
    if beside:
        return facts(seen.path, beside[0])
    last: dict[str, object] = {}
    for name, value in read.values.items():
        last.setdefault(name.rpartition(".")[2], value)
    return facts(seen.path, replace(read.files[0], tensors=read.tensors, values=last))


def _parts(read: Distributed, beside: list[Contents]) -> Mapping[Component, Part]:
    parts = read.parts()
    for contents in beside:
        parts = merged(parts, split(contents))
    return parts


def _megatron_gaps(seen: Scan) -> list[Finding]:
    """Megatron-Core writes both of two files beside the data."""
    there = [name for name in _MEGATRON if name in seen.names]
    return [missing(seen, name) for name in _MEGATRON if there and name not in there]


def _title(seen: Scan) -> str:
    names = set(seen.names)
    if "metadata.json" in names and "common.pt" in names:
        return "Megatron-Core distributed checkpoint"
    kind = "Lightning sharded checkpoint" if "meta.pt" in names else "torch distributed checkpoint"
    return f"{kind}, {counted(sum(bool(DATA.fullmatch(name)) for name in names), 'data file')}"


LAYOUT = Layout(
    name="torch-dcp",
    title="torch distributed checkpoint",
    about="a directory of torch.distributed.checkpoint, also as Lightning and Megatron-Core write it",
    accepts=holds_dcp,
    open=open_,
)
