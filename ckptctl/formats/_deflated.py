"""Deflated records of a zip archive, unpacked as a stream: never more than a part of one is in memory."""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, counted

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

MOST_PACKED = 1032
"""Deflate packs at most so many bytes into one."""
_SLACK = 1 << 10
_CHUNK, _FIRST = 1 << 16, 256


def check_ratio(packed: int, size: int, what: str) -> None:
    """Refuse a record that cannot unpack to what it says.

    Raises
    ------
    CorruptError
        Deflate packs no bytes that far.
    """
    if size > MOST_PACKED * packed + _SLACK:
        raise CorruptError(f"{what} says that its {packed} bytes unpack to {size}, which none do")


class Deflated:
    """What one record unpacks to: `size` bytes, whose CRC-32 is `crc`.

    Reading on from where the last read ended goes on unpacking; going back begins anew. Several threads may ask.
    """

    def __init__(self, source: ByteRange, size: int, crc: int, what: str) -> None:
        self._source, self._size, self._recorded, self._what = source, size, crc, what
        self._lock = threading.Lock()
        self._rewind()

    def read(self, at: int, length: int) -> bytes:
        """Return `length` bytes from `at`. With the last of them the end and the CRC are checked.

        Raises
        ------
        CorruptError
            The record is damaged, or unpacks to more or fewer bytes than it says.
        """
        with self._lock:
            if at < self._at:
                self._rewind()
            while self._at < at:
                self._some(min(at - self._at, _CHUNK))
            parts, left = [], length
            while left:
                parts.append(self._some(left))
                left -= len(parts[-1])
            if self._at == self._size:
                self._check_end()
                self._rewind()
        return b"".join(parts)

    @property
    def consumed(self) -> int:
        """How many packed bytes were read since it began."""
        return self._read

    def head(self, length: int) -> bytes:
        """Return the first bytes, and let go of all that is held; call it before any `read`."""
        with self._lock:
            parts, left = [], min(length, self._size)
            while left:
                parts.append(self._some(left, step=_FIRST))
                left -= len(parts[-1])
            self._rewind()
        return b"".join(parts)

    def _rewind(self) -> None:
        self._at, self._read, self._rest, self._crc = 0, 0, b"", 0
        self._inflater: zlib._Decompress | None = None

    def _some(self, most: int, step: int = _CHUNK) -> bytes:
        """Unpack at least one byte and at most so many."""
        while (made := self._step(most, step)) is not None:
            if made:
                self._at += len(made)
                self._crc = zlib.crc32(made, self._crc)
                return made
        raise self._bad(f"unpacks to {self._at} bytes, not {self._size}")

    def _step(self, most: int, step: int = _CHUNK) -> bytes | None:
        """Unpack at most so many bytes from what was read or is read next; None if no more can come."""
        self._inflater = inflater = self._inflater or zlib.decompressobj(-zlib.MAX_WBITS)
        if inflater.eof:
            return None
        if not self._rest:
            self._rest = self._source.read(self._read, min(step, self._source.length - self._read))
            self._read += len(self._rest)
        last = not self._rest
        try:
            made = inflater.decompress(self._rest, most)
        except zlib.error:
            raise self._bad("cannot be unpacked: it is damaged") from None
        self._rest = inflater.unconsumed_tail
        return None if last and not made else made

    def _check_end(self) -> None:
        while (made := self._step(1)) is not None:
            if made:
                raise self._bad(f"unpacks to more than {self._size} bytes")
        inflater = self._inflater
        if inflater is None or not inflater.eof:
            raise self._bad("breaks off")
        extra = len(inflater.unused_data) + self._source.length - self._read
        if extra:
            raise self._bad(f"goes on for {counted(extra, 'byte')} after its end")
        if self._crc != self._recorded:
            raise self._bad(f"reads CRC {self._crc:08x}, recorded {self._recorded:08x}: it is damaged")

    def _bad(self, what: str) -> CorruptError:
        return CorruptError(f"{self._what} {what}")
