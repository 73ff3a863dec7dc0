"""The table of opcodes: which function carries out which.

Each takes the machine and the index of its opcode in the window, and returns the index after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptctl.formats._pickle.machine import Machine

Handler = Callable[["Machine", int], int]


def unknown(machine: Machine, i: int) -> int:
    """Refuse a byte that is no opcode."""
    raise machine.malformed(f"{machine.buffer[i]:#04x} is no opcode", i)


OPCODES: list[Handler] = [unknown] * 256


def op(code: bytes) -> Callable[[Handler], Handler]:
    """Enter a function into the table."""

    def register(handler: Handler) -> Handler:
        OPCODES[code[0]] = handler
        return handler

    return register
