"""How much objects that are read straight through hold in memory, all together."""

from __future__ import annotations

import threading
import time
from typing import Protocol

_MOST, _LATELY = 128 << 20, 2.0
"""So many bytes of objects that are read straight through are held; beyond, what was not read for so many seconds goes.
What is being read does not, it would only be asked for again: then less is asked for ahead of need."""


class Holder(Protocol):
    """What holds on to bytes, and can read them again."""

    def release(self) -> None:
        """Let go of them."""


class Held:
    """Which objects hold on to bytes that were read straight through, the one that was read last at the end."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Holder, int, int, float]] = {}
        self._lock = threading.Lock()
        self._nbytes = self._readers = 0

    def ahead(self, step: int, most: int) -> int:
        """Return how many steps may be asked for ahead of need: the fewer, the more is read at the same time."""
        with self._lock:
            return min(most, max(_MOST // (step * max(self._readers, 1)) - 1, 0))

    def note(self, file: Holder, nbytes: int, readers: int) -> None:
        """Take note that so many readers of an object hold so many bytes now; have others let go if it is too much."""
        going: list[Holder] = []
        with self._lock:
            now = time.monotonic()
            self._take(file)
            self._sizes[id(file)] = file, nbytes, readers, now
            self._nbytes, self._readers = self._nbytes + nbytes, self._readers + readers
            while self._nbytes > _MOST and len(self._sizes) > 1:
                oldest, _, _, at = next(iter(self._sizes.values()))
                if now - at < _LATELY:
                    break
                going.append(oldest)
                self._take(oldest)
        for one in going:
            one.release()

    def drop(self, file: Holder) -> None:
        """Take note that an object holds nothing any more."""
        with self._lock:
            self._take(file)

    def _take(self, file: Holder) -> None:
        _, nbytes, readers, _ = self._sizes.pop(id(file), (file, 0, 0, 0.0))
        self._nbytes, self._readers = self._nbytes - nbytes, self._readers - readers


held = Held()
