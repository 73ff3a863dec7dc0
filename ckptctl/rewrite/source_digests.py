"""The digests on record of the files of a source, worked out from the bytes that are copied: none is read twice."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from ckptctl.checks.intact import hold_digests, with_digests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptctl.checks.file_bytes import FileBytes
    from ckptctl.model import Contents
    from ckptctl.storage import ByteRange, StoredFile

_GAP = 16 << 20
"""Bytes that nobody copies are read for the digest alone, if they are no more: headers, and what is left out."""
_BLOCK = 1 << 20


class _Running:
    """The SHA-256 of a file as far as it has come."""

    def __init__(self, one: FileBytes, file: StoredFile) -> None:
        self._one, self._file = one, file
        self._sha, self._position = hashlib.sha256(), 0
        self._lock = threading.Lock()

    def take(self, offset: int, data: memoryview) -> None:
        """Add bytes that were read at `offset`, if they follow those before; others are read again at the end."""
        with self._lock:
            if 0 < offset - self._position <= _GAP:
                self._read_on(offset)
            known = self._position - offset
            if 0 <= known < len(data):
                self._sha.update(data[known:])
                self._position = offset + len(data)
            if self._position == self._one.nbytes:
                self._finish()

    def finish(self) -> None:
        """Read what is left."""
        with self._lock:
            self._read_on(self._one.nbytes)
            self._finish()
        self._file.check_in_place()

    def _read_on(self, end: int) -> None:
        whole = self._file.range()
        while self._position < end:
            data = whole.read(self._position, min(_BLOCK, end - self._position))
            self._sha.update(data)
            self._position += len(data)

    def _finish(self) -> None:
        """Note the digest; a file that has one of its own on record, and not this one, is no use to go on with."""
        if not self._one.digest:
            self._one.digest = self._sha.hexdigest()
            if not any(recorded.shared for recorded in self._one.recorded):
                hold_digests([self._one])


class Watch:
    """Adds the bytes of a range, as they are read one after another, to the digest of its file."""

    __slots__ = ("_at", "_running", "pending")
    prompt = False

    def __init__(self, running: _Running, at: int) -> None:
        self._running, self._at = running, at
        self.pending: Future[None] | None = None

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        self._running.take(self._at, data)
        self._at += len(data)


class SourceDigests:
    """Those files of a source that have a digest on record."""

    def __init__(self, inputs: Iterable[Contents]) -> None:
        every = tuple(inputs)
        self._found = with_digests(every)
        self._beside = {id(one.file) for one in self._found} - {id(one.range.file) for one in every}
        """An index, which says of all shards what they are."""
        self._running = {id(one.file): _Running(one, one.file) for one in self._found if one.file}

    def watch(self, place: ByteRange) -> Watch | None:
        """Return what takes the bytes of a range of one of these files, read from its beginning to its end."""
        running = self._running.get(id(place.file))
        return Watch(running, place.offset) if running else None

    def compare(self, inputs: Iterable[Contents] | None = None) -> int:
        """Hold files, by default all, against what is on record, reading what was not; return how many agree with it.

        Raises
        ------
        CorruptError
            One does not, so that whatever was made of it would be wrong.
        """
        chosen = set(self._running) if inputs is None else {id(one.range.file) for one in inputs} | self._beside
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for _ in pool.map(_Running.finish, [one for number, one in self._running.items() if number in chosen]):
                pass
        return hold_digests([one for one in self._found if id(one.file) in chosen])
