"""A pickle machine that records and never calls.

The opcodes are those of protocols 0 to 5, as `Lib/pickletools.py` of CPython describes them. What
an unpickler would import becomes a `Global`, what it would call a `Call`; nothing is looked up,
imported or run. The frequent opcodes stand in one loop, the rest in `opcodes`.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError, LimitError, UnsafePickleError, UnsupportedError
from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.levels import levels_of, python3_name
from ckptctl.formats._pickle.opcodes import OPCODES
from ckptctl.formats._pickle.records import Call, Ext, Global, Pickle
from ckptctl.model import GlobalUse, Level

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_CALLS_ITS_ARGUMENT = ("torch._tensor", "_rebuild_from_type_v2")


class Machine:
    """Reads one pickle from the start of a byte range."""

    def __init__(self, source: ByteRange) -> None:
        self.source = source
        self.stack: list[object] = []
        self.metastack: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.calls: list[Call] = []
        self.globals: dict[tuple[str, str], Global] = {}
        self.extensions: dict[int, int] = {}
        self.items = 0
        self.buffer = b""
        self.base = 0
        self.end = -1
        self.clock = limits.Clock(source)

    def run(self) -> Pickle:
        """Read up to and including STOP.

        Raises
        ------
        CorruptError, LimitError
            The stream is malformed, or asks for too much.
        UnsafePickleError
            The same, in a stream that had already named something foreign.
        """
        try:
            end = self._loop()
        except CkptctlError as error:
            raise outranked(error, self.uses()) from None
        return Pickle(root=self.stack[0], calls=self.calls, globals=self.uses(), end=end)

    def uses(self) -> tuple[GlobalUse, ...]:
        """Judge all globals that the stream has named so far."""
        indirect = {id(c): c.args[0] for c in self.calls if c.args and c.pair == _CALLS_ITS_ARGUMENT}
        by_argument = Counter(str(fn) for fn in indirect.values() if isinstance(fn, Global))
        for item in self.globals.values():
            item.called += by_argument.pop(str(item), 0)
        items = list(self.globals.values())
        found = [
            GlobalUse(
                module=item.module,
                name=item.name,
                level=level,
                calls=item.called,
                opcodes=tuple(item.opcodes),
                count=item.count,
            )
            for item, level in zip(items, levels_of(items, self.calls), strict=True)
        ]
        found += [
            GlobalUse(module="copyreg", name=f"extension {code}", level=Level.DANGEROUS, calls=count,
                      opcodes=("EXT",), count=count)
            for code, count in self.extensions.items()
        ]  # fmt: skip
        return tuple(found)

    def global_(self, module: str, name: str, opcode: str) -> Global:
        """Return the one record for a global, counting that it was named."""
        pair = python3_name(module, name)
        item = self.globals.get(pair)
        if item is None:
            if len(self.globals) >= limits.MAX_GLOBALS:
                raise self.limit(f"names more than {limits.MAX_GLOBALS} globals")
            item = self.globals[pair] = Global(*pair)
        item.count += 1
        item.opcodes[opcode] = None
        return item

    def extension(self, code: int) -> Ext:
        """Return a record for a class named by number, counting it."""
        self.extensions[code] = self.extensions.get(code, 0) + 1
        return Ext(code)

    def refill(self, at: int) -> int:
        """Move the window so that it begins at index `at`; check the budgets; return the new index."""
        self.base += at
        left = self.source.length - self.base
        if left <= 0:
            raise self.malformed("ends without STOP", 0)
        self.buffer = self.source.read(self.base, min(limits.WINDOW, left))
        sizes = [len(stack) for stack in self.metastack]
        for what, seen, most in (
            ("stack items", len(self.stack) + sum(sizes), limits.MAX_STACK),
            ("open marks", len(sizes), limits.MAX_MARKS),
            ("memo entries", len(self.memo), limits.MAX_MEMO),
            ("calls", len(self.calls), limits.MAX_CALLS),
        ):
            if seen > most:
                raise self.limit(f"needs {seen} {what} (limit {most})")
        self.clock.check()
        return 0

    def malformed(self, what: str, at: int) -> CorruptError:
        """Return the error for a broken stream, seen at index `at` of the window."""
        return CorruptError(f"{self.source.file.path}: damaged pickle: {what} (at byte {self.base + at})")

    def limit(self, what: str) -> LimitError:
        """Return the error for a stream beyond a limit."""
        return LimitError(f"{self.source.file.path}: the pickle {what}")

    def _loop(self) -> int:
        i = self.refill(0)
        while self.end < 0:
            soft = self._soft()
            i = self._frequent(i, self.buffer, soft)
            if self.end < 0 and i >= soft:
                i = self.refill(i)
        return self.end

    def _soft(self) -> int:
        last = self.base + len(self.buffer) >= self.source.length
        return len(self.buffer) if last else len(self.buffer) - limits.MARGIN

    def _frequent(self, i: int, buffer: bytes, soft: int) -> int:
        """Run until the window must move. Branches stand in the order of how often torch writes them."""
        stack, memo, opcodes = self.stack, self.memo, OPCODES
        try:
            while i < soft:
                op = buffer[i]
                if op == 0x71:  # BINPUT
                    memo[buffer[i + 1]] = stack[-1]
                    i += 2
                elif op == 0x72:  # LONG_BINPUT
                    memo[int.from_bytes(buffer[i + 1 : i + 5], "little")] = stack[-1]
                    i += 5
                elif op == 0x68:  # BINGET
                    stack.append(memo[buffer[i + 1]])
                    i += 2
                elif op == 0x4B:  # BININT1
                    stack.append(buffer[i + 1])
                    i += 2
                elif op == 0x28:  # MARK
                    self.metastack.append(stack)
                    self.stack = stack = []
                    i += 1
                elif op == 0x74:  # TUPLE
                    items = tuple(stack)
                    self.stack = stack = self.metastack.pop()
                    stack.append(items)
                    i += 1
                elif op == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                    i += 1
                else:
                    i = opcodes[op](self, i)
                    if self.end >= 0 or buffer is not self.buffer:
                        return i
                    stack = self.stack
        except (IndexError, KeyError, struct.error):
            # The only lookups here are in the stack, the memo and the window: the stream asked for
            # something that is not there.
            raise self.malformed("an opcode lacks its operand", i) from None
        return i


def outranked(error: CkptctlError, uses: tuple[GlobalUse, ...]) -> CkptctlError:
    """Let "it would have run code" outrank "it is malformed"."""
    bad = [use for use in uses if use.level in (Level.FOREIGN, Level.DANGEROUS)]
    if not bad or isinstance(error, UnsupportedError):
        return error
    named = ", ".join(str(use) for use in bad[:3])
    return UnsafePickleError(f"{error.message}; it asks a loader to import {named}", hint=error.hint)
