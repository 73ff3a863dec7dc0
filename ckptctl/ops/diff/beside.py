"""What lies beside the tensors: texts in metadata, digests on record, and the bytes of the files themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.checks.digests import recorded_digest
from ckptctl.errors import CkptctlError
from ckptctl.model.ties import recorded_ties
from ckptctl.storage import StoredFile
from ckptctl.values import VALUES_KEY, as_mapping, is_module, text_items
from ckptctl.values.compare import ValueDiff, value_differences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.model import Checkpoint, Contents
    from ckptctl.ops.diff.options import Options

_SILENT = frozenset({"format", VALUES_KEY, "total_size", "total_parameters", "DCP_SHARDING_INFO", "DCP_VERSION"})
"""Keys that say how a file is made, not what is in it."""
_BY_RANK = frozenset({"deepspeed"})
"""Layouts with a file for each rank, of which each holds plain values."""
_BLOCK = 1 << 20


def metadata_differences(a: Checkpoint, b: Checkpoint) -> Iterator[ValueDiff]:
    """Yield texts in metadata that differ, if both sides are of a format that has some."""
    if all(any(one.format == "safetensors" for one in side.files) for side in (a, b)):
        yield from value_differences(_texts(a), _texts(b))


def _texts(side: Checkpoint) -> dict[str, object]:
    """Return texts by key; of files that say different things all of those."""
    found: dict[str, list[str]] = {}
    for contents in side.files:
        ties = recorded_ties(contents.metadata, contents.tensors)
        for key, text in contents.metadata.items():
            if key not in _SILENT and key not in ties:
                found.setdefault(key, []).append(text)
    return {key: texts[0] if len(set(texts)) == 1 else tuple(texts) for key, texts in found.items()}


def rank_differences(a: Checkpoint, b: Checkpoint) -> Iterator[ValueDiff]:
    """Yield where plain values of other ranks than the first differ, of checkpoints with a file for each."""
    if a.layout in _BY_RANK and a.layout == b.layout:
        one, other = _by_name(a), _by_name(b)
        for name in {**one, **other}:
            for found in value_differences(_items(one.get(name)), _items(other.get(name))):
                yield replace(found, path=f"{name}: {found.path}")


def _by_name(side: Checkpoint) -> dict[str, object]:
    return {one.range.file.path.name: one.values for one in side.files[1:]}


def _items(values: object) -> dict[str, object]:
    items = as_mapping(values)
    return dict(text_items(items)) if items is not None else {"": values} if values is not None else {}


def notes(a: Checkpoint, b: Checkpoint, options: Options, *, equal: bool) -> Iterator[str]:
    """Yield what was not compared, and what digests on record say."""
    if options.selects:
        yield "plain values and metadata were not compared, since --include and --exclude choose tensors"
    elif a.layout != b.layout:
        for letter, side in (("A", a), ("B", b)):
            if side.layout in _BY_RANK and len(side.files) > 1:
                yield f"of the ranks of {letter} only the plain values of the first were compared"
    modules = [any(is_module(one.values) for one in side.files) for side in (a, b)]
    if modules[0] != modules[1]:
        yield f"{'A' if modules[0] else 'B'} is a whole module: its tensors were compared, its program was not"
    yield from _on_digests(a, b, equal=equal)


def _on_digests(a: Checkpoint, b: Checkpoint, *, equal: bool) -> Iterator[str]:
    """Yield what digests on record say, which nobody has checked here."""
    try:
        one, other = (recorded_digest(side) if _only(side) else "" for side in (a, b))
    except CkptctlError:
        return  # `verify` says what is wrong with them
    if one and other:
        agree = "agree" if one == other else "differ"
        but = "" if one == other or not equal else ", though what the files hold is equal"
        yield f"the digests on record {agree} (sha256 {one[:8]}… and {other[:8]}…){but}; bytes were compared too"


def _only(side: Checkpoint) -> StoredFile | None:
    file = side.files[0].range.file if len(side.files) == 1 else None
    return file if isinstance(file, StoredFile) and side.path.is_file() else None


def byte_identical(a: Checkpoint, b: Checkpoint) -> bool | None:
    """Whether two files whose tensors are equal are so byte by byte; None if they are not one file each."""
    one, other = _only(a), _only(b)
    if one is None or other is None:
        return None
    if one.size != other.size or _places(a.files[0]) != _places(b.files[0]):
        return False
    between, at = [], 0
    for start, length in [*_places(a.files[0]), (one.size, 0)]:
        between += [(first, min(start - first, _BLOCK)) for first in range(at, start, _BLOCK)]
        at = max(at, start + length)
    for file in (one, other):
        file.expect(between)
    return all(one.pread(count, first) == other.pread(count, first) for first, count in between)


def _places(contents: Contents) -> list[tuple[int, int]]:
    """Return where tensors lie that are stored as they are."""
    return sorted(
        (piece.range.offset, piece.range.length)
        for tensor in contents.tensors.values()
        for piece in tensor.pieces
        if not piece.encoding and piece.strides is None and not piece.unpack and not piece.inner
    )
