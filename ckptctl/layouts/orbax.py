"""Directories of Orbax: recognised and named; their arrays need TensorStore and are not read.

A step ``N/`` holds ``_CHECKPOINT_METADATA`` and an item in each directory; JSON items are read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.layouts._layout import Layout, Scan, scan
from ckptctl.layouts._members import missing, read_json, unfinished
from ckptctl.model import Aspect, Checkpoint, Component, Contents, Finding, Found, Part, Severity
from ckptctl.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_METADATA = "_CHECKPOINT_METADATA"
_MAX_JSON = 1 << 20
_COMMITTED = "commit_success.txt"
_TEMPORARY = ".orbax-checkpoint-tmp"


def accepts(seen: Scan) -> bool:
    """A directory with Orbax's own metadata, or with the name of a save of Orbax in progress."""
    return seen.directory and (_METADATA in seen.names or _TEMPORARY in seen.path.name)


def open_(seen: Scan) -> Checkpoint:
    """Name the items, and read those that are JSON."""
    values = dict(_items(seen))
    metadata = read_json(seen, _METADATA)
    file = open_file(seen.path / _METADATA) if _METADATA in seen.names else None
    if file is None:
        raise CorruptError(f"{seen.path}: an unfinished save of Orbax: {_METADATA} is missing")
    contents = Contents(format="orbax", range=file.range(), tensors={})
    file.release()
    handlers = metadata.get("item_handlers")
    arrays = Finding(
        aspect=Aspect.STRUCTURE,
        severity=Severity.NOTE,
        slug="not-read",
        where=seen.path.name,
        message="its arrays are stored by TensorStore, which this version does not read",
    )
    part = Part(component=Component.TRAINER, prefix="", tensors={}, values=values)
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=f"Orbax checkpoint, items {', '.join(handlers)}" if isinstance(handlers, dict) else "Orbax checkpoint",
        files=(contents,),
        parts={Component.TRAINER: part} if values else {},
        step=_step(seen),
        metrics=tuple(_metrics(values)),
        findings=(arrays, *_incomplete(seen, metadata)),
    )


def _items(seen: Scan) -> Iterator[tuple[str, object]]:
    """Yield the items that are JSON: a file with the name of its directory."""
    for name in seen.names:
        inner = seen.path / name / name
        if inner.is_file() and inner.stat().st_size <= _MAX_JSON:
            try:
                yield name, json.loads(open_file(inner).range().read())
            except (ValueError, RecursionError):
                continue


def _step(seen: Scan) -> Found | None:
    name = seen.path.name.partition(".")[0]
    digits = name.isascii() and name.isdigit() and len(name) < 19
    return Found(name="step", value=int(name), where="in the name") if digits else None


def _metrics(values: Mapping[str, object]) -> Iterator[Found]:
    found = values.get("metrics")
    for key, value in found.items() if isinstance(found, dict) else ():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield Found(name=str(key), value=value, where="metrics")


def _incomplete(seen: Scan, metadata: Mapping[str, object]) -> Iterator[Finding]:
    if not metadata.get("commit_timestamp_nsecs"):
        yield unfinished(seen, "Orbax had not committed it")
    handlers = metadata.get("item_handlers")
    for name in handlers if isinstance(handlers, dict) else ():
        if name not in seen.names:
            yield missing(seen, f"the item {name}")
    for name in seen.names:
        inner = set(_names_in(seen, name)) if (seen.path / name).is_dir() else set()
        if {"_METADATA", "_sharding"} & inner and not inner - {"_METADATA", "_sharding", "array_metadatas", _COMMITTED}:
            yield missing(seen, f"all data of the item {name}")
        chunked = "d" in inner or any(one.startswith("ocdbt.process_") for one in inner)
        if chunked and "manifest.ocdbt" not in inner:
            yield missing(seen, f"{name}/manifest.ocdbt")
        if "d" in inner and not _names_in(seen, f"{name}/d"):
            yield missing(seen, f"the data in {name}/d")
        yield from _empty(seen, name)
    marked = [name for name in seen.names if _COMMITTED in _names_in(seen, name)]
    for name in seen.names if marked else ():
        if name not in marked and (seen.path / name).is_dir():
            yield unfinished(seen, f"the item {name} lacks its commit_success.txt")


def _empty(seen: Scan, item: str) -> Iterator[Finding]:
    """Yield the data files of an item that have nothing in them."""
    for path in sorted((seen.path / item).rglob("*")) if (seen.path / item).is_dir() else ():
        if path.name != _COMMITTED and path.is_file() and not path.stat().st_size:
            yield missing(seen, f"the content of {path.relative_to(seen.path).as_posix()}")


def _names_in(seen: Scan, name: str) -> tuple[str, ...]:
    return scan(seen.path / name).names


LAYOUT = Layout(
    name="orbax",
    title="Orbax",
    about="a step of Orbax's CheckpointManager: recognised, its JSON items read, its arrays only named",
    accepts=accepts,
    open=open_,
)
