"""Temporary files, locked while their writers live; those of the dead are removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from ckptctl.errors import ExistsError, LockedError

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_STALE = 3600
"""Seconds after which a temporary file counts as left over where there are no locks."""
_TRIES = 5


def claimed(path: Path, target: Path) -> FileIO:
    """Create the temporary file, locked; remove one whose writer is dead.

    It is opened as Python opens files, so that tools that follow a program's files see it, and see it flushed.
    """
    for _ in range(_TRIES):
        try:
            file = path.open("x+b", buffering=0)
        except FileExistsError:
            _sweep(path, target)
            continue
        except OSError as error:
            error.filename = str(target)  # the temporary name says nothing to anybody
            raise
        try:
            _lock(file.fileno(), target)
        except LockedError:
            file.close()  # a sweeper came between creating and locking
            raise
        if _is(path, file.fileno()):
            return file
        file.close()
    raise _busy(target)


def _sweep(path: Path, target: Path) -> None:
    """Remove a temporary file that nobody writes any more."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError:
        raise ExistsError(f"{path}: something that is not a leftover of ckptctl has this name") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ExistsError(f"{path}: something that is not a leftover of ckptctl has this name")
        if not _lock(fd, target) and time.time() - found.st_mtime < _STALE:
            raise _busy(target)
        if _is(path, fd):
            path.unlink()
    finally:
        os.close(fd)


def sweep_dead(directory: Path) -> None:
    """Remove temporary files of a directory whose writers died more than an hour ago; what resists stays."""
    with contextlib.suppress(OSError):
        for path in directory.glob(".?*.ckptctl-tmp"):
            with contextlib.suppress(OSError, ExistsError, LockedError):
                if time.time() - path.lstat().st_mtime > _STALE:
                    _sweep(path, path)


def _lock(fd: int, target: Path) -> bool:
    """Lock a file; False where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise _busy(target) from None
    return True


def _is(path: Path, fd: int) -> bool:
    """Whether a name still leads to the open file."""
    try:
        there, here = path.lstat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _busy(target: Path) -> LockedError:
    return LockedError(f"{target}: somebody else is writing it", hint="wait until the other one has finished")
