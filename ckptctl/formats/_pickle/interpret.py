"""What the calls in a pickle stand for: a table from exact names to small functions of our own.

The calls are taken in the order in which they were made, and once more when a state was set on
them, so that whatever a call was given has been interpreted before it. What is not in the table
stays a recorded call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, UnsupportedError
from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.records import Call, Global, PersistentId
from ckptctl.formats._pickle.storages import Draft, Storage, Storages

if TYPE_CHECKING:
    from ckptctl.model import GlobalUse
    from ckptctl.storage import ByteRange

Rebuild = Callable[["Context", tuple[object, ...], Call], object]
Table = Mapping[tuple[str, str], Rebuild]

_CHUNK = 1024
_BY_STATE = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")})
"""What they make is empty until its state is set."""


class Context:
    """What the functions of the table need: the file, its storages, and the table itself.

    `globals` are those that nested files name; `used` the tensors that others were made of.
    """

    def __init__(self, source: ByteRange, storages: Storages, table: Table) -> None:
        self.source = source
        self.storages = storages
        self.table = table
        self.clock = limits.Clock(source)
        self.globals: list[GlobalUse] = []
        self.used: set[int] = set()

    def run(self, calls: list[Call]) -> None:
        """Give every call that the table knows its value."""
        table = self.table
        for number, call in enumerate(calls):
            if not number % _CHUNK:
                self.clock.check()
            fn = call.fn
            rebuild = table.get(fn.pair) if type(fn) is Global else None
            if rebuild:
                self.clock.check()  # one call may cost as much as it likes
                call.value = rebuild(self, call.args, call)
                if call.value is not None:
                    self._refuse_more(call)
            elif any(type(arg) is PersistentId for arg in call.args):
                # Whatever is given a storage makes a tensor of it; to leave that out would be a wrong listing.
                raise self.unknown(fn)

    def _refuse_more(self, call: Call) -> None:
        """Refuse what would change a value that a call has made: a loader would show another one."""
        states = len(call.state or ())
        if call.items or call.pairs or call.kwargs or states > (call.pair in _BY_STATE):
            raise self.bad(f"something is set on what {call.fn} has made")

    def storage(self, node: object) -> Storage:
        """Return the storage that a persistent id refers to, or that a nested file holds."""
        if isinstance(node, Call) and isinstance(node.value, Storage):
            return node.value
        if not isinstance(node, PersistentId):
            raise self.bad("a storage is not given by a persistent id")
        return self.storages.find(node.value)

    def draft(self, node: object) -> Draft:
        """Return the tensor that a node stands for."""
        if isinstance(node, Call) and isinstance(node.value, Draft):
            self.used.add(id(node.value))
            return node.value
        raise self.bad("a tensor is expected where there is something else")

    def dismiss(self, node: object) -> None:
        """Take note that a tensor, or those in a dict, follow from others and need no name."""
        for inner in node.values() if isinstance(node, dict) else (node,):
            if isinstance(inner, Call) and isinstance(inner.value, Draft):
                self.used.add(id(inner.value))

    def strided(self, node: object) -> Draft:
        """Return the ordinary tensor, in one place, that a node stands for."""
        draft = self.draft(node)
        if draft.layout != "strided" or draft.storage is None:
            raise self.bad("an ordinary tensor is expected where there is one of another kind")
        return draft

    def ints(self, node: object) -> tuple[int, ...]:
        """Return a few integers: strides, offsets."""
        value = value_of(node)
        if isinstance(value, (tuple, list)) and len(value) <= limits.MAX_DIMS and all(type(n) is int for n in value):
            return tuple(value)
        raise self.bad("a size or stride is not made of a few integers")

    def size(self, node: object) -> tuple[int, ...]:
        """Return the shape that a node stands for: no negative size, fewer than 2**63 elements."""
        shape, count = self.ints(node), 1
        for length in shape:
            count *= max(length, 1)
            if length < 0 or count >= limits.MAX_NUMEL:
                raise self.bad(f"a tensor has the impossible shape {shape}")
        return shape

    def unknown(self, fn: object) -> UnsupportedError:
        """Return the error for a tensor that is made in a way that nobody has told us of."""
        name = str(fn) if isinstance(fn, Global) else "a computed function"
        return UnsupportedError(
            f"{self.source.file.path}: a tensor is rebuilt by {name}, which this version does not know",
            hint="the file is damaged, or from a newer torch: then a newer ckptctl may read it",
        )

    def bad(self, what: str) -> CorruptError:
        """Return the error for a pickle that is well formed and makes no sense."""
        return CorruptError(f"{self.source.file.path}: damaged pickle: {what}")


def value_of(node: object) -> object:
    """Return what a call stands for, or the node itself."""
    return node.value if isinstance(node, Call) and node.value is not None else node
