"""Write only what changed since another checkpoint: what its base has, byte by byte, is not written again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.layouts.deltas import MAX_CHAIN, is_same_file, text_of
from ckptctl.model import Base
from ckptctl.rewrite.outputs import SAFETENSORS, OutputFile, Outputs
from ckptctl.storage import StoredFile, has_file, open_file, unreadable
from ckptctl.storage.digest import sha256_of
from ckptctl.tensors.compare import same_bytes
from ckptctl.training.warned import warned_aside
from ckptctl.values import BASE_KEY, BASE_VALUES_KEY, VALUES_KEY

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ckptctl.model import Checkpoint, TensorInfo
    from ckptctl.rewrite.prepared import Item

_MOST_WRITTEN = 16
_written: dict[Path, tuple[tuple[int, ...], str]] = {}


def checked_base(base: str | os.PathLike[str] | None, target: Path) -> Path | None:
    """Return the path of a base that a file may be a delta on.

    Raises
    ------
    UsageError
        It is no safetensors file beside the target, or is the target itself.
    """
    if base is None:
        return None
    path = target.parent / Path(base).name
    if path.is_symlink():  # it may lead elsewhere tomorrow
        path = target.parent / path.resolve().name if path.resolve().parent == target.parent.resolve() else path
    if target.suffix != SAFETENSORS or path.suffix != SAFETENSORS:
        raise UsageError(f"{target}: a delta is one safetensors file, and so is its base")
    if path.is_symlink() or Path(base).absolute().parent.resolve() != target.parent.resolve():
        raise UsageError(f"{base}: a base lies beside what is saved, in {target.parent}")
    if is_same_file(target, path.name):
        raise UsageError(f"{target}: it cannot be its own base", hint="save each checkpoint under a name of its own")
    return path


def without_unchanged(outputs: Outputs, base: Path | None) -> Outputs:
    """Return what is to be written where a base has some of it; all of it, with a warning, if the base is of no use."""
    if base is None or has_file(outputs.files[0].path):
        return outputs  # what is there is whole: it is replaced by nothing that needs another
    try:
        checkpoint = open_checkpoint(base)
        if len(checkpoint.bases) >= MAX_CHAIN:
            return outputs  # whoever loads it has to have all of them
        return _delta(outputs, base, checkpoint)
    except CkptctlError as error:
        warn_whole(error)
        return outputs
    except OSError as error:  # it is gone by now, or cannot be read
        warn_whole(unreadable(base, error))
        return outputs


def warn_whole(error: CkptctlError) -> None:
    """Say that all is saved, and why."""
    warned_aside(f"the whole state is saved: {error.message}")


def _delta(outputs: Outputs, base: Path, checkpoint: Checkpoint) -> Outputs:
    (file,) = outputs.files
    before = {name: tensor for part in checkpoint.parts.values() for name, tensor in part.tensors.items()}
    same: dict[object, str] = {}
    for name, item in file.items.items():
        if _is_same(item, before.get(name)):  # of names that were tied and are not any more, one is taken from there
            same.setdefault(_place(before[name]) or name, name)
    if not same:
        return outputs
    stored = checkpoint.files[0].range.file
    said = Base(
        name=base.name,
        size=stored.size,
        sha256=_digest(base, stored),
        tensors=tuple(same.values()),
        beyond=tuple(one.name for one in checkpoint.bases),
    )
    needed = tuple(one.range.file for one in checkpoint.files if isinstance(one.range.file, StoredFile))
    for one in needed:
        one.check_in_place()
        one.release()
    texts: dict[str, str] = dict(file.metadata)
    texts[BASE_VALUES_KEY] = texts.pop(VALUES_KEY)
    made = OutputFile(
        path=file.path,
        items=_without(file.items, frozenset(same.values())),
        metadata={**texts, BASE_KEY: text_of(said)},
    )
    return replace(outputs, files=(made,), needed=needed)


def _place(tensor: TensorInfo) -> object:
    """Return where the bytes of a tensor begin; None if it has none."""
    first = tensor.pieces[0].range if tensor.nbytes else None
    return (id(first.file), first.offset) if first else None


def _without(items: Mapping[str, Item], names: frozenset[str]) -> dict[str, Item]:
    return {name: item for name, item in items.items() if name not in names}


def _is_same(item: Item, before: TensorInfo | None) -> bool:
    now = item.source
    if before is None or (before.dtype, before.shape, before.layout) != (now.dtype, now.shape, now.layout):
        return False
    return now.layout == "strided" and same_bytes(now, before)


def remember(path: Path, sha256: str) -> None:
    """Keep the digest of a file that was just written, so that a delta on it need not read it again."""
    found = path.stat()
    _written[path] = (found.st_ino, found.st_size, found.st_mtime_ns), sha256
    while len(_written) > _MOST_WRITTEN:
        del _written[next(iter(_written))]


def _digest(path: Path, stored: object) -> str:
    """Return the SHA-256 of a base: as it was written by this process, or else as it is; a record may be of another."""
    found = path.stat()
    known, sha256 = _written.get(path, ((), ""))
    if known == (found.st_ino, found.st_size, found.st_mtime_ns):
        return sha256
    return sha256_of(stored.again() if isinstance(stored, StoredFile) else open_file(path))
