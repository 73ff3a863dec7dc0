"""Which files to write: one, or shards of bounded size with an index."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ckptctl.errors import UnsupportedError
from ckptctl.formats import Stored
from ckptctl.model import Component
from ckptctl.rewrite.pour import small
from ckptctl.rewrite.prepared import Item
from ckptctl.values import VALUES_KEY, TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ckptctl.rewrite.options import Options
    from ckptctl.rewrite.prepared import Prepared
    from ckptctl.storage import StoredFile
    from ckptctl.storage.copy import Crc, Pump

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
SAFETENSORS = ".safetensors"


class Writer(Protocol):
    """What writes a file of some format, of `nbytes` bytes in all."""

    nbytes: int

    def write(self, pump: Pump, pour: Callable[[str, Pump, Crc | None], None]) -> None:
        """Write all of it; `pour` puts the bytes of a tensor into the pump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file to be written. `values` matter only for torch, where `ties` share storages.

    `nbytes` are those of its tensors; the header comes on top. `writer` knows how to write it.
    """

    path: Path
    items: Mapping[str, Item]
    ties: Mapping[str, str] = field(default_factory=dict)
    values: object = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    writer: Writer = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "writer", _writer_of(self))

    @property
    def nbytes(self) -> int:
        """How many bytes the tensors take."""
        return sum(item.stored.nbytes for item in self.items.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files to be written for one source, and the text of the index if there are several.

    What is in `needed` has to lie in its place still when they get their names.
    """

    files: tuple[OutputFile, ...]
    index: Path | None = None
    index_text: str = ""
    needed: tuple[StoredFile, ...] = ()


def lay_out(prepared: Prepared, target: Path, options: Options, *, shards: Mapping[str, tuple[str, ...]]) -> Outputs:
    """Divide what was prepared into files.

    `target` is the file to be written, or where there are several the one after which they are named; `shards`
    maps the names of the files, if their division is given, to the names of their tensors.

    Raises
    ------
    UnsupportedError
        Shards are asked for in a format that has none.
    """
    if target.suffix != SAFETENSORS:
        if options.max_shard_size or len(shards) > 1:
            raise UnsupportedError(f"{target}: only safetensors files are written as shards")
        file = OutputFile(path=target, items=prepared.items, ties=prepared.ties, values=prepared.values)
        return Outputs(files=(file,))
    items, metadata, text = prepared.items, dict(prepared.metadata), ""
    if prepared.values is not None:
        text, extra = _encoded(prepared)
        items = {**items, **extra}
    groups = _groups(items, target, options, shards)
    if len(groups) == 1:
        ((name, names),) = groups.items()
        values = {VALUES_KEY: text} if text else {}
        return Outputs(files=(_file(target.with_name(name), names, items, prepared, metadata | values),))
    files = tuple(_file(target.with_name(name), names, items, prepared, metadata) for name, names in groups.items())
    return Outputs(
        files=files,
        index=target.with_name(f"{target.name}.index.json"),
        index_text=_index(files, {VALUES_KEY: text} if text else {}),
    )


def _encoded(prepared: Prepared) -> tuple[str, dict[str, Item]]:
    from ckptctl.values.encode import encode  # noqa: PLC0415

    taken = frozenset(prepared.items) | frozenset(prepared.ties)
    encoded = encode(prepared.values, path=prepared.source.path, taken=taken)
    return encoded.text, {
        name: Item(source=tensor, stored=Stored(tensor.dtype, tensor.shape), component=Component.OTHER)
        for name, tensor in encoded.tensors.items()
    }


def _groups(
    items: Mapping[str, Item], target: Path, options: Options, shards: Mapping[str, tuple[str, ...]]
) -> dict[str, list[str]]:
    """Return the names of files, each with its tensors."""
    if options.max_shard_size:
        groups = _by_size(items, options.max_shard_size)
        return dict(zip(_shard_names(target, len(groups)), groups, strict=True))
    if len(shards) > 1:
        owner = {name: file for file, names in shards.items() for name in names}
        first = next(iter(shards))
        found: dict[str, list[str]] = {file: [] for file in shards}
        for name, item in items.items():
            found[owner.get(item.source.name, first)].append(name)
        return {file: names for file, names in found.items() if names}
    return {target.name: list(items)}


def _by_size(items: Mapping[str, Item], most: int) -> list[list[str]]:
    """Fill one shard after another, in order; a tensor that is larger than a shard has one of its own."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, item in items.items():
        nbytes = item.stored.nbytes
        if groups[-1] and size + nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += nbytes
    return groups


def _shard_names(target: Path, count: int) -> list[str]:
    if count == 1:
        return [target.name]
    return [f"{target.stem}-{number:05d}-of-{count:05d}{SAFETENSORS}" for number in range(1, count + 1)]


def _file(
    path: Path, names: list[str], items: Mapping[str, Item], prepared: Prepared, metadata: Mapping[str, str]
) -> OutputFile:
    here = items if len(names) == len(items) else {name: items[name] for name in names}
    ties = {name: kept for name, kept in prepared.ties.items() if kept in here}
    return OutputFile(path=path, items=here, metadata={**metadata, **ties})


def _index(files: tuple[OutputFile, ...], metadata: Mapping[str, str]) -> str:
    weight_map = {name: file.path.name for file in files for name in file.items}
    total = sum(file.nbytes for file in files)
    document = {"metadata": {"total_size": total, **metadata}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _writer_of(file: OutputFile) -> Writer:
    tensors = {name: item.stored for name, item in file.items.items()}
    if file.path.suffix == SAFETENSORS:
        from ckptctl.formats.write_safetensors import SafetensorsWriter  # noqa: PLC0415

        return SafetensorsWriter(tensors, file.metadata)
    from ckptctl.formats.write_torch import TorchWriter  # noqa: PLC0415

    return TorchWriter(root_of(file), tensors, file.ties, read=lambda name: small(file.items[name]))


def root_of(file: OutputFile) -> object:
    """Return the tree of a file of torch: its values, or a dict of nothing but its tensors."""
    return (
        file.values if file.values is not None else {name: TensorRef(name=name) for name in (*file.items, *file.ties)}
    )
