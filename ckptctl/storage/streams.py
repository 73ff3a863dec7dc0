"""How stores are read: here and there in small pieces, or on and on, with what comes next under way in time."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ckptctl.storage.daemons import Daemons
from ckptctl.storage.held import held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STEP = 4 << 20
"""Bytes of a request when a file is read on and on."""
AHEAD = 3
"""So many such requests are under way before they are needed."""
_SMALL, _TAIL = 64 << 10, 256 << 10
"""Bytes asked for at least where a file is read here and there, and at its end, where archives have a directory."""
_SURE, _SKIPPED = 2, 64 << 10
"""After so many reads that each began where the last one ended, or not far behind, a file is read on and on."""
_SHORT, _LONG = 5, 3
"""So many places are remembered where a file was read here and there, and where on and on.
Names in the order of their letters lie in files as runs in each other: layer 1, 10 to 19, 2, 20 to 29."""
WORKERS = 192
"""Threads that ask: of many small requests so many are under way."""
pool = Daemons(WORKERS, "ckptctl-store")
"""Threads that ask stores."""


@dataclass(slots=True, eq=False)
class _Part:
    """Some bytes that were asked for."""

    start: int
    end: int
    coming: Future[memoryview]

    @property
    def failed(self) -> bool:
        """Whether they did not come, and are to be asked for again."""
        return self.coming.done() and (self.coming.cancelled() or self.coming.exception() is not None)


@dataclass(slots=True, eq=False)
class _Stream:
    """One place at which a file is being read: how far, how often on and on, and what was asked for from there."""

    next: int = 0
    straight: int = 0
    beyond: int = 0
    """So many bytes behind the range that is being read are asked for as well: reading went on behind others."""
    reached: int = 0
    """Where that range ends."""
    crossed: bool = False
    """Whether reading went on behind it since something was asked for."""
    parts: list[_Part] = field(default_factory=list)

    @property
    def long(self) -> bool:
        """Whether it is read on and on."""
        return self.straight > _SURE

    def leave(self) -> None:
        """Let go of what was asked for."""
        parts, self.parts = self.parts, []
        for part in parts:
            part.coming.cancel()


class Streams:
    """How far one thread has come in a file of `size` bytes, which ``ask(start, end)`` gives.

    Is `told` whenever more is held.
    """

    __slots__ = ("_all", "_ask", "_now", "_size", "_told")

    def __init__(self, ask: Callable[[int, int], memoryview], size: int, told: Callable[[], None]) -> None:
        self._ask, self._size, self._told = ask, size, told
        self._all: list[_Stream] = []
        self._now = _Stream()

    @property
    def nbytes(self) -> int:
        """How many bytes are held, or on their way."""
        return sum(part.end - part.start for stream in self._all[:] for part in stream.parts[:])

    @property
    def long(self) -> int:
        """At how many places the file is read on and on."""
        return sum(stream.long and bool(stream.parts) for stream in self._all[:])

    def leave(self) -> None:
        """Let go of everything."""
        for stream in self._all[:]:
            stream.leave()

    def go(self, offset: int, length: int) -> None:
        """Take note that so many bytes are about to be read."""
        on = (stream for stream in reversed(self._all) if 0 <= offset - stream.next <= _SKIPPED)
        stream = next(on, None)
        if stream is None:
            stream = _Stream()
        else:
            self._all.remove(stream)
        self._all.append(stream)
        self._now = stream
        stream.next = offset + length
        stream.straight += 1
        self._drop(offset)
        for old in self._superfluous():
            self._all.remove(old)
            old.leave()

    def gone(self) -> bool:
        """Take note that they were read; return whether on and on."""
        if self._now.long:
            self._drop(self._now.next)
        return self._now.long

    def part(self, offset: int, length: int, end: int, others: Sequence[Streams] = ()) -> tuple[int, memoryview]:
        """Return some bytes, and where they begin, among which is the one at `offset`.

        So many are wanted; whoever reads them will go on to `end` at most, or behind it to what comes next there. What
        `others` have asked for is not asked for again.
        """
        stream, end = self._now, max(end, offset + length)
        stream.crossed |= stream.long and offset >= stream.reached
        stream.reached = end
        found = next((part for one in (self, *others) for part in one.having(offset)), None)
        if found is None:
            found = self._asked(offset, length, end)
        if stream.long:
            self._go_ahead(end, others)
        try:
            return found.start, found.coming.result()
        except CancelledError:  # it was let go in favour of others
            return offset, self._ask(offset, min(offset + max(length, _SMALL), self._size))

    def _drop(self, end: int) -> None:
        """Let go of what lies before a byte."""
        parts = self._now.parts
        while parts and parts[0].end <= end:
            del parts[0]

    def having(self, offset: int) -> Iterator[_Part]:
        """Yield what was asked for that has a byte."""
        for stream in (self._now, *self._all[::-1]):
            for part in stream.parts[:]:
                if part.start <= offset < part.end and not part.failed:
                    yield part

    def _asked(self, offset: int, length: int, end: int) -> _Part:
        """Ask for what nobody has asked for yet."""
        stream = self._now
        stream.leave()
        if not stream.long:
            least = _TAIL if offset + length == self._size else _SMALL
            start = max(0, min(offset, self._size - max(length, least)))
            return self._put(stream, start, min(offset + min(max(length, _SMALL), STEP), self._size))
        self._widen(stream)
        last = min(end + stream.beyond, self._size)
        return self._put(stream, offset, min(offset + STEP, last))

    def _go_ahead(self, end: int, others: Sequence[Streams]) -> None:
        """Ask for what comes next, as far as it is sure, or likely, to be read."""
        stream, ahead = self._now, held.ahead(STEP, AHEAD)
        while len(stream.parts) <= ahead and (reached := [part.end for part in stream.parts[-1:]]):
            start = reached[0]  # another thread may let go of all meanwhile
            if start < end:
                self._widen(stream)
            last = min(start + STEP, end + stream.beyond, self._size)
            if last <= start or (start >= end and last - start < STEP and last < self._size):
                return
            known = next((part for one in (self, *others) for part in one.having(start)), None)
            if known:
                stream.parts.append(known)
            else:
                self._put(stream, start, last)

    def _widen(self, stream: _Stream) -> None:
        if stream.crossed:
            stream.beyond = min(max(2 * stream.beyond, _SMALL), (1 + AHEAD) * STEP)
            stream.crossed = False

    def _put(self, stream: _Stream, start: int, end: int) -> _Part:
        """Ask for some bytes: if more is to come, by another thread."""
        ask = partial(self._ask, start, end)
        if stream.long:
            coming = pool.submit(ask)
        else:
            coming = Future()
            coming.set_result(ask())
        part = _Part(start, end, coming)
        stream.parts.append(part)
        self._told()
        return part

    def _superfluous(self) -> list[_Stream]:
        """Return those that were not used for longest, where there are too many."""
        long = [stream for stream in self._all if stream.long and stream.parts]
        short = [stream for stream in self._all if not stream.long and stream.parts]
        empty = [stream for stream in self._all if not stream.parts]
        most = ((long, _LONG), (short, _SHORT), (empty, _SHORT))
        return [stream for streams, count in most for stream in streams[: max(len(streams) - count, 0)]]
