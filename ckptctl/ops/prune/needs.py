"""Which files of a run others cannot be read without: the bases of deltas, in it and in its trash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.layouts.deltas import SUFFIX, stated_bases
from ckptctl.runs.trash import trash_in
from ckptctl.storage import is_remote
from ckptctl.storage.set_aside import PREFIX

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping
    from datetime import datetime

    from ckptctl.ops.prune.group import Group
    from ckptctl.storage.directory import Held


def seen_in(directory: Held) -> dict[str, Hashable]:
    """Return the files that may be deltas, each with what tells it from one that replaces it."""
    found: dict[str, Hashable] = {}
    for name in directory.names():
        if name.endswith(SUFFIX) and not name.startswith(PREFIX) and (seen := directory.stat(name)):
            found[name] = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
    return found


def bases_in(directory: Held, groups: Iterable[Group]) -> dict[str, tuple[str, ...]]:
    """Return what each delta in a directory needs, also one that is damaged or has no name of a run.

    Raises
    ------
    UnreadableError
        Of a file nobody knows what it needs.
    """
    every = [decision.checkpoint for group in groups for decision in group.decisions]
    known = {path.name for info in every if info.complete for path in info.paths}
    found = {info.path.name: info.bases for info in every if info.complete and info.bases}
    return found | bases_of(directory, seen_in(directory).keys() - known)


def bases_of(directory: Held, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return what some files need, of those that need something."""
    return {name: bases for name in sorted(names) if (bases := stated_bases(directory.path / name))}


def needed_since(directory: Held, seen: Mapping[str, Hashable]) -> dict[str, str]:
    """Return what is needed by files that came after a look at a directory: each name, and what needs it."""
    new = [name for name, one in seen_in(directory).items() if seen.get(name) != one]
    return {base: name for name, bases in bases_of(directory, new).items() for base in bases}


def needed_in_trash(directory: Held) -> dict[str, datetime]:
    """Return what deltas in the trash need, and until when: they may come back."""
    found: dict[str, datetime] = {}
    for one in trash_in(directory):
        if one.name.endswith(SUFFIX):
            where = directory.path / (one.name if is_remote(directory.path) else one.entry)
            for base in stated_bases(where):
                found[base] = max(found.get(base, one.deadline), one.deadline)
    return found
