"""Read shards by their index: ``*.safetensors.index.json`` or ``*.bin.index.json``, which map names to files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.errors import CorruptError, LimitError, counted
from ckptctl.model import Aspect, Contents, Finding, Severity, TensorInfo
from ckptctl.storage import open_ahead, open_file
from ckptctl.values import TensorRef, as_mapping, nested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ckptctl.layouts._layout import Scan

_KINDS = (".safetensors.index.json", ".bin.index.json")
_MAX_INDEX = 64 << 20
_MAX_NAME = 255
_HEADS = 64 << 10
"""Bytes asked for of each shard before the index is known: the header of most is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """What an index and its shards make together; `wanted` is how many shards it names.

    `metadata` are the texts that the index and its shards hold beside the tensors; `values` the tree of the tensors
    and the plain values that stand among them in pickled shards, None if there are none.
    """

    index: Path
    wanted: int
    files: tuple[Contents, ...]
    tensors: Mapping[str, TensorInfo]
    findings: tuple[Finding, ...]
    metadata: Mapping[str, str]
    values: dict[object, object] | None = None


def read_shards(seen: Scan, path: Path) -> Shards:
    """Read the index at `path` and every shard that it names; `seen` is the directory of both.

    Raises
    ------
    CorruptError, LimitError
        Index and shards contradict each other, or none of them is there.
    """
    likely = _likely(seen, path)
    open_ahead((path.parent / name for name in likely), window=_HEADS)
    weight_map, stated = _read_index(path)
    wanted: dict[str, list[str]] = {}
    for tensor, shard in weight_map.items():
        wanted.setdefault(shard, []).append(tensor)
    there = set(seen.names)
    missing = [shard for shard in wanted if shard not in there]
    files = tuple(_read_files(path.parent, sorted(wanted.keys() & there), opened=likely))
    if not files:
        raise CorruptError(f"{path}: none of the {len(wanted)} shards that it names is there")
    tensors = _joined(path, weight_map, files)
    findings = (
        *_about_missing(path, wanted, missing),
        *_about_others(path, seen, weight_map, files),
        *(_about_size(path, tensors, stated.get("total_size")) if not missing else ()),
    )
    metadata = {key: text for contents in files for key, text in contents.metadata.items()}
    metadata |= {key: text for key, text in stated.items() if isinstance(text, str)}
    return Shards(
        index=path,
        wanted=len(wanted),
        files=files,
        tensors=tensors,
        findings=findings,
        metadata=metadata,
        values=_with_plain_values(tensors, files),
    )


def indexes_of(seen: Scan) -> list[Path]:
    """Return the paths of indexes, safetensors before pickles, as the loaders prefer them."""
    if not seen.directory:
        return [seen.path] if seen.path.name.endswith(_KINDS) else []
    names = [name for kind in _KINDS for name in seen.names if name.endswith(kind)]
    return [seen.path / name for name in names]


def _read_index(path: Path) -> tuple[Mapping[str, str], Mapping[str, object]]:
    """Return the weight map, every name checked, and what else the index states, such as the total size."""
    file = open_file(path)
    if file.size > _MAX_INDEX:
        raise LimitError(f"{path}: an index of {file.size} bytes (limit {_MAX_INDEX})")
    document = formats.parse_json(file.range().read(), where=f"{path}: the index")
    file.release()
    fields = dict(document) if isinstance(document, formats.JsonPairs) else {}
    entries = fields.get("weight_map")
    if not isinstance(entries, formats.JsonPairs):
        raise CorruptError(f"{path}: the index has no weight_map of tensor names to file names")
    weight_map: dict[str, str] = {}
    for tensor, shard in entries:
        if not isinstance(shard, str) or not is_plain(shard):
            named = shard[:_MAX_NAME] if isinstance(shard, str) else "something"
            raise CorruptError(
                f"{path}: the index places {tensor} in {named!r}, which is no name of a file beside it",
                hint="names that lead out of the directory are never followed",
            )
        if weight_map.setdefault(tensor, shard) != shard:
            raise CorruptError(f"{path}: the index places {tensor} in two shards")
    metadata = fields.get("metadata")
    return weight_map, dict(metadata) if isinstance(metadata, formats.JsonPairs) else {}


def is_plain(name: str) -> bool:
    """Whether a name is one component, printable, and no way up or out."""
    plain = name not in ("", ".", "..") and "/" not in name and "\\" not in name and name.isprintable()
    return plain and len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME


def _likely(seen: Scan, index: Path) -> frozenset[str]:
    """Return the names of what must be its shards; none where there are several indexes, or pickles."""
    if len(indexes_of(seen)) > 1 or not index.name.endswith(_KINDS[0]):
        return frozenset()
    return frozenset(name for name in seen.names if name.endswith(".safetensors"))


def _read_files(directory: Path, names: list[str], *, opened: frozenset[str]) -> Iterator[Contents]:
    open_ahead((directory / name for name in names if name not in opened), window=0)
    for name in names:
        file = open_file(directory / name)
        yield formats.read(file.range())
        file.release()


def _joined(path: Path, weight_map: Mapping[str, str], files: tuple[Contents, ...]) -> Mapping[str, TensorInfo]:
    by_shard = {contents.range.file.path.name: contents.tensors for contents in files}
    joined, lost = {}, []
    for tensor, shard in weight_map.items():
        if shard not in by_shard:
            continue
        found = by_shard[shard].get(tensor)
        if found is None:
            lost.append((tensor, shard))
        else:
            joined[tensor] = found
    if lost:
        name, shard = lost[0]
        first = f"(the first is {name}, in {shard})"
        raise CorruptError(
            f"{path}: the index places {counted(len(lost), 'tensor')} in a shard that does not hold it {first}",
            hint="the index belongs to other shards; take both from one save",
        )
    return joined


def _with_plain_values(tensors: Mapping[str, TensorInfo], files: tuple[Contents, ...]) -> dict[object, object] | None:
    plain: dict[object, object] = {}
    for contents in files:
        for key, value in (as_mapping(contents.values) or {}).items():
            if isinstance(value, TensorRef) or any(isinstance(one, TensorRef) for one in nested(value)):
                continue
            taken = key in plain or key in tensors
            told_apart = f"{key} ({contents.range.file.path.name})" if taken else key
            plain[told_apart] = value
    return {**{name: TensorRef(name=name) for name in tensors}, **plain} if plain else None


def _about_missing(path: Path, wanted: Mapping[str, list[str]], missing: list[str]) -> Iterator[Finding]:
    for shard in missing:
        lost = wanted[shard]
        yield _finding(
            Severity.ERROR,
            "missing-shard",
            path,
            f"{shard} is missing: {counted(len(lost), 'tensor')} lost (the first is {lost[0]})",
        )


def _about_others(
    path: Path, seen: Scan, weight_map: Mapping[str, str], files: tuple[Contents, ...]
) -> Iterator[Finding]:
    unlisted = [
        (n, c.range.file.path.name) for c in files for n in c.tensors if weight_map.get(n) != c.range.file.path.name
    ]
    doubled = [(name, shard) for name, shard in unlisted if name in weight_map]
    left_out = [(name, shard) for name, shard in unlisted if name not in weight_map]
    if doubled:
        name, shard = doubled[0]
        what = f"{counted(len(doubled), 'tensor')} in more than one shard (the first is {name}, also in {shard})"
        yield _finding(Severity.ERROR, "duplicate-tensor", path, what)
    if left_out:
        name, shard = left_out[0]
        what = (
            f"{counted(len(left_out), 'tensor')} in the shards but not in the index (the first is {name}, in {shard})"
        )
        yield _finding(Severity.WARNING, "unlisted-tensor", path, what)
    if len(indexes_of(seen)) > 1:
        what = f"there are {len(indexes_of(seen))} indexes; this is {path.name}"
        yield _finding(Severity.WARNING, "several-indexes", path, what)


def _about_size(path: Path, tensors: Mapping[str, TensorInfo], stated: object) -> Iterator[Finding]:
    """The sum of bytes that the index states, tied tensors once; many writers get it wrong."""
    once = {tensor.identity: tensor.nbytes for tensor in tensors.values()}
    every = sum(tensor.nbytes for tensor in tensors.values())
    if stated is not None and stated not in (sum(once.values()), every):
        what = f"the index states {stated} bytes in all, the shards hold {sum(once.values())}"
        yield _finding(Severity.WARNING, "total-size", path, what)


def _finding(severity: Severity, slug: str, path: Path, message: str) -> Finding:
    return Finding(aspect=Aspect.STRUCTURE, severity=severity, slug=slug, where=path.name, message=message)
