"""A directory held by a handle: locked, looked into and flushed without going by its name again."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from ckptctl.errors import LockedError, UnsupportedError
from ckptctl.storage.byterange import unreadable

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})
_NO_FLUSH = frozenset({errno.EINVAL, errno.EBADF})


class Directory:
    """An open directory. `fd` is its handle, `identity` tells it from any other; a lock lasts until it is closed.

    Raises
    ------
    UnreadableError
        It is not there, may not be read, or is no directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from None
        found = os.fstat(self.fd)
        self.identity = found.st_dev, found.st_ino

    def __enter__(self) -> Directory:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)

    def lock(self, *, wait: bool = False, needed: bool = True) -> None:
        """Let nobody else lock the directory meanwhile. Nothing is created for it; the lock dies with its holder.

        Raises
        ------
        LockedError
            Somebody else holds it, and `wait` is off.
        UnsupportedError
            The file system has no locks, and one is `needed`.
        """
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise LockedError(f"{self.path}: another prune is at work here", hint="--wait waits for it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            if not needed:
                return
            hint = "--no-lock goes on without, if no other prune can run at the same time"
            raise UnsupportedError(f"{self.path}: its file system has no locks", hint=hint) from None

    def names(self) -> frozenset[str]:
        """Return the names in it."""
        return frozenset(os.listdir(self.fd))  # noqa: PTH208  # by handle

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of a name in it, links not followed; None if it is not there."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def rename(self, old: str, new: str) -> None:
        """Give something in it another name in it. The caller has made sure that nothing has that name."""
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def flush(self) -> None:
        """Make the names in it outlast a crash."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno not in _NO_FLUSH:  # file systems that flush no directories
                raise
