"""What lies under a name, looked at without following links: how much it is, and whether it may be removed."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOUNTS = Path("/proc/self/mountinfo")
_MAX_DEPTH = 64
_BLOCK = 512
"""Bytes in a block of ``st_blocks``, on every system."""
_FOLLOW_NO_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Inode = tuple[int, int]


class Opened(Protocol):
    """A directory on disk that is held open by `fd`."""

    path: Path
    fd: int

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of a name in it, links not followed; None if it is not there."""


@dataclass(slots=True)
class Survey:
    """A file or a whole directory at one moment.

    Two surveys are equal if nothing was changed in between, as far as inodes, sizes and times tell. `own` is how
    many bytes on disk have no other name; `shared` are those with several names: how many names each has, how many
    of them are here, its bytes. `suspects` are the names further down that were to be noted. `why` says why it must
    not be removed, empty if it may be; `mounted` tells of another file system in it, whatever else there is.
    """

    top: tuple[int, int, int, int] = (0, 0, 0, 0)
    files: int = 0
    size: int = 0
    newest: int = 0
    own: int = field(default=0, compare=False)
    shared: dict[Inode, tuple[int, int, int]] = field(default_factory=dict, compare=False)
    suspects: list[str] = field(default_factory=list, compare=False)
    why: str = field(default="", compare=False)
    mounted: bool = field(default=False, compare=False)

    def note_mount(self) -> None:
        """Another file system is mounted on it or in it; whatever else is found, nothing of that may be removed."""
        self.why, self.mounted = "another file system is mounted on it or in it", True


def survey(directory: Opened, name: str, suspects: Callable[[str, bool], bool] = lambda *_: False) -> Survey:
    """Look at everything under a name in a directory.

    `suspects` tells of a name further down, and whether it is one of a directory, whether to note it.
    """
    found = directory.stat(name)
    if found is None:
        return Survey(why="it is gone")
    result = Survey(top=(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_mode))
    path = directory.path / name
    if found.st_dev != os.fstat(directory.fd).st_dev or _holds_a_mount(path):
        result.note_mount()
    elif stat.S_ISREG(found.st_mode):
        _count(result, found)
    elif stat.S_ISDIR(found.st_mode):
        try:
            _inside(result, directory.fd, name, path, suspects, ())
        except OSError as error:
            result.why = f"{error.filename or 'something'} in it cannot be looked at ({error.strerror})"
    else:
        result.why = "it is neither a file nor a directory"
    return result


def freed_by(surveys: Iterable[Survey]) -> int:
    """Return how many bytes on disk removing all of these frees: what has a name elsewhere stays."""
    own, here, of = 0, Counter[Inode](), {}
    for one in surveys:
        own += one.own
        for inode, (links, seen, nbytes) in one.shared.items():
            here[inode] += seen
            of[inode] = links, nbytes
    return own + sum(nbytes for inode, (links, nbytes) in of.items() if here[inode] >= links)


def _count(result: Survey, found: os.stat_result) -> None:
    nbytes = found.st_blocks * _BLOCK
    result.files += 1
    result.size += found.st_size
    result.newest = max(result.newest, found.st_mtime_ns)
    if found.st_nlink == 1:
        result.own += nbytes
    else:
        inode = (found.st_dev, found.st_ino)
        _, seen, _ = result.shared.get(inode, (0, 0, 0))
        result.shared[inode] = found.st_nlink, seen + 1, nbytes


def _inside(  # noqa: PLR0913, PLR0917
    result: Survey, parent: int, name: str, path: Path, suspects: Callable[[str, bool], bool], above: tuple[str, ...]
) -> None:
    fd = os.open(name, _FOLLOW_NO_LINK, dir_fd=parent)
    try:
        here = os.fstat(fd)
        result.own += here.st_blocks * _BLOCK
        result.newest = max(result.newest, here.st_mtime_ns)
        for inner in os.listdir(fd):  # noqa: PTH208  # by handle
            found = os.stat(inner, dir_fd=fd, follow_symlinks=False)
            is_directory = stat.S_ISDIR(found.st_mode)
            if suspects(inner, is_directory):
                result.suspects.append("/".join((*above, inner)))
            if is_directory:
                if len(above) >= _MAX_DEPTH:
                    result.why = "directories in it are nested too deeply"
                elif found.st_dev != here.st_dev:
                    result.note_mount()
                else:
                    _inside(result, fd, inner, path / inner, suspects, (*above, inner))
            elif stat.S_ISLNK(found.st_mode) and _leads_out(path / inner, path, len(above)):
                result.why = f"{inner} in it is a link that leads out"
            else:
                _count(result, found)
    finally:
        os.close(fd)


def _leads_out(link: Path, directory: Path, depth: int) -> bool:
    top = directory.parents[depth - 1] if depth else directory
    return not Path(os.path.realpath(link)).is_relative_to(os.path.realpath(top))


def _holds_a_mount(path: Path) -> bool:
    """Whether something is mounted on a path or below it; also where the device is the same, as with a bind mount."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return False  # elsewhere the device of each directory has to tell
    top = os.fsencode(os.path.realpath(path.parent) + os.sep + path.name)
    points = (re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), line.split(b" ")[4]) for line in lines)
    return any(point == top or point.startswith(top + b"/") for point in points)
