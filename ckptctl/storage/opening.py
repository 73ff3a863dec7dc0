"""Objects in stores that are opened ahead of whoever wants them, side by side."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ckptctl.storage.remote_file import FIRST, RemoteFile, pool

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from ckptctl.storage.remote import RemotePath

_MOST_OPEN = 64
"""So many objects are opened ahead: their first bytes are held until somebody wants them."""
_FRESH = 10.0
"""Seconds for which one is taken to be what it was."""
_opened: dict[str, tuple[float, Future[RemoteFile]]] = {}
_waiting: deque[tuple[RemotePath, int]] = deque()


def begin(paths: Iterable[RemotePath], window: int = 0) -> None:
    """Open objects side by side; whoever opens one of them next gets it. Some wait until others have been taken."""
    _waiting.extend((path, window or FIRST) for path in paths)
    _top_up()


def let_go() -> None:
    """Let go of what was opened ahead and nobody took."""
    _waiting.clear()
    _opened.clear()


def ahead(path: RemotePath) -> RemoteFile:
    """Open an object for whoever opens it next, and return it."""
    known = _taken(path) or pool.submit(partial(RemoteFile, path))
    file = known.result()
    _opened[str(path)] = time.monotonic(), known
    return file


def opened(path: RemotePath, window: int = 0, *, anew: bool = False) -> RemoteFile:
    """Open an object, or take one that was opened ahead; one that a listing has shown is asked for when it is read.

    With `anew` it is asked for now, whatever is known of it.
    """
    if anew:
        return RemoteFile(path, window=window or FIRST)
    waiting = _taken(path)
    _top_up()
    if waiting:
        return waiting.result()
    known = path.listed()
    if known and known.directory:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return RemoteFile(path, known, window=window or FIRST)


def _top_up() -> None:
    now = time.monotonic()
    for name in [name for name, (since, _) in list(_opened.items()) if now - since > _FRESH]:
        _opened.pop(name, None)
    while len(_opened) < _MOST_OPEN:
        try:
            path, window = _waiting.popleft()
        except IndexError:
            return
        if str(path) not in _opened:
            _opened[str(path)] = now, pool.submit(partial(RemoteFile, path, window=window))


def _taken(path: RemotePath) -> Future[RemoteFile] | None:
    """Return what was opened ahead, if that is not long ago."""
    since, waiting = _opened.pop(str(path), (0.0, None))
    return waiting if time.monotonic() - since < _FRESH else None
