"""How much a pickle may ask for. Real checkpoints stay far below each of these."""

from __future__ import annotations

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
MAX_DEPTH = 256
"""Containers nested deeper than this are left out of the result."""
MAX_REPEATS = 200_000
"""How many more places a structure may be named under, beyond its first, by being shared."""
SECONDS = 8.0
BYTES_A_SECOND = 100_000
"""Reading may take `SECONDS`, and a second more for each so many bytes: ten times what it needs."""
