"""Keras models in several files: unzipped (``model.weights.h5``, ``config.json``) or shards with ``*.weights.json``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, counted
from ckptctl.layouts._components import merged, split
from ckptctl.layouts._facts import facts
from ckptctl.layouts._index import is_plain
from ckptctl.layouts._layout import Layout, Scan, scan
from ckptctl.layouts._members import missing, read_json
from ckptctl.model import Checkpoint, Component, Contents, Part, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

_INDEX = ".weights.json"
_WEIGHTS = "model.weights.h5"
_BESIDE = ("config.json", "metadata.json")


def accepts(seen: Scan) -> bool:
    """An index of shards, a directory with one, or one with the members of a ``.keras`` archive."""
    if not seen.directory:
        return seen.path.name.endswith(_INDEX)
    indexes = [name for name in seen.names if name.endswith(_INDEX)]
    return len(indexes) == 1 or (_WEIGHTS in seen.names and "config.json" in seen.names)


def open_(seen: Scan) -> Checkpoint:
    """Describe weights, configuration and optimizer as one checkpoint."""
    here = seen if seen.directory else replace(scan(seen.path.parent, glance=seen.glance), directory=True)
    index = next((n for n in here.names if n.endswith(_INDEX) and (seen.directory or n == seen.path.name)), None)
    if index is None:
        first = here.read(_WEIGHTS, values=True)
        beside = {name.removesuffix(".json"): read_json(here, name) for name in _BESIDE}
        config = Part(component=Component.TRAINER, prefix="", tensors={}, values={k: v for k, v in beside.items() if v})
        parts = merged(split(first), {Component.TRAINER: config} if config.values else {})
        return _checkpoint(seen, "Keras model, unzipped", (first,), parts)
    shards = _shards(here, index)
    there = [name for name in shards if name in here.names]
    if not there:
        raise CorruptError(f"{here.path / index}: none of the {len(shards)} shards that it names is there")
    files = tuple(here.read(name, values=True) for name in there)
    whole = replace(files[0], tensors=_joined(files), values=None)
    found = _checkpoint(seen, f"Keras model, {counted(len(shards), 'shard')}", files, split(whole))
    return replace(found, findings=tuple(missing(here, name) for name in shards if name not in here.names))


def _shards(here: Scan, index: str) -> list[str]:
    """Return the files that an index names, each once."""
    weight_map = read_json(here, index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptError(f"{here.path / index}: the index has no weight_map of groups to files")
    names = [name for found in weight_map.values() for name in (found if isinstance(found, list) else [found])]
    for name in names:
        if not isinstance(name, str) or not is_plain(name):
            raise CorruptError(
                f"{here.path / index}: the index names {str(name)[:200]!r}, which is no name of a file beside it",
                hint="names that lead out of the directory are never followed",
            )
    return sorted(dict.fromkeys(names))


def _joined(files: tuple[Contents, ...]) -> Mapping[str, TensorInfo]:
    joined: dict[str, TensorInfo] = {}
    for contents in files:
        for name, tensor in contents.tensors.items():
            if joined.setdefault(name, tensor) is not tensor:
                raise CorruptError(f"{contents.range.file.path}: {name} is in another shard too")
    return joined


def _checkpoint(seen: Scan, title: str, files: tuple[Contents, ...], parts: Mapping[Component, Part]) -> Checkpoint:
    found = facts(seen.path, files[0])
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=title,
        files=files,
        parts=parts,
        step=found.step,
        epoch=found.epoch,
        metrics=found.metrics,
    )


LAYOUT = Layout(
    name="keras",
    title="Keras, several files",
    about="a Keras model that is not zipped, or shards with `*.weights.json`; needs `ckptctl[keras]`",
    accepts=accepts,
    open=open_,
)
