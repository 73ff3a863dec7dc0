"""The state of the pickle machine: it records and never calls.

What an unpickler would import becomes a `Global`, what it would call a `Call`; nothing is looked up,
imported or run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, LimitError
from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.levels import levels_of, python3_name
from ckptctl.formats._pickle.records import Call, Ext, Global, PersistentId
from ckptctl.model import GlobalUse, Level

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_CALLS_ITS_ARGUMENT = ("torch._tensor", "_rebuild_from_type_v2")


class Machine:
    """The state of reading one pickle from the start of a byte range: stack, memo, window, budgets."""

    def __init__(self, source: ByteRange, *, own: str = "") -> None:
        self.source = source
        self.own = own
        self.storages: list[PersistentId] = []
        self.stack: list[object] = []
        self.metastack: list[list[object]] = []
        self.memo: list[object] = []
        self.far: dict[int, object] = {}
        self.calls: list[Call] = []
        self.globals: dict[tuple[str, str], Global] = {}
        self.extensions: dict[int, int] = {}
        self.items = 0
        self.buffer = b""
        self.base = 0
        self.end = -1
        self.clock = limits.Clock(source)

    def uses(self) -> tuple[GlobalUse, ...]:
        """Judge all globals that the stream has named so far."""
        indirect = {id(c): c.args[0] for c in self.calls if c.args and c.pair == _CALLS_ITS_ARGUMENT}
        by_argument = Counter(fn.pair for fn in indirect.values() if isinstance(fn, Global))
        for item in self.globals.values():
            item.called += by_argument[item.pair]
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
            for item, level in zip(items, levels_of(items, self.calls, own=self.own), strict=True)
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

    def put(self, number: int, value: object) -> None:
        """Memorize a value: numbers that count up, as nearly all do, in a list, and others in `far`."""
        if number == len(self.memo):
            self.memo.append(value)
            self.far.pop(number, None)
        elif 0 <= number < len(self.memo):
            self.memo[number] = value
        else:
            self.far[number] = value

    def get(self, number: int) -> object:
        """Return what was memorized; raises a KeyError if nothing was."""
        return self.memo[number] if 0 <= number < len(self.memo) else self.far[number]

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
            ("memo entries", len(self.memo) + len(self.far), limits.MAX_MEMO),
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
