"""Objects in stores that are opened ahead of whoever wants them, side by side."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ckptctl.storage.remote_file import FIRST, RemoteFile
from ckptctl.storage.streams import pool

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from ckptctl.storage.remote import RemotePath

_MOST = 64 << 20
"""So many first bytes are held at most until somebody wants them."""
_FRESH = 10.0
"""Seconds for which an object is taken to be what it was."""


@dataclass(frozen=True, slots=True)
class _Opened:
    since: float
    window: int
    file: Future[RemoteFile]


class _Ahead:
    """What was opened and waits for whoever wants it, and what is to be opened once there is room."""

    def __init__(self) -> None:
        self._opened: dict[str, _Opened] = {}
        self._waiting: deque[tuple[RemotePath, int]] = deque()
        self._held = 0
        self._lock = threading.Lock()

    def begin(self, paths: Iterable[RemotePath], window: int) -> None:
        with self._lock:
            self._waiting.extend((path, window) for path in paths)
            self._top_up()

    def put(self, path: RemotePath, file: Future[RemoteFile]) -> None:
        with self._lock:
            self._take(str(path))
            while self._opened and self._held >= _MOST:
                self._take(next(iter(self._opened)))
            self._add(path, FIRST, file)

    def take(self, path: RemotePath) -> Future[RemoteFile] | None:
        """Return what was opened ahead, if that is not long ago."""
        with self._lock:
            found = self._take(str(path))
            self._top_up()
        return found.file if found and time.monotonic() - found.since < _FRESH else None

    def let_go(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._opened.clear()
            self._held = 0

    def _take(self, name: str) -> _Opened | None:
        found = self._opened.pop(name, None)
        self._held -= found.window if found else 0
        return found

    def _add(self, path: RemotePath, window: int, file: Future[RemoteFile]) -> None:
        self._opened[str(path)] = _Opened(time.monotonic(), window, file)
        self._held += window

    def _top_up(self) -> None:
        if not self._waiting:
            return
        now = time.monotonic()
        for name in [name for name, one in self._opened.items() if now - one.since > _FRESH]:
            self._take(name)
        while self._waiting and self._held < _MOST:
            path, window = self._waiting.popleft()
            if str(path) not in self._opened:
                self._add(path, window, pool.submit(partial(RemoteFile, path, window=window)))


_ahead = _Ahead()


def begin(paths: Iterable[RemotePath], window: int = 0) -> None:
    """Open objects side by side; whoever opens one of them next gets it. Some wait until others have been taken."""
    _ahead.begin(paths, window or FIRST)


def let_go() -> None:
    """Let go of what was opened ahead and nobody took."""
    _ahead.let_go()


def ahead(path: RemotePath) -> RemoteFile:
    """Open an object for whoever opens it next, and return it."""
    known = _ahead.take(path) or pool.submit(partial(RemoteFile, path))
    file = known.result()
    _ahead.put(path, known)
    return file


def opened(path: RemotePath, window: int = 0, *, anew: bool = False) -> RemoteFile:
    """Open an object, or take one that was opened ahead; one that a listing has shown is asked for when it is read.

    With `anew` it is asked for now, whatever is known of it.
    """
    if anew:
        return RemoteFile(path, window=window or FIRST)
    waiting = _ahead.take(path)
    if waiting:
        return waiting.result()
    known = path.listed()
    if known and known.directory:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return RemoteFile(path, known, window=window or FIRST)
