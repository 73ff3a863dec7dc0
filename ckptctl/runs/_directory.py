"""One look at a directory of checkpoints: names of checkpoints, links, pointers, and everything else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.model.run import Pointer
from ckptctl.runs._names import Named, name_of
from ckptctl.storage import LocalFile, unreadable

if TYPE_CHECKING:
    from pathlib import Path

_TRACKER = "latest_checkpointed_iteration.txt"
_TRACKERS = ("latest", "latest_universal", _TRACKER)
_TEXTS = re.compile(r"(?:[a-z_-]+[_-])?(?:latest|last|best|newest)(?:[_-][a-z_-]+)?(?:\.txt)?")
"""Other small text files that may name a checkpoint, such as ``last_checkpoint`` of Detectron2."""
_MAX_TEXT = 256
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
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(path, error) from None
    every = {entry.name for entry in entries}
    for entry in entries:
        names.add(entry.name)
        if entry.is_symlink():
            pointers.append(_link(path, entry.name))
        elif entry.is_file() and (entry.name in _TRACKERS or _may_point(entry)):
            pointers += _text(path, entry.name)
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
    return f"{path.name}{_KEEP}" in names or os.path.exists(path / _KEEP)  # noqa: PTH110


def _link(path: Path, name: str) -> Pointer:
    """A link: if it leads into the same directory, to the name there, also where it leads further down."""
    target, root = os.path.realpath(path / name), os.path.realpath(path)
    inside = target.startswith(root + os.sep)
    shown = target[len(root) + 1 :].partition(os.sep)[0] if inside else os.readlink(path / name)  # noqa: PTH115
    return Pointer(name=name, target=shown, dangling=not os.path.exists(target))  # noqa: PTH110


def _link_as_text(path: Path, entry: os.DirEntry[str]) -> Pointer | None:
    """A link that was copied to a place without links, as git does: a file that holds the name of a checkpoint."""
    if entry.stat().st_size > _MAX_TEXT:
        return None
    try:
        file = LocalFile(path / entry.name)
        text = file.range().read().decode("utf-8", "replace")
        file.release()
    except CkptctlError:
        return None
    if "/" in text or text == entry.name or not name_of(text, directory=False, pattern=None):
        return None
    return Pointer(name=entry.name, target=text, dangling=not os.path.exists(path / text))  # noqa: PTH110


def _may_point(entry: os.DirEntry[str]) -> bool:
    return bool(_TEXTS.fullmatch(entry.name)) and entry.stat().st_size <= _MAX_TEXT


def pointers_in(path: Path) -> tuple[Pointer, ...]:
    """Return the links and text files in a directory that point at something, without a look at anything else."""
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink():
                found.append(_link(path, entry.name))
            elif entry.name in _TRACKERS or (_TEXTS.fullmatch(entry.name) and entry.is_file() and _may_point(entry)):
                found += _text(path, entry.name)
    return tuple(found)


def _text(path: Path, name: str) -> list[Pointer]:
    """A text file that names the newest checkpoint; one with anything else in it points nowhere."""
    try:
        file = LocalFile(path / name)
        text = file.range().head(_MAX_TEXT + 1).decode("utf-8", "replace").strip()
        file.release()
    except CkptctlError:
        return []
    if name == _TRACKER and text.isascii() and text.isdigit() and len(text) < 19:
        text = f"iter_{int(text):07d}"
    outer, _, last = text.removeprefix("./").rpartition("/")
    if outer in ("", os.fspath(path), os.path.realpath(path)) or os.path.lexists(path / last):
        text = last  # a path that was written on another machine still means the one of that name
    if not text or len(text) > _MAX_TEXT or "/" in text or text in (".", ".."):
        return []
    dangling = not os.path.exists(path / text)  # noqa: PTH110
    return [Pointer(name=name, target=text, dangling=dangling)] if name in _TRACKERS or not dangling else []
