"""Containers while they are rebuilt: what is left of their children, and what they become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.formats._pickle.containers import plain_key
from ckptctl.formats._pickle.records import Call, Global
from ckptctl.model import Level
from ckptctl.values import Described

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAPPINGS = frozenset({("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")})
_SEQUENCES = frozenset({("builtins", "set"), ("builtins", "frozenset"), ("builtins", "list"), ("builtins", "tuple"),
                        ("collections", "deque")})  # fmt: skip

Child = tuple[object, object]


class Frame:
    """A list being rebuilt. `keys` and `done` grow together; `close` returns the finished value.

    `size` is how many children there are; `named` how many tensors had a name when it was opened.
    """

    __slots__ = ("children", "done", "keys", "named", "node", "path", "size")

    def __init__(self, node: object, path: str, children: Iterable[Child], size: int = 0) -> None:
        self.node = node
        self.size = size
        self.named = 0
        self.path = path
        self.children: Iterator[Child] = iter(children)
        self.keys: list[object] = []
        self.done: list[object] = []

    def close(self) -> object:
        """Return what the container has become."""
        return self.done


class TupleFrame(Frame):
    """A tuple being rebuilt."""

    __slots__ = ()

    def close(self) -> object:
        """Return the tuple."""
        return tuple(self.done)


class DictFrame(Frame):
    """A dict being rebuilt."""

    __slots__ = ()

    def close(self) -> object:
        """Return the dict."""
        return dict(zip(self.keys, self.done, strict=True))


class CallFrame(Frame):
    """A recorded call being described: arguments, what was put into it, attributes, in this order."""

    __slots__ = ("_counts", "_level", "_mapping", "_name", "_sequence")

    def __init__(self, call: Call, path: str, levels: dict[str, Level]) -> None:
        args, items, pairs = _filled(call)
        attributes = list(call.attributes().items()) or [
            ("state", state) for state in call.state or () if state is not None and not _is_attributes(state)
        ]
        function = [] if isinstance(call.fn, Global) else [("function", call.fn)]
        self._counts = (len(args), len(items), len(pairs), len(attributes))
        self._name = "a computed function" if function else str(call.fn)
        self._level = Level.DANGEROUS if function else levels.get(self._name, Level.KNOWN)
        self._mapping = call.pair in _MAPPINGS or bool(pairs)
        self._sequence = call.pair in _SEQUENCES or bool(items)
        children = [*enumerate(args), *enumerate(items), *pairs, *attributes, *function]
        super().__init__(call, path, children, len(children))

    def close(self) -> object:
        """Return the description."""
        args, items, pairs, attributes = self._parts()
        filled: object = [value for _, value in items] if self._sequence else dict(pairs) if self._mapping else None
        return Described(
            type=self._name,
            level=self._level,
            args=tuple(value for _, value in args),
            state=dict(attributes) if attributes else None,
            items=filled,
        )

    def _parts(self) -> list[list[Child]]:
        every = list(zip(self.keys, self.done, strict=True))
        parts, start = [], 0
        for count in self._counts:
            parts.append(every[start : start + count])
            start += count
        return parts


def open_frame(node: object, path: str, levels: dict[str, Level]) -> Frame:
    """Begin to rebuild a container."""
    if isinstance(node, dict):
        return DictFrame(node, path, node.items(), len(node))
    if isinstance(node, list):
        return Frame(node, path, enumerate(node), len(node))
    if isinstance(node, tuple):
        return TupleFrame(node, path, enumerate(node), len(node))
    if isinstance(node, Call):
        return CallFrame(node, path, levels)
    raise TypeError(f"{type(node).__name__} is not something that the pickle machine makes")


def _filled(call: Call) -> tuple[list[object], list[object], list[Child]]:
    """Return arguments, items and pairs, with what a known container was made from among the latter."""
    args, items, pairs = list(call.args), list(call.items or ()), list(call.pairs or ())
    if call.kwargs:
        args.append(call.kwargs)
    last = args[-1] if args else None
    if call.pair in _MAPPINGS and isinstance(last, dict):
        pairs = [*last.items(), *pairs]
        args.pop()
    elif call.pair in _MAPPINGS and isinstance(last, list) and all(_is_pair(item) for item in last):
        pairs = [*((plain_key(key), value) for key, value in last), *pairs]
        args.pop()
    first = args[0] if args else None
    if call.pair in _SEQUENCES and isinstance(first, (list, tuple)):
        items = [*first, *items]
        args.pop(0)
    return args, items, pairs


def _is_pair(item: object) -> bool:
    return isinstance(item, (list, tuple)) and len(item) == 2


def _is_attributes(state: object) -> bool:
    """Whether a state is a dict of attributes, or the pair (attributes or None, slots)."""
    return isinstance(state, dict) or (_is_pair(state) and isinstance(state[1], dict))  # type: ignore[index]
