"""Objects in stores as files: read in ranges, a few at a time, each answer compared with the first."""

from __future__ import annotations

import bisect
import threading
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ckptctl.errors import ChangedError, UnreadableError
from ckptctl.storage.byterange import StoredFile
from ckptctl.storage.guards import Guards
from ckptctl.storage.held import held
from ckptctl.storage.spans import merged
from ckptctl.storage.stores import asked, broken_off, note_version, tag_of, transferred
from ckptctl.storage.streams import Streams, pool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    from ckptctl.storage.listing import Entry
    from ckptctl.storage.remote import RemotePath

FIRST = 1 << 20
"""Bytes of the first request: headers of most files are in them."""
_AT_ONCE = 16 << 20


class RemoteFile(StoredFile):
    """An object. The first question asks for its first bytes, which are kept; every answer must be of one object.

    `known` is what a listing said of it: then nothing is asked before somebody reads.
    """

    __slots__ = (
        "_address", "_asked", "_expected", "_guards",
        "_head", "_lock", "_readers", "_starts", "modified", "path", "size", "tag",
    )  # fmt: skip

    distant = True

    def __init__(self, path: RemotePath, known: Entry | None = None, *, window: int = FIRST) -> None:
        self._guards = Guards()
        self.path = self._address = path
        self._lock = threading.Lock()
        self._readers: dict[int, Streams] = {}
        self._starts: list[int] = []
        self._expected: list[memoryview] = []
        self._head = memoryview(b"")
        self._asked = not known
        if known:
            self.size, self.modified, self.tag = known.size, known.modified, known.tag
        else:
            meta, data = _first(path, window)
            self.size, self.modified = int(meta["size"]), float(meta["last_modified"].timestamp())
            self.tag = tag_of(meta)
            self._head = data

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Address, size and tag of the object."""
        return str(self.path), self.size, self.tag

    def pread(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, or fewer at the end."""
        wanted = max(0, min(length, self.size - offset))
        buffer = bytearray(wanted)
        self.pread_into(memoryview(buffer), offset)
        return bytes(buffer)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes at `offset`; return how many there were."""
        return self.pread_until(buffer, offset, self.size)

    def pread_until(self, buffer: memoryview, offset: int, end: int) -> int:
        """Do the same; whoever reads this will go on to `end` at most."""
        wanted, done = max(0, min(len(buffer), self.size - offset)), 0
        self._guards.before(offset, wanted)
        streams = self._streams()
        streams.go(offset, wanted)
        while done < wanted:
            at, data = self._part(streams, offset + done, wanted - done, min(end, self.size))
            inside = offset + done - at
            count = min(wanted - done, len(data) - inside)
            buffer[done : done + count] = data[inside : inside + count]
            done += count
        if streams.gone() and offset + done == self.size:
            self._head = memoryview(b"")  # it was read to its end: whoever begins again asks again
        return done

    def expect(self, spans: Sequence[tuple[int, int]]) -> None:
        """Ask for short pieces, each a position and a length, side by side: they will be read soon."""
        wanted = sorted((at, min(at + length, self.size)) for at, length in spans if not self._has(at, length))
        sums = accumulate(end - at for at, end in wanted)
        wanted = [span for span, total in zip(wanted, sums, strict=True) if total <= _AT_ONCE]
        if len(wanted) < 2:
            return
        joined = merged(wanted)
        found = [pool.submit(partial(self._ask, at, end)) for at, end in joined]
        data = [one.result() for one in found]
        with self._lock:
            self._starts, self._expected = [at for at, _ in joined], data

    def before_reading(
        self, spans: Sequence[tuple[int, int]], heads: Sequence[tuple[int, int]], check: Callable[[int], None]
    ) -> None:
        """Have ``check(index)`` called before anything is read of that one of `spans`."""
        self._guards.add(spans, heads, check)

    def confirm(self, offset: int, length: int) -> None:
        """Check now all that waits for something to be read of `length` bytes from `offset` on."""
        self._guards.confirm(self, offset, length)

    def again(self) -> RemoteFile:
        """Return another reader of the same object, which must be as it was.

        Raises
        ------
        ChangedError
            It was replaced by another.
        """
        return self._another(FIRST)

    def _another(self, window: int) -> RemoteFile:
        other = RemoteFile(self._address, window=window)
        if (other.size, other.tag) != (self.size, self.tag) or (not self.tag and other.modified != self.modified):
            raise _changed(self.path)
        return other

    def check_in_place(self) -> None:
        """Make sure that the object is still the one that was opened."""
        self._another(1)

    def release(self) -> None:
        """Let go of all that was read."""
        with self._lock:
            readers = list(self._readers.values())
            self._readers = {}
            self._starts, self._expected, self._head = [], [], memoryview(b"")
        for reader in readers:
            reader.leave()
        held.drop(self)

    def _has(self, offset: int, length: int) -> bool:
        with self._lock:
            known = self._known(offset, length)
        return length <= 0 or bool(known and known[0] + len(known[1]) >= offset + length)

    def _streams(self) -> Streams:
        """Return how far this thread has come."""
        with self._lock:
            found = self._readers.get(threading.get_ident())
            if found is None:
                found = self._readers[threading.get_ident()] = Streams(self._ask, self.size, self._note)
        return found

    def _note(self) -> None:
        """Say how much is held of it."""
        with self._lock:
            readers = list(self._readers.values())
        held.note(self, sum(one.nbytes for one in readers) + len(self._head), sum(one.long for one in readers))

    def _known(self, offset: int, length: int) -> tuple[int, memoryview] | None:
        """Return a part in memory that has at least the first of some bytes, all of them where one does."""
        inside = [(0, self._head)] if offset < len(self._head) else []
        index = bisect.bisect_right(self._starts, offset) - 1
        if index >= 0 and offset < self._starts[index] + len(self._expected[index]):
            inside.append((self._starts[index], self._expected[index]))
        return next((one for one in inside if one[0] + len(one[1]) >= offset + length), inside[0] if inside else None)

    def _part(self, streams: Streams, offset: int, length: int, end: int) -> tuple[int, memoryview]:
        with self._lock:
            known = self._known(offset, length)
        if known is not None:
            return known
        if offset < FIRST and not self._head:  # nothing was read yet
            data = self._head = self._ask(0, min(max(FIRST, offset + length), self.size))
            return 0, data
        with self._lock:
            others = [one for one in self._readers.values() if one is not streams]
        return streams.part(offset, length, end, others)

    def _ask(self, start: int, end: int) -> memoryview:
        meta, data = _got(self._address, start, end)
        self._check(meta)
        return data

    def _check(self, meta: dict[str, Any]) -> None:
        tag, modified = tag_of(meta), meta["last_modified"]
        if not self.tag and not self._asked:  # a listing had none
            self.tag, self.modified = tag, modified.timestamp() if modified else 0.0
        self._asked = True
        other = not tag and modified is not None and modified.timestamp() != self.modified
        if meta["size"] != self.size or tag != self.tag or other:
            raise _changed(self.path)


def _changed(path: Path) -> ChangedError:
    return ChangedError(
        f"{path}: changed while it was being read", hint="wait until the writer has finished, then run this again"
    )


def _got(path: RemotePath, start: int, end: int) -> tuple[dict[str, Any], memoryview]:
    """Ask for some bytes; return what the store says of the object, and them."""

    def call() -> tuple[dict[str, Any], memoryview]:
        found = path.store.get(path.key, options={"range": (start, end)})
        meta, data = dict(found.meta), memoryview(found.bytes())
        if len(data) != max(min(end, meta["size"]) - start, 0):
            raise broken_off()
        return meta, data

    meta, data = asked(path, call)
    note_version(path, meta)
    if data:
        transferred.note(len(data))
    return meta, data


def _first(path: RemotePath, window: int) -> tuple[dict[str, Any], memoryview]:
    try:
        return _got(path, 0, window)
    except UnreadableError:  # nothing can be asked of an empty object but how long it is
        meta = asked(path, lambda: path.store.head(path.key))
        if meta["size"]:
            raise
        return dict(meta), memoryview(b"")
