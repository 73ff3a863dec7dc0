"""Checks that wait until the bytes that they vouch for are read."""

from __future__ import annotations

import bisect
import threading
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckptctl.storage.byterange import StoredFile

    Spans = Sequence[tuple[int, int]]


class _Group:
    """Spans of a file in order, what is looked at for each, and which have been."""

    __slots__ = ("_check", "_done", "_ends", "_heads", "_lengths", "_starts", "start")

    def __init__(self, spans: Spans, heads: Spans, check: Callable[[int], None]) -> None:
        self.start = spans[0][0]
        self._starts, self._ends = array("q", (at for at, _ in spans)), array("q", (at + n for at, n in spans))
        self._heads, self._lengths = array("q", (at for at, _ in heads)), array("q", (n for _, n in heads))
        self._done = bytearray(len(spans))
        self._check = check

    def before(self, start: int, end: int) -> None:
        """Check what is about to be read, unless it was."""
        index = max(bisect.bisect_right(self._starts, start) - 1, 0)
        while index < len(self._starts) and self._starts[index] < end:
            if self._ends[index] > start:
                self.check(index)
            index += 1

    def check(self, index: int) -> None:
        """Check one of them, once."""
        if not self._done[index]:
            self._check(index)
            self._done[index] = 1

    def waiting(self) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each that was not looked at, and what will be: where, and how many bytes."""
        for index, done in enumerate(self._done):
            if not done:
                yield index, self._heads[index], self._lengths[index]


class Guards:
    """The checks that wait in one file."""

    __slots__ = ("_groups", "_lock")

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._lock = threading.Lock()

    def add(self, spans: Spans, heads: Spans, check: Callable[[int], None]) -> None:
        """Take some more, which lie apart from all others, unless they are known."""
        if not spans:
            return
        with self._lock:
            at = bisect.bisect_left(self._groups, spans[0][0], key=_start)
            if at == len(self._groups) or self._groups[at].start != spans[0][0]:
                self._groups.insert(at, _Group(spans, heads, check))

    def before(self, offset: int, length: int) -> None:
        """Check what is about to be read, unless it was."""
        for group in self._between(offset, offset + length, before=1) if length else ():
            group.before(offset, offset + length)

    def confirm(self, file: StoredFile, offset: int, length: int) -> None:
        """Check all that wait and begin in some bytes, having asked `file` for what they look at."""
        for group in self._between(offset, offset + length):
            waiting = list(group.waiting())
            file.expect([(at, length) for _, at, length in waiting])
            for index, _, _ in waiting:
                group.check(index)

    def _between(self, start: int, end: int, *, before: int = 0) -> list[_Group]:
        """Return those that begin in some bytes, and so many `before` them, which may reach into them."""
        with self._lock:
            first, last = (bisect.bisect_left(self._groups, at, key=_start) for at in (start, end))
            return self._groups[max(first - before, 0) : last]


def _start(group: _Group) -> int:
    return group.start
