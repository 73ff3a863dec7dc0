"""A range of bytes in a file: the unit in which every reader works."""

from __future__ import annotations

import errno
import os
import stat
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ckptctl.errors import ChangedError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
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


class File(Protocol):
    """What a byte range is cut from."""

    @property
    def path(self) -> Path:
        """Where it lies, for messages."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, or fewer at the end."""

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes at `offset`; return how many there were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """`length` bytes of `file`, from `offset` (both in bytes)."""

    file: File
    offset: int
    length: int

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Return exactly `length` bytes (all by default) from `offset` inside the range.

        Raises
        ------
        ChangedError
            The file has become shorter since it was opened.
        """
        wanted = self.length - offset if length is None else length
        if offset < 0 or wanted < 0 or offset + wanted > self.length:
            raise ValueError(f"[{offset}, +{wanted}] is outside a range of {self.length} bytes")
        data = self.file.pread(wanted, self.offset + offset)
        if len(data) != wanted:
            raise ChangedError(f"{self.file.path}: became shorter while it was being read")
        return data

    def read_into(self, buffer: memoryview, offset: int = 0) -> None:
        """Fill the whole `buffer` with the bytes from `offset` inside the range.

        Raises
        ------
        ChangedError
            The file has become shorter since it was opened.
        """
        if offset < 0 or offset + len(buffer) > self.length:
            raise ValueError(f"[{offset}, +{len(buffer)}] is outside a range of {self.length} bytes")
        bounded = getattr(self.file, "pread_until", None)  # what reads ahead had better know where to stop
        at, end = self.offset + offset, self.offset + self.length
        if (bounded(buffer, at, end) if bounded else self.file.pread_into(buffer, at)) != len(buffer):
            raise ChangedError(f"{self.file.path}: became shorter while it was being read")

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        """Get ready for pieces inside the range, each a position and a length: a store is asked for all at once."""
        if isinstance(self.file, StoredFile):
            self.file.expect([(self.offset + at, length) for at, length in spans])

    def head(self, length: int) -> bytes:
        """Return the first `length` bytes, or all if there are fewer."""
        return self.read(0, min(length, self.length))

    def sub(self, offset: int, length: int) -> ByteRange:
        """Return the part of `length` bytes from `offset`."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"[{offset}, +{length}] is outside a range of {self.length} bytes")
        return ByteRange(file=self.file, offset=self.offset + offset, length=length)


class StoredFile:
    """A file somewhere that others may change: on disk, or in a store."""

    __slots__ = ()
    path: Path
    size: int

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """What is equal for two names of one unchanged file."""
        raise NotImplementedError

    def range(self) -> ByteRange:
        """Return the whole file as a byte range."""
        return ByteRange(file=self, offset=0, length=self.size)

    def pread(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, or fewer at the end."""
        raise NotImplementedError

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes at `offset`; return how many there were."""
        raise NotImplementedError

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        """Get ready for pieces, each a position and a length, that will be read soon."""

    def again(self) -> StoredFile:
        """Return a handle of its own on the same file, which must be as it was.

        Raises
        ------
        ChangedError
            It is another file, or was changed.
        """
        raise NotImplementedError

    def check_in_place(self) -> None:
        """Make sure that the file still lies under its name.

        Raises
        ------
        ChangedError
            It was removed, or replaced by another.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Let go of what is held of it, having made sure that nobody changed it meanwhile."""
        raise NotImplementedError


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


class MemoryFile:
    """A few bytes already in memory (a small array inside a pickle), as if they were a file."""

    __slots__ = ("_data", "path", "size")

    def __init__(self, data: bytes, *, path: Path) -> None:
        self._data = data
        self.path = path
        self.size = len(data)

    def range(self) -> ByteRange:
        """Return all of it as a byte range."""
        return ByteRange(file=self, offset=0, length=self.size)

    def pread(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, or fewer at the end."""
        return self._data[offset : offset + length]

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes at `offset`; return how many there were."""
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


def unreadable(path: Path, error: Exception) -> UnreadableError:
    """Say in plain words why `path` could not be looked at."""
    number = error.errno if isinstance(error, OSError) else None
    reason = _REASONS.get(number or 0) or (os.strerror(number) if number else "not a possible path")
    return UnreadableError(f"{path}: {reason}")
