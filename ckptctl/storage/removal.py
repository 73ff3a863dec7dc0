"""Remove files and directories through handles: links are removed and never followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

from ckptctl.storage.survey import survey

if TYPE_CHECKING:
    from ckptctl.storage.survey import Opened

_BUSY = frozenset({errno.ENOTEMPTY, errno.EBUSY, errno.EEXIST})
_TRIES, _PAUSE = 5, 0.2
_BLOCK = 512
_FOLLOW_NO_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED = threading.Lock()


def remove_tree(directory: Opened, name: str) -> int:
    """Remove something in a directory for good; return how many bytes on disk that freed.

    A network file system keeps a file that is open under a name of its own for a while: that is tried again.

    Raises
    ------
    OSError
        Some of it could not be removed. What could be is.
    """
    found = survey(directory, name)
    if found.mounted:
        raise OSError(errno.EBUSY, found.why)
    return _remove(directory.fd, name)


def _remove(parent: int, name: str) -> int:
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    return _unlink(parent, name, found) if not stat.S_ISDIR(found.st_mode) else _remove_directory(parent, name)


def _unlink(parent: int, name: str, found: os.stat_result) -> int:
    if found.st_nlink == 1:
        os.unlink(name, dir_fd=parent)
        return found.st_blocks * _BLOCK
    with _SHARED:  # of several names of one file that are removed at the same time, the last one frees it
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        os.unlink(name, dir_fd=parent)
    return found.st_blocks * _BLOCK if found.st_nlink == 1 else 0


def _remove_directory(parent: int, name: str) -> int:
    freed = 0
    for attempt in range(_TRIES):
        fd = os.open(name, _FOLLOW_NO_LINK, dir_fd=parent)
        try:
            blocks = os.fstat(fd).st_blocks
            found, problem = _remove_inside(fd)
        finally:
            os.close(fd)
        freed += found
        try:
            if problem:
                raise problem
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno not in _BUSY or attempt + 1 == _TRIES:
                raise
            time.sleep(_PAUSE)
        else:
            return freed + blocks * _BLOCK
    return freed


def _remove_inside(fd: int) -> tuple[int, OSError | None]:
    """Remove all that can be removed; return how many bytes that freed, and what stood in the way of the rest."""
    freed, problem = 0, None
    for inner in sorted(os.listdir(fd)):  # by handle
        try:
            with contextlib.suppress(FileNotFoundError):
                freed += _remove(fd, inner)
        except OSError as error:  # noqa: PERF203  # the rest goes all the same
            problem = error
    return freed, problem
