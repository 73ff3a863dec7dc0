"""A bar of bytes on stderr, where that is a terminal; and SIGTERM as an interruption."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_WORTH = 64_000_000
"""Fewer bytes are done before a bar could be read."""


class Bar:
    """Shows how many of `total` bytes are done, and how fast, while its context lasts."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._shown = shown and total >= _WORTH and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:  # noqa: PYI034  # Self came with Python 3.11
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Count some more bytes."""
        if self._bar:
            self._bar.advance(self._task, count)


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that what is half done is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # as handlers are called
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
