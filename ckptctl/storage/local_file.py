"""Files on disk, read at an offset; and why one cannot be."""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING

from ckptctl.errors import ChangedError, UnreadableError
from ckptctl.storage.byterange import StoredFile

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a directory, not a file",
    stat.S_IFIFO: "a named pipe (FIFO), not a file",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFCHR: "a character device, not a file",
    stat.S_IFBLK: "a block device, not a file",
}
_REASONS = {
    errno.ENOENT: "no such file or directory",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ELOOP: "a loop of symbolic links",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.ENXIO: "a socket or pipe, not a file",
    errno.EMFILE: "too many open files",
}


class LocalFile(StoredFile):
    """A regular file on disk. Opened when needed; each handle must be the same, unchanged file."""

    __slots__ = ("_fd", "_identity", "_opening", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._opening = threading.Lock()
        self._identity: tuple[int, ...] = ()
        self.size = self._open().st_size

    @property
    def identity(self) -> tuple[int, ...]:
        """Device and number of the file, its size in bytes and time in nanoseconds: equal for names of one file."""
        return self._identity

    def pread(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, or fewer at the end."""
        fd = self.fileno()
        data = os.pread(fd, length, offset)
        while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
            data += more
        return data

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes at `offset`; return how many there were."""
        fd, done = self.fileno(), 0
        while done < len(buffer) and (count := os.preadv(fd, [buffer[done:]], offset + done)):
            done += count
        return done

    def fileno(self) -> int:
        """Return the handle of the file, opened if need be."""
        with self._opening:
            if self._fd < 0:
                self._open()
            return self._fd

    def again(self) -> LocalFile:
        """Return a handle of its own on the same file, which must be as it was.

        Raises
        ------
        ChangedError
            It is another file, or was changed.
        """
        other = LocalFile(self.path)
        other._check(os.fstat(other.fileno()), self._identity)  # of the same class
        return other

    def check_in_place(self) -> None:
        """Make sure that the file still lies under its name."""
        try:
            found = self.path.stat()
        except OSError:
            raise ChangedError(f"{self.path}: was removed while it was being read") from None
        self._check(found)

    def release(self) -> None:
        """Close the handle, having made sure that nobody changed the file meanwhile."""
        if self._fd >= 0:
            now = os.fstat(self._fd)
            self._close()
            self._check(now)

    def _open(self) -> os.stat_result:
        try:
            self._fd = os.open(self.path, _FLAGS)
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error) from None
        info = os.fstat(self._fd)
        if not stat.S_ISREG(info.st_mode):
            self._close()
            what = _KINDS.get(stat.S_IFMT(info.st_mode), "not a regular file")
            raise UnreadableError(f"{self.path}: {what}")
        os.set_blocking(self._fd, True)
        try:
            self._check(info)
        except ChangedError:
            self._close()
            raise
        return info

    def _check(self, info: os.stat_result, before: tuple[int, ...] = ()) -> None:
        seen = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
        before = before or self._identity
        if before and seen != before:
            raise ChangedError(
                f"{self.path}: changed while it was being read",
                hint="wait until the writer has finished, then run this again",
            )
        self._identity = seen

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # An instance whose __init__ failed early has no handle to close.
        if getattr(self, "_fd", -1) >= 0:
            self._close()


def unreadable(path: Path, error: Exception) -> UnreadableError:
    """Say in plain words why `path` could not be looked at."""
    number = error.errno if isinstance(error, OSError) else None
    reason = _REASONS.get(number or 0) or (os.strerror(number) if number else "not a possible path")
    return UnreadableError(f"{path}: {reason}")
