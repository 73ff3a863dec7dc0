"""A byte range as the file that h5py reads, with an eye on what its library cannot stand."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_MAX_HEAP = 256 << 20
_HEAP, _HEAD = b"GCOL", 16
"""How a global heap begins, and how many bytes the head of it, and that of each object, takes."""


class Opened(io.RawIOBase):
    """A byte range as a file that can be read and sought; h5py asks for no more.

    A damaged heap of texts, in which the library would go round for ever, is refused when it comes by.
    """

    def __init__(self, source: ByteRange) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.length}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = max(min(len(view), self._source.length - self._at), 0)
        view[:length] = self._source.sub(self._at, length).read() if length else b""  # no more is read from there
        if view[:4] == _HEAP:
            self._check_heap(self._at)
        self._at += length
        return length

    def _check_heap(self, start: int) -> None:
        """Make sure that each object of a global heap leads to the next one, up to its end."""
        left = self._source.length - start
        (size,) = struct.unpack("<Q", self._source.sub(start + 8, 8).read()) if left >= _HEAD else (0,)
        if not _HEAD < size <= min(left, _MAX_HEAP):
            return  # the library finds that by itself
        heap, at = self._source.sub(start, size).read(), _HEAD
        while at + _HEAD <= size:
            number, length = struct.unpack_from("<H6xQ", heap, at)
            needed = _HEAD + -(-length // 8) * 8 if number else length
            if needed < _HEAD:
                raise CorruptError(f"{self._source.file.path}: damaged HDF5 file: a heap of texts leads nowhere")
            at += needed
