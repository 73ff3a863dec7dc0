"""Write only what changed since another checkpoint: what its base has, byte by byte, is not written again."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.checks.digests import recorded_for, sums_of
from ckptctl.errors import CkptctlError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.layouts.deltas import MAX_CHAIN, is_same_file, text_of
from ckptctl.model import Base
from ckptctl.rewrite.outputs import SAFETENSORS, OutputFile, Outputs
from ckptctl.storage import StoredFile, open_file
from ckptctl.tensors.compare import same_bytes
from ckptctl.values import BASE_KEY, BASE_VALUES_KEY, VALUES_KEY

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ckptctl.model import Checkpoint, TensorInfo
    from ckptctl.rewrite.prepared import Item

_BLOCK = 4 << 20


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
    if target.suffix != SAFETENSORS or path.suffix != SAFETENSORS:
        raise UsageError(f"{target}: a delta is one safetensors file, and so is its base")
    if Path(base).absolute().parent.resolve() != target.parent.resolve():
        raise UsageError(f"{base}: a base lies beside what is saved, in {target.parent}")
    if is_same_file(target, path.name):
        raise UsageError(f"{target}: it cannot be its own base", hint="save each checkpoint under a name of its own")
    return path


def without_unchanged(outputs: Outputs, base: Path | None) -> Outputs:
    """Return what is to be written where a base has some of it; all of it, with a warning, if the base is of no use."""
    if base is None:
        return outputs
    try:
        checkpoint = open_checkpoint(base)
        if len(checkpoint.bases) >= MAX_CHAIN:
            return outputs  # whoever loads it has to have all of them
        return _delta(outputs, base, checkpoint)
    except CkptctlError as error:
        warnings.warn(f"the whole state is saved: {error.message}", UserWarning, stacklevel=4)
        return outputs


def has_bases(path: Path) -> bool:
    """Whether a delta that was written has its bases: what deletes one looks for new deltas after, this before."""
    try:
        return bool(open_checkpoint(path, glance=True).bases)
    except CkptctlError as error:
        warnings.warn(f"the whole state is saved: {error.message}", UserWarning, stacklevel=4)
        return False


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
    for one in checkpoint.files:
        _check_in_place(one.range.file)
    texts: dict[str, str] = dict(file.metadata)
    texts[BASE_VALUES_KEY] = texts.pop(VALUES_KEY)
    made = OutputFile(
        path=file.path,
        items=_without(file.items, frozenset(same.values())),
        metadata={**texts, BASE_KEY: text_of(said)},
    )
    return replace(outputs, files=(made,))


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


def _check_in_place(file: object) -> None:
    """Make sure that what was compared is still what has its name."""
    if isinstance(file, StoredFile):
        file.check_in_place()
        file.release()


def _digest(path: Path, stored: object) -> str:
    """Return the SHA-256 of a base: the one on record, or else what it is."""
    names = [one.name for one in path.parent.iterdir()]
    found = recorded_for(path, names, sums_of(path.parent, names))
    known = next((one.digest.lower() for one in found if one.digest and not one.shared), "")
    if known:
        return known
    file = stored.again() if isinstance(stored, StoredFile) else open_file(path)
    digest, buffer, at = hashlib.sha256(), memoryview(bytearray(_BLOCK)), 0
    while count := file.pread_into(buffer, at):
        digest.update(buffer[:count])
        at += count
    file.release()
    return digest.hexdigest()
