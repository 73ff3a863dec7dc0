"""One look at a directory of checkpoints: names of checkpoints, links, pointers, and everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.model.run import Pointer
from ckptctl.runs._names import Named, name_of
from ckptctl.runs.pointers import is_text, of_link, of_text
from ckptctl.storage import Listed, entries_of, is_there, list_ahead, open_file, unreadable

if TYPE_CHECKING:
    import re
    from pathlib import Path


_MAX_TEXT = 256
_SEVERAL = 3
_KEEP = ".keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """What stands in a directory: `checkpoints` by their names, `directories` that are none, all `names`."""

    path: Path
    checkpoints: tuple[Named, ...]
    pointers: tuple[Pointer, ...]
    directories: tuple[str, ...]
    names: frozenset[str]


def look(path: Path, pattern: re.Pattern[str] | None) -> Directory:
    """Sort what stands in a directory by what its names tell."""
    checkpoints, pointers, directories, names = [], [], [], set()
    try:
        entries = sorted(entries_of(path), key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(path, error) from None
    if sum(not entry.is_symlink() and entry.is_dir() for entry in entries) >= _SEVERAL:
        list_ahead(path)
    every = {entry.name for entry in entries}
    for entry in entries:
        names.add(entry.name)
        if entry.is_symlink():
            pointers.append(of_link(path, entry.name))
        elif is_text(entry):
            pointers += of_text(path, entry.name)
        elif not entry.name.startswith(".ckptctl-") and not _is_mark(entry.name, every):
            directory = entry.is_dir()
            named = name_of(entry.name, directory=directory, pattern=pattern)
            link = _link_as_text(path, entry) if named and not directory else None
            if link:
                pointers.append(link)
            elif named:
                checkpoints.append(named)
            elif directory and not entry.name.startswith("."):
                directories.append(entry.name)
    return Directory(
        path=path,
        checkpoints=tuple(checkpoints),
        pointers=tuple(pointers),
        directories=tuple(directories),
        names=frozenset(names),
    )


def _is_mark(name: str, names: set[str]) -> bool:
    """Whether a name only marks the one beside it as unfinished."""
    return name.endswith("-unfinished") and name.removesuffix("-unfinished") in names


def is_pinned(path: Path, names: frozenset[str]) -> bool:
    """Whether ``NAME.keep`` stands beside a checkpoint, or ``.keep`` in it."""
    return f"{path.name}{_KEEP}" in names or is_there(path / _KEEP)


def _link_as_text(path: Path, entry: Listed) -> Pointer | None:
    """A link that was copied to a place without links, as git does: a file that holds the name of a checkpoint."""
    if entry.stat().st_size > _MAX_TEXT:
        return None
    try:
        file = open_file(path / entry.name)
        said = file.range().read().decode("utf-8", "replace")
        file.release()
    except CkptctlError:
        return None
    if "/" in said or said == entry.name or not name_of(said, directory=False, pattern=None):
        return None
    return Pointer(name=entry.name, target=said, dangling=not is_there(path / said))
