"""Move bytes in large blocks, hashed and checked on other threads while they are written."""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from ckptctl.storage.local_file import LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.storage.byterange import ByteRange
    from ckptctl.storage.upload import Upload

BLOCK = 1 << 20
"""Bytes moved at once."""
_SLOTS = 8
_SMALL = 1 << 16
"""Shorter runs are checked on the spot and copied through the buffer: a thread or a system call costs more."""
_EARLY = 64 << 20
"""So many bytes after the last, write-back is started again, so that little is left to flush at the end."""
_NOT_HERE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})


class Watching(Protocol):
    """What looks at bytes that pass through a `Pump`, in their order."""

    prompt: bool
    """Whether it may look at short runs at once, as no other one has to have looked before."""
    pending: Future[None] | None

    def update(self, data: memoryview) -> None:
        """Look at some bytes."""


class Crc:
    """The CRC-32 of bytes that pass through a `Pump`; complete once the pump has settled it."""

    __slots__ = ("pending", "value")
    prompt = True

    def __init__(self) -> None:
        self.value = 0
        self.pending: Future[None] | None = None

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        self.value = zlib.crc32(data, self.value)


class _Slot:
    """A buffer, and what is still being done with its bytes."""

    __slots__ = ("pending", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(BLOCK))
        self.pending: list[Future[None]] = []

    def wait(self) -> None:
        pending, self.pending = self.pending, []
        for future in pending:
            future.result()


class Pump:
    """Writes bytes to a file, one after another, through a few buffers of `BLOCK` bytes.

    Parameters
    ----------
    fd
        The file, open for writing at its start.
    sink
        What takes the bytes in its place, and keeps them safe by itself.
    digest
        Whether to compute the SHA-256 of all that is written.
    direct
        Let the system copy from file to file where it can; nothing is seen of those bytes, so they are
        neither hashed nor checked.
    progress
        Called with each number of bytes that was written.
    """

    def __init__(
        self,
        fd: int,
        *,
        digest: bool,
        sink: Upload | None = None,
        direct: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        if digest and direct:
            raise ValueError("bytes that are copied directly cannot be hashed")
        self.fd, self._sink = fd, sink
        self.position = 0
        self._direct = direct
        self._progress = progress or (lambda _: None)
        self._sha = hashlib.sha256() if digest else None
        self._threads = {name: ThreadPoolExecutor(1, name) for name in ("hash", "check", "flush")}
        self._slots = [_Slot() for _ in range(_SLOTS)]
        self._current, self._used = 0, 0
        self._segments: list[tuple[Watching, int, int]] = []
        self._flushed, self._flushing = 0, Future[None]()
        self._flushing.set_result(None)

    def put(self, data: bytes | bytearray | memoryview, crc: Crc | None = None) -> None:
        """Write some bytes, adding them to `crc`."""
        view = memoryview(data).cast("B")
        while len(view):
            free = self._free()
            count = min(len(free), len(view))
            free[:count] = view[:count]
            self._took(count, (crc,) if crc else ())
            view = view[count:]

    def copy(self, source: ByteRange, *watching: Watching) -> None:
        """Write the bytes of a range, which others are watching."""
        done = self._copy_directly(source) if self._direct and source.length >= _SMALL else 0
        while done < source.length:
            free = self._free()
            count = min(len(free), source.length - done)
            source.read_into(free[:count], done)
            self._took(count, watching)
            done += count

    def settle(self, crc: Crc) -> int:
        """Return the value of `crc` over all bytes so far."""
        if self._is_waiting(crc):
            self._send()
        if crc.pending:
            crc.pending.result()
            crc.pending = None
        return crc.value

    def finish(self) -> str:
        """Wait until all is written and flushed to the disk; return the SHA-256 in hex, or nothing."""
        self._send()
        for slot in self._slots:
            slot.wait()
        self._flushing.result()
        if self._sink is None:
            os.fsync(self.fd)
        return self._sha.hexdigest() if self._sha else ""

    def close(self) -> None:
        """Stop the threads."""
        for pool in self._threads.values():
            pool.shutdown(wait=True, cancel_futures=True)

    def _free(self) -> memoryview:
        return self._slots[self._current].view[self._used :]

    def _took(self, count: int, watching: tuple[Watching, ...]) -> None:
        start, self._used = self._used, self._used + count
        for one in watching:
            if one.prompt and count < _SMALL and not one.pending and not self._is_waiting(one):
                one.update(self._slots[self._current].view[start : self._used])
            else:
                self._segments.append((one, start, self._used))
        if self._used == BLOCK:
            self._send()

    def _send(self) -> None:
        """Write the current buffer, have it hashed and checked meanwhile, and go on with the next one."""
        if not self._used:
            return
        slot = self._slots[self._current]
        view, segments = slot.view[: self._used], self._segments
        self._used, self._segments = 0, []
        if self._sha:
            slot.pending.append(self._threads["hash"].submit(self._sha.update, view))
        if segments:
            checking = self._threads["check"].submit(_check, slot.view, segments)
            slot.pending.append(checking)
            for one, _, _ in segments:
                one.pending = checking
        self._write(view)
        self._current = (self._current + 1) % _SLOTS
        self._slots[self._current].wait()

    def _is_waiting(self, one: Watching) -> bool:
        return any(one is other for other, _, _ in self._segments)

    def _write(self, view: memoryview) -> None:
        while len(view):
            count = self._sink.write(view) if self._sink else os.write(self.fd, view)
            self._wrote(count)
            view = view[count:]

    def _wrote(self, count: int) -> None:
        self.position += count
        self._progress(count)
        if self._sink is None and self.position - self._flushed >= _EARLY and self._flushing.done():
            self._flushing.result()
            self._flushed = self.position
            self._flushing = self._threads["flush"].submit(os.fsync, self.fd)

    def _copy_directly(self, source: ByteRange) -> int:
        """Have the system copy the range; return how much of it was copied before it would not."""
        if self._sink or not isinstance(source.file, LocalFile) or not hasattr(os, "copy_file_range"):
            return 0
        self._send()
        done = 0
        while done < source.length:
            try:
                part = min(source.length - done, 16 * BLOCK)
                count = os.copy_file_range(source.file.fileno(), self.fd, part, source.offset + done)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                break
            if not count:
                break  # the file became shorter, which the reader of the rest will notice
            self._wrote(count)
            done += count
        return done


def _check(view: memoryview, segments: list[tuple[Watching, int, int]]) -> None:
    for one, start, end in segments:
        one.update(view[start:end])
