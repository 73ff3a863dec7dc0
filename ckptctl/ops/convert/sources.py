"""What in a path is to be converted: a file, shards that make one whole, or the members of a directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import UnsupportedError, UsageError
from ckptctl.layouts import split
from ckptctl.model import Component
from ckptctl.model.ties import recorded_ties
from ckptctl.rewrite.source import Source
from ckptctl.runs import open_one

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import Checkpoint, Contents, Part

_SPREAD = {
    "torch-dcp": "a distributed checkpoint of torch",
    "dcp-safetensors": "a distributed checkpoint in safetensors files",
    "deepspeed": "a checkpoint of DeepSpeed",
    "rank-files": "files of several ranks",
    "saved-ranks": "files of several ranks",
}
_ARGUMENTS = "training_args"
"""What the Trainer was started with: no state of it. It stays behind, and that is said."""


def find_sources(path: Path, *, only: Component | None, everything: bool, safetensors: bool) -> list[Source]:
    """Return what to convert at a path; of a directory the model, one component, or with `everything` all members.

    `safetensors` says whether what is a safetensors file already counts too.

    Raises
    ------
    CkptctlError
        It cannot be read, is spread over ranks, or holds nothing to convert.
    """
    if path.name.endswith(".metadata") and path.is_file():
        raise UnsupportedError(
            f"{path}: the metadata of a distributed checkpoint, which holds no tensor",
            hint=f"ckptctl consolidate {path.parent} makes one file of its directory",
        )
    checkpoint = open_one(path)
    if checkpoint.layout in _SPREAD:
        raise UnsupportedError(
            f"{path}: {_SPREAD[checkpoint.layout]}: no file of it is a whole",
            hint=f"ckptctl consolidate {path} makes one file of it",
        )
    if checkpoint.layout == "orbax":
        raise UnsupportedError(f"{path}: a checkpoint of Orbax, whose arrays are not read")
    if not path.is_dir() and len(checkpoint.files) == 1:
        return [_of_file(checkpoint, checkpoint.files[0], path)]
    if checkpoint.layout in ("sharded-index", "keras"):
        found = [_of_shards(checkpoint, checkpoint.files)]
    else:
        found = _of_members(checkpoint, only, everything=everything)
    chosen = [source for source in found if safetensors or not _is_safetensors(source)]
    if not chosen and found:
        raise UsageError(
            f"{path}: its files are safetensors already",
            hint="-o DIR writes them anew, changed as asked; --only all takes the optimizer and the rest too",
        )
    if not chosen:
        raise UsageError(f"{path}: it holds nothing of what was asked for")
    return chosen


def _of_file(checkpoint: Checkpoint, contents: Contents, path: Path) -> Source:
    """One file. Names that its metadata records as tied are tensors again."""
    ties = recorded_ties(contents.metadata, contents.tensors) if contents.format == "safetensors" else {}
    if ties:
        again = {name: replace(contents.tensors[kept], name=name) for name, kept in ties.items()}
        rest = {key: text for key, text in contents.metadata.items() if key not in ties}
        contents = replace(contents, tensors={**contents.tensors, **again}, metadata=rest)
    return Source(
        path=path,
        files=(contents,),
        parts=split(contents),
        values=contents.values,
        metadata=contents.metadata,
        findings=checkpoint.findings,
    )


def _of_shards(checkpoint: Checkpoint, files: tuple[Contents, ...]) -> Source:
    shards = {contents.range.file.path.name: tuple(contents.tensors) for contents in files}
    metadata = {key: text for contents in files for key, text in contents.metadata.items()}
    tensors = checkpoint.parts[Component.MODEL].tensors if Component.MODEL in checkpoint.parts else {}
    ties = recorded_ties(metadata, tensors) if checkpoint.values is None else {}
    parts = checkpoint.parts
    if ties:
        again = {name: replace(tensors[kept], name=name) for name, kept in ties.items()}
        model = replace(parts[Component.MODEL], tensors={**tensors, **again})
        parts = {**parts, Component.MODEL: model}
    metadata = {key: text for key, text in metadata.items() if key not in ties}
    return Source(
        path=checkpoint.path,
        files=files,
        parts=parts if checkpoint.values is not None else _without_values(parts),
        values=checkpoint.values,
        metadata=metadata,
        findings=checkpoint.findings,
        shards=shards,
    )


def _without_values(parts: Mapping[Component, Part]) -> dict[Component, Part]:
    return {component: replace(part, values={}) for component, part in parts.items() if part.tensors}


def _of_members(checkpoint: Checkpoint, only: Component | None, *, everything: bool) -> list[Source]:
    """One source for each file; shards of the model are one together."""
    wanted = set(Component) if everything else {only or Component.MODEL}
    sources: list[Source] = []
    shards: list[Contents] = []
    left: list[str] = []
    for contents in checkpoint.files:
        component = _component_of(checkpoint, contents)
        if component not in wanted or contents.range.file.path.name.startswith(_ARGUMENTS):
            left.append(contents.range.file.path.name)
            continue
        if component is Component.MODEL and _is_sharded(checkpoint, contents):
            shards.append(contents)
        else:
            sources.append(_of_file(checkpoint, contents, contents.range.file.path))
    if shards:
        model = checkpoint.parts[Component.MODEL]
        alone = replace(checkpoint, parts={Component.MODEL: model}, files=tuple(shards))
        sources.insert(0, _of_shards(alone, tuple(shards)))
    return [replace(source, beside=tuple(left)) if source is sources[0] else source for source in sources]


def _component_of(checkpoint: Checkpoint, contents: Contents) -> Component | None:
    """Return the component that a member file was read as."""
    file, stem = contents.range.file, contents.range.file.path.name.partition(".")[0]
    for component, part in checkpoint.parts.items():
        if stem in part.values or any(p.range.file is file for t in part.tensors.values() for p in t.pieces):
            return component
    return None


def _is_sharded(checkpoint: Checkpoint, contents: Contents) -> bool:
    """Whether a file of the model is one of several: all are named by one index."""
    model = checkpoint.parts[Component.MODEL].tensors
    files = {id(piece.range.file) for tensor in model.values() for piece in tensor.pieces}
    return len(files) > 1 and id(contents.range.file) in files


def _is_safetensors(source: Source) -> bool:
    return all(contents.format == "safetensors" for contents in source.files)
