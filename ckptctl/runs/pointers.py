"""What points at a checkpoint of a run: links, small text files such as ``latest``, links from elsewhere in it.

A path that was written on another machine, or under another mount, still means the one of its name. Whatever cannot be
told protects nothing by itself: `unreadable_pointer` says what could not be read.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, UnreadableError
from ckptctl.model.run import Pointer
from ckptctl.storage import Listed, entries_of, is_remote, is_there, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_TRACKER = "latest_checkpointed_iteration.txt"
TRACKERS = ("latest", "latest_universal", _TRACKER)
_TEXTS = re.compile(r"(?:[a-z_-]+[_-])?(?:latest|last|best|newest)(?:[_-][a-z_-]+)?(?:\.txt)?")
"""Other small text files that may name a checkpoint, such as ``last_checkpoint`` of Detectron2."""
MAX_TEXT = 8192
_MAX_NAME, _MAX_DEPTH = 255, 64


def is_text(entry: Listed) -> bool:
    """Whether a file may be one that names a checkpoint."""
    if entry.name in TRACKERS:
        return entry.is_file()
    return bool(_TEXTS.fullmatch(entry.name)) and entry.is_file() and entry.stat().st_size <= MAX_TEXT


def pointers_in(path: Path) -> tuple[Pointer, ...]:
    """Return the links and text files in a directory that point at something, without a look at anything else.

    Raises
    ------
    UnreadableError
        One of the text files cannot be read: it may point at anything.
    """
    found: list[Pointer] = []
    for entry in entries_of(path):
        if entry.is_symlink():
            found.append(of_link(path, entry.name))
        elif is_text(entry):
            found += of_text(path, entry.name, strict=True)
    return tuple(found)


def pointers_above(path: Path) -> tuple[Pointer, ...]:
    """Return the links beside a directory that lead into it, such as ``production -> run/checkpoint-100``."""
    found: list[Pointer] = []
    if is_remote(path):
        return ()  # stores have no links
    try:
        entries = [entry for entry in os.scandir(path.resolve().parent) if entry.is_symlink()]
    except OSError:
        return ()
    for entry in entries:
        inside = _child(os.path.realpath(entry.path), path)
        if inside:
            found.append(Pointer(name=f"../{entry.name}", target=inside))
    return tuple(found)


def links_within(path: Path, name: str) -> Iterator[Pointer]:
    """Yield the links somewhere in a directory of a run that lead to another name in that run."""
    todo = [(os.fspath(path / name), 0)] if not is_remote(path) else []
    while todo:
        directory, depth = todo.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries:
            if entry.is_symlink():
                target = _child(os.path.realpath(entry.path), path)
                if target and target != name:
                    yield Pointer(name=os.path.relpath(entry.path, path), target=target)
            elif entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
                todo.append((entry.path, depth + 1))


def of_link(path: Path, name: str) -> Pointer:
    """A link: if it leads into the same directory, to the name there, also where it leads further down."""
    target, said = os.path.realpath(path / name), os.readlink(path / name)  # noqa: PTH115
    dangling = not os.path.exists(target)  # noqa: PTH110
    inside = _child(target, path) or (_named(path, said.split("/"), but=name) if dangling else "")
    return Pointer(name=name, target=inside or said, dangling=dangling)


def _child(target: str, path: Path) -> str:
    """Return which name in a directory a real path is, or lies below; empty if none. Told by inodes, not by names."""
    here = os.stat(path)  # noqa: PTH116
    while True:
        parent, name = os.path.split(target)
        if parent == target:
            return ""
        try:
            found = os.stat(parent)  # noqa: PTH116
        except OSError:
            target = parent
            continue
        if (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino):
            return name
        target = parent


def of_text(path: Path, name: str, *, strict: bool = False) -> list[Pointer]:
    """A text file that names a checkpoint; one with anything else in it points nowhere.

    One that cannot be read points nowhere either, unless it is to be `strict`.
    """
    try:
        file = open_file(path / name, anew=True)
        raw = file.range().head(MAX_TEXT)
        file.release()
    except CkptctlError as error:
        if not strict:
            return []
        message = f"{path}: {name} may say which checkpoint counts, and cannot be read; nothing more is deleted"
        raise UnreadableError(message, hint=error.message) from None
    lines = [os.fsdecode(line.strip(b"\r\0 \t")) for line in raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    found = [one for line in lines if line and (one := _of_line(path, name, line))]
    return list(dict.fromkeys(found))


def _of_line(path: Path, name: str, line: str) -> Pointer | None:
    if name == _TRACKER and line.isascii() and line.isdigit() and len(line) < 19:
        line = f"iter_{int(line):07d}"
    parts = re.split(r"[/\\]", line)
    there = _named(path, parts, but=name)
    if there:
        return Pointer(name=name, target=there, dangling=False)
    outer, _, last = line.removeprefix("./").rpartition("/")
    plain = outer in ("", os.fspath(path), os.path.realpath(path))
    if name not in TRACKERS or not plain or not last or last in (".", "..") or len(os.fsencode(last)) > _MAX_NAME:
        return None
    return Pointer(name=name, target=last, dangling=True)


def _named(path: Path, parts: Iterable[str], *, but: str) -> str:
    """Return the last component of a path that is a name in a directory."""
    for part in reversed(list(parts)):
        usable = part not in ("", ".", "..", but) and "\0" not in part and len(os.fsencode(part)) <= _MAX_NAME
        if usable and is_there(path / part):
            return part
    return ""


def unreadable_pointer(path: Path) -> str:
    """Return the name of a file that may say which checkpoint counts and cannot be read; empty if there is none."""
    names = [entry.name for entry in entries_of(path) if not entry.is_symlink() and is_text(entry)]
    for name in sorted(names):
        try:
            file = open_file(path / name, anew=True)
            file.range().head(1)
            file.release()
        except CkptctlError:  # noqa: PERF203  # one that is read does not speak for the next
            return name
    return ""
