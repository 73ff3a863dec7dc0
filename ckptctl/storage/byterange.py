"""A range of bytes in a file: the unit in which every reader works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from ckptctl.errors import ChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path


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
        if self.distant:
            buffer = bytearray(wanted)
            self.read_into(memoryview(buffer), offset)
            return bytes(buffer)
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

    @property
    def distant(self) -> bool:
        """Whether every look at it costs the time of a round trip."""
        return isinstance(self.file, StoredFile) and self.file.distant

    def before_reading(
        self, spans: Sequence[tuple[int, int]], heads: Sequence[tuple[int, int]], check: Callable[[int], None]
    ) -> None:
        """Have ``check(index)`` called for each of `spans`; if they are distant, not before something of it is read.

        Spans, and `heads`, which are what the check reads, are positions and lengths in order; no two overlap.
        """
        if self.distant and isinstance(self.file, StoredFile):
            places = [[(self.offset + at, length) for at, length in pieces] for pieces in (spans, heads)]
            self.file.before_reading(places[0], places[1], check)
            return
        for index in range(len(spans)):
            check(index)

    def confirm(self) -> None:
        """Check now all that waits for something in the range to be read."""
        if isinstance(self.file, StoredFile):
            self.file.confirm(self.offset, self.length)

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
    distant: ClassVar[bool] = False
    """Whether every look at it costs the time of a round trip."""
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

    def before_reading(
        self, spans: Sequence[tuple[int, int]], heads: Sequence[tuple[int, int]], check: Callable[[int], None]
    ) -> None:
        """Have ``check(index)`` called before anything is read of that one of `spans`."""
        raise NotImplementedError

    def confirm(self, offset: int, length: int) -> None:
        """Check now all that waits for something to be read of `length` bytes from `offset` on."""

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
