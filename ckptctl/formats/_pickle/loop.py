"""Run a pickle through the machine: the opcodes of protocols 0 to 5.

`Lib/pickletools.py` of CPython describes them. The frequent ones stand in one loop, the rest in `opcodes`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, UnsafePickleError, UnsupportedError
from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.machine import Machine
from ckptctl.formats._pickle.opcodes import OPCODES
from ckptctl.formats._pickle.records import Pickle
from ckptctl.model import GlobalUse, Level

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange


def record(source: ByteRange, *, own: str = "") -> Pickle:
    """Read a pickle up to and including STOP.

    Raises
    ------
    CorruptError, LimitError
        The stream is malformed, or asks for too much.
    UnsafePickleError
        The same, in a stream that had already named something foreign.
    """
    machine = Machine(source, own=own)
    try:
        i = machine.refill(0)
        while machine.end < 0:
            soft = _soft_end(machine)
            i = _frequent(machine, i, soft)
            if machine.end < 0 and i >= soft:
                i = machine.refill(i)
    except CkptctlError as error:
        raise outranked(error, machine.uses()) from None
    return Pickle(
        root=machine.stack[0], calls=machine.calls, globals=machine.uses(), end=machine.end, storages=machine.storages
    )


def outranked(error: CkptctlError, uses: tuple[GlobalUse, ...]) -> CkptctlError:
    """Let "it would have run code" outrank "it is malformed"."""
    bad = [use for use in uses if use.level in (Level.FOREIGN, Level.DANGEROUS)]
    if not bad or isinstance(error, UnsupportedError):
        return error
    named = ", ".join(str(use) for use in bad[:3])
    return UnsafePickleError(f"{error.message}; it asks a loader to import {named}", hint=error.hint)


def _soft_end(machine: Machine) -> int:
    """Where the window must move, unless it reaches the end of the stream."""
    last = machine.base + len(machine.buffer) >= machine.source.length
    return len(machine.buffer) if last else len(machine.buffer) - limits.MARGIN


def _frequent(machine: Machine, i: int, soft: int) -> int:
    """Run until the window must move. Branches stand in the order of how often torch writes them."""
    buffer, stack, memo, far, opcodes = machine.buffer, machine.stack, machine.memo, machine.far, OPCODES
    try:
        while i < soft:
            op = buffer[i]
            if op == 0x71:  # BINPUT
                machine.put(buffer[i + 1], stack[-1])
                i += 2
            elif op == 0x72:  # LONG_BINPUT
                machine.put(int.from_bytes(buffer[i + 1 : i + 5], "little"), stack[-1])
                i += 5
            elif op == 0x68:  # BINGET
                number = buffer[i + 1]
                stack.append(memo[number] if number < len(memo) else far[number])
                i += 2
            elif op == 0x4B:  # BININT1
                stack.append(buffer[i + 1])
                i += 2
            elif op == 0x28:  # MARK
                machine.metastack.append(stack)
                machine.stack = stack = []
                i += 1
            elif op == 0x74:  # TUPLE
                items = tuple(stack)
                machine.stack = stack = machine.metastack.pop()
                stack.append(items)
                i += 1
            elif op == 0x94:  # MEMOIZE
                machine.put(len(memo) + len(far), stack[-1])
                i += 1
            else:
                i = opcodes[op](machine, i)
                if machine.end >= 0 or buffer is not machine.buffer:
                    return i
                stack = machine.stack
    except (IndexError, KeyError, struct.error):
        # The only lookups here are in the stack, the memo and the window: the stream asked for
        # something that is not there.
        raise machine.malformed("an opcode lacks its operand", i) from None
    return i
