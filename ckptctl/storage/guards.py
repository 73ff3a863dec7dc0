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
            if all(group.start != spans[0][0] for group in self._groups[self._last(spans[0][0]) :][:1]):
                groups = [*self._groups, _Group(spans, heads, check)]
                self._groups = sorted(groups, key=_start)  # whoever goes through the others goes on with those

    def before(self, offset: int, length: int) -> None:
        """Check what is about to be read, unless it was."""
        groups = self._groups
        for index in range(self._last(offset), len(groups) if length else 0):
            if groups[index].start >= offset + length:
                break
            groups[index].before(offset, offset + length)

    def confirm(self, file: StoredFile, offset: int, length: int) -> None:
        """Check all that wait and begin in some bytes, having asked `file` for what they look at."""
        first, last = (bisect.bisect_left(self._groups, at, key=_start) for at in (offset, offset + length))
        for group in self._groups[first:last]:
            waiting = list(group.waiting())
            file.expect([(at, length) for _, at, length in waiting])
            for index, _, _ in waiting:
                group.check(index)

    def _last(self, offset: int) -> int:
        """Return which is the last that begins no later than `offset`, or the first."""
        return max(bisect.bisect_right(self._groups, offset, key=_start) - 1, 0)


def _start(group: _Group) -> int:
    return group.start
