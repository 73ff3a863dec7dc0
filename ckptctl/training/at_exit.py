"""Close what is still at work when the program ends, before the threads that it needs are forbidden to start."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from typing import Protocol


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Wait for what is going on, and end."""


def closed_at_exit(owner: Closable, what: str) -> None:
    """Have something closed at the end of the program, if it still exists; what goes wrong is written to stderr.

    `what` begins the message. What `atexit` calls comes too late: no thread may start any more then.
    """
    mine, process = weakref.ref(owner), os.getpid()

    def at_exit() -> None:
        found = mine()
        if found is None or os.getpid() != process:  # a forked child has none of the threads
            return
        try:
            found.close()
        except Exception as error:  # noqa: BLE001  # the program is over: there is nobody else to tell
            sys.stderr.write(f"ckptctl: {what}{error}\n")

    with contextlib.suppress(RuntimeError):  # the program is ending already
        threading._register_atexit(at_exit)  # type: ignore[attr-defined]  # noqa: SLF001
