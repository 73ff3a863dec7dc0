"""Digests beside checkpoints that were saved again since: which are stale, and what tells two saves apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.checks.digests import SUFFIX, SUMS
from ckptctl.model.endings import ENDINGS

if TYPE_CHECKING:
    from pathlib import Path


def stale_digests(path: Path) -> tuple[Path, ...]:
    """Return the digests of a checkpoint on disk that were made no later than a file that they are of was last changed.

    A sidecar is of one file; a list is stale as a whole if one of its files is newer.
    """
    found: dict[Path, None] = {}
    for file in _files_of(path):
        lists = [above / SUMS for above in file.parents if above.is_relative_to(path)]
        for digest in (
            file.with_name(f"{file.name}{SUFFIX}"),
            *([file.with_suffix(SUFFIX)] if file.suffix in ENDINGS else []),
            *lists,
        ):
            if digest.is_file() and digest.stat().st_mtime_ns <= file.stat().st_mtime_ns:
                found[digest] = None
    return tuple(found)


def signature(path: Path) -> tuple[object, ...]:
    """Return what tells the files of a checkpoint from others of the same names, whatever the clock says."""
    every = ((one.name, one.stat()) for one in sorted(_files_of(path)))
    return tuple((name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) for name, found in every)


def _files_of(path: Path) -> list[Path]:
    every = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path] if path.exists() else []
    return [one for one in every if one.name != SUMS and one.suffix != SUFFIX]
