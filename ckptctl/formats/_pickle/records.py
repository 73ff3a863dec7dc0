"""What a pickle leaves behind when nothing is called: plain Python values and these records.

Records compare by identity, cannot be called, and have no attributes but their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.values import Span, Token

if TYPE_CHECKING:
    from ckptctl.model import GlobalUse

__all__ = ["Call", "Ext", "Global", "NodeToken", "PersistentId", "Pickle", "Span"]


class Global:
    """A name that an unpickler would import, in its Python 3 spelling; tables know it by its `pair`."""

    __slots__ = ("called", "count", "module", "name", "opcodes", "pair")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self.pair = (module, name)
        self.count = 0
        self.called = 0
        self.opcodes: dict[str, None] = {}

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Call:
    """A call that an unpickler would make, and what it would then do to the result.

    `value` is filled in by interpretation: what the call stands for, if that is known.
    """

    __slots__ = ("args", "fn", "how", "items", "kwargs", "pairs", "state", "value")

    def __init__(self, how: str, fn: object, args: tuple[object, ...], kwargs: object = None) -> None:
        self.how = how
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.state: list[object] | None = None
        self.items: list[object] | None = None
        self.pairs: list[tuple[object, object]] | None = None
        self.value: object = None

    @property
    def pair(self) -> tuple[str, str]:
        """The global that is called, or a pair of empty names if it is computed."""
        return self.fn.pair if isinstance(self.fn, Global) else ("", "")

    def attributes(self) -> dict[object, object]:
        """Return the attributes that its states set, slots included; a state that is none sets nothing."""
        found: dict[object, object] = {}
        for state in self.state or ():
            for part in state if isinstance(state, tuple) else (state,):
                if isinstance(part, dict):
                    found.update(part)
        return found

    def other_states(self) -> list[object]:
        """Return its states if one of them is more than attributes: then only its class knows what they mean."""
        states = [state for state in self.state or () if state is not None]
        return [] if all(map(_is_attributes, states)) else states


def _is_attributes(state: object) -> bool:
    """Whether a state is a dict of attributes, or the pair (attributes or None, slots)."""
    if isinstance(state, tuple) and len(state) == 2:
        return isinstance(state[1], dict) and isinstance(state[0], (dict, type(None)))
    return isinstance(state, dict)


class NodeToken(Token):
    """A key that could not be one, with the node that it was, which may turn out to be plain after all."""

    __slots__ = ("node",)

    def __init__(self, text: str, node: object) -> None:
        super().__init__(text)
        self.node = node


class PersistentId:
    """Something outside the pickle; in torch files, a storage."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Ext:
    """A class named by a number in a registry of the process that loads the file."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Pickle:
    """A pickle that was read to its end: its value, its calls and storages in order, where it ends (bytes)."""

    root: object
    calls: list[Call]
    storages: list[PersistentId]
    globals: tuple[GlobalUse, ...]
    end: int
