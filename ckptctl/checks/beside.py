"""What lies in the directory of a checkpoint, or of a run, beside the files that are read of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.model import Aspect, Finding, Severity
from ckptctl.model.endings import ENDINGS
from ckptctl.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ckptctl.model import Checkpoint

_SHARD = re.compile(r"(.+?)-[0-9]{3,6}-of-[0-9]{3,6}(\.safetensors|\.bin)")
_MAX_JSON = 32 << 20


def beside(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield what is wrong beside the files of a checkpoint: shards of another save, JSON that is none."""
    yield from _extra_shards(checkpoint)
    yield from _documents(checkpoint.path)


def _extra_shards(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Shards in the directory, called like those of the index, that it does not name."""
    named = {one.range.file.path.name for one in checkpoint.files}
    stems = {(found[1], found[2]) for name in named if (found := _SHARD.fullmatch(name))}
    if not stems or not checkpoint.path.is_dir():
        return
    for name in sorted(entry.name for entry in checkpoint.path.iterdir()):
        found = _SHARD.fullmatch(name)
        missing = any(finding.message.startswith(f"{name} ") for finding in checkpoint.findings)
        if found and (found[1], found[2]) in stems and name not in named and not missing:
            yield _finding("extra-shard", name, "the index does not name this shard: it is of another save")


def not_looked_at(path: Path, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield a note on the files that are called like weights and are no part of the checkpoint in their directory."""
    if not path.is_dir():
        return
    known = {one.range.file.path.name for one in checkpoint.files}
    others = sorted(
        entry.name for entry in path.iterdir() if entry.name.endswith((*ENDINGS, ".distcp")) and entry.name not in known
    )
    others = [name for name in others if not any(name in finding.message for finding in checkpoint.findings)]
    if others and checkpoint.path.name not in others:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        note = _finding("not-read", path.name, f"{others[0]}{more}: no part of this checkpoint, and not looked at")
        yield replace(note, severity=Severity.NOTE)


def _documents(directory: Path) -> Iterator[Finding]:
    """Yield the JSON files of a checkpoint directory that are none: cut, or never written."""
    for path in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        try:
            if path.is_file() and not _is_json(path):
                yield _finding("bad-json", path.name, f"{path.name} is empty, cut or not JSON")
        except CkptctlError as error:  # noqa: PERF203  # the others are looked at
            yield _finding(error.slug, path.name, error.message)


def _is_json(path: Path) -> bool:
    file = open_file(path)
    if file.size > _MAX_JSON:
        return True  # it is not parsed here
    text = file.range().read()
    file.release()
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:
        return True
    return True


def orphan_digests(directory: Path) -> Iterator[Finding]:
    """Yield a warning for each digest whose file is not there."""
    names = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
    stems = {name.rpartition(".")[0] for name in names if not name.endswith(".sha256")} | names
    for name in sorted(names):
        if name.endswith(".sha256") and name.removesuffix(".sha256") not in stems:
            warning = _finding("orphan-digest", name, "the file that this digest is of is not there")
            yield replace(warning, severity=Severity.WARNING)


def left_empty(names: Iterable[str]) -> Iterator[Finding]:
    """Yield a warning for each empty directory that is called like a checkpoint, and older than a whole one."""
    for name in names:
        yield replace(_finding("empty", name, "an empty directory with a checkpoint's name"), severity=Severity.WARNING)


def missing_pointers(pointers: Iterable[tuple[str, str]], where: str) -> Iterator[Finding]:
    """Yield a finding for each pointer (its name, its target) that leads nowhere."""
    for name, target in pointers:
        yield _finding("dangling-pointer", where, f"{name} points at {target}, which is not there")


def _finding(slug: str, where: str, message: str) -> Finding:
    return Finding(aspect=Aspect.STRUCTURE, severity=Severity.ERROR, slug=slug, where=where, message=message)
