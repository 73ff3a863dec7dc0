"""How much objects that are read straight through hold in memory, all together."""

from __future__ import annotations

import threading
from typing import Protocol

_MOST = 128 << 20
"""So many bytes of objects that are read straight through are held; beyond, what was read least of late is let go."""


class Holder(Protocol):
    """What holds on to bytes, and can read them again."""

    def release(self) -> None:
        """Let go of them."""


class Held:
    """Which objects hold on to bytes that were read straight through, the one that was read last at the end."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Holder, int]] = {}
        self._lock = threading.Lock()
        self._nbytes = 0

    def note(self, file: Holder, nbytes: int) -> None:
        """Take note that an object holds so many bytes now; have others let go if it is too much."""
        going = []
        with self._lock:
            self._take(file)
            self._sizes[id(file)] = file, nbytes
            self._nbytes += nbytes
            while self._nbytes > _MOST and len(self._sizes) > 1:
                going.append(next(iter(self._sizes.values()))[0])
                self._take(going[-1])
        for one in going:
            one.release()

    def drop(self, file: Holder) -> None:
        """Take note that an object holds nothing any more."""
        with self._lock:
            self._take(file)

    def _take(self, file: Holder) -> None:
        _, nbytes = self._sizes.pop(id(file), (file, 0))
        self._nbytes -= nbytes


held = Held()
