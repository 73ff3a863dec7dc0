"""How much a pickle may ask for. Real checkpoints stay far below each of these."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ckptctl.errors import LimitError

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

WINDOW = 1 << 18
"""Bytes of the stream held in memory at once."""
MARGIN = 1 << 12
"""An opcode that begins with fewer bytes than this left in the window moves the window first."""
MAX_BYTES = 256 << 20
MAX_STACK = 1_000_000
MAX_MARKS = 10_000
MAX_MEMO = 4_000_000
MAX_CALLS = 5_000_000
MAX_ITEMS = 10_000_000
MAX_GLOBALS = 10_000
MAX_LINE = 1024
MAX_INT_BYTES = 256
MAX_DIGITS = 80
LONG_BYTES = 4096
"""Bytes longer than this stay in the file, as a `Span`."""
LONG_TEXT = 1 << 16
"""Text longer than this (in bytes) stays in the file, as a `Span`."""
MAX_DIMS = 64
MAX_NUMEL = 1 << 63
MAX_PATH = 1 << 16
"""Characters in the name of a tensor."""
MAX_NAMES = 16 << 20
"""Characters in all names together, beyond a thousand for each tensor."""
MAX_DEPTH = 256
"""Containers nested deeper than this are left out of the result."""
MAX_REPEATS = 200_000
"""How many more places a structure may be named under, beyond its first, by being shared."""
SECONDS = 8.0
BYTES_A_SECOND = 100_000
"""Reading may take `SECONDS`, and a second more for each so many bytes: ten times what it needs."""


class Clock:
    """Gives up when reading takes far longer than so many bytes can need."""

    def __init__(self, source: ByteRange) -> None:
        self._path = source.file.path
        self._deadline = time.monotonic() + SECONDS + source.length / BYTES_A_SECOND

    def check(self) -> None:
        """Raise a `LimitError` once time is up."""
        if time.monotonic() > self._deadline:
            raise LimitError(f"{self._path}: the pickle takes too long to read")
