"""Containers while they are rebuilt: what is left of their children, and what they become."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.formats._pickle.containers import PLAIN_KEYS, plain_key
from ckptctl.formats._pickle.records import Call, Global, NodeToken
from ckptctl.model import Level
from ckptctl.values import Described, Span, TensorRef, Token

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAPPINGS = frozenset({("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")})
_SEQUENCES = frozenset({("builtins", "set"), ("builtins", "frozenset"), ("builtins", "list"), ("builtins", "tuple"),
                        ("collections", "deque")})  # fmt: skip

_HOW = {"NEWOBJ": "new", "NEWOBJ_EX": "new-ex"}
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
_ATOMS = (*PLAIN_KEYS, Span)
Child = tuple[object, object]
Levels = dict[tuple[str, str], Level]


class Frame:
    """A list being rebuilt. `keys` and `done` grow together; `close` returns the finished value.

    `path` is the name of what is in it, None at the root; `named` how many tensors had a name when it
    was opened.
    """

    __slots__ = ("children", "done", "keys", "named", "node", "path")

    def __init__(self, node: object, path: str | None, children: Iterable[Child]) -> None:
        self.node = node
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
        return {resolved_key(key): value for key, value in zip(self.keys, self.done, strict=True)}


class TensorFrame(Frame):
    """What hangs on a tensor, being rebuilt; the tensor itself has its name already."""

    __slots__ = ("_ref",)

    def __init__(self, node: object, ref: TensorRef, children: Iterable[Child]) -> None:
        super().__init__(node, ref.name, children)
        self._ref = ref

    def close(self) -> object:
        """Return the reference, with the attributes of the tensor."""
        return replace(self._ref, state=dict(zip(self.keys, self.done, strict=True)))


class CallFrame(Frame):
    """A recorded call being described: arguments, what was put into it, attributes, in this order."""

    __slots__ = ("_counts", "_how", "_level", "_mapping", "_name", "_sequence", "_whole")

    def __init__(self, call: Call, path: str | None, levels: Levels) -> None:
        args, items, pairs = _filled(call)
        states = call.other_states()
        self._whole = bool(states)
        attributes = [("state", _one(states))] if states else list(call.attributes().items())
        function = [] if isinstance(call.fn, Global) else [("function", call.fn)]
        self._counts = (len(args), len(items), len(pairs), len(attributes))
        self._name = "a computed function" if function else str(call.fn)
        self._level = Level.DANGEROUS if function else levels.get(call.pair, Level.KNOWN)
        self._how = _HOW.get(call.how, "call")
        self._mapping = call.pair in _MAPPINGS or bool(pairs)
        self._sequence = call.pair in _SEQUENCES or bool(items)
        super().__init__(call, path, [*enumerate(args), *enumerate(items), *pairs, *attributes, *function])

    def close(self) -> object:
        """Return the description."""
        args, items, pairs, attributes = self._parts()
        filled: object = [value for _, value in items] if self._sequence else None
        if self._mapping:
            mapped = {resolved_key(key): value for key, value in pairs}
            filled = [*filled, mapped] if isinstance(filled, list) else mapped
        return Described(
            type=self._name,
            level=self._level,
            args=tuple(value for _, value in args),
            state=attributes[0][1] if self._whole else dict(attributes) if attributes else None,
            items=filled,
            how=self._how,
        )

    def _parts(self) -> list[list[Child]]:
        every = list(zip(self.keys, self.done, strict=True))
        parts, start = [], 0
        for count in self._counts:
            parts.append(every[start : start + count])
            start += count
        return parts


class ModuleFrame(Frame):
    """A whole ``torch.nn.Module`` being described: what its state dict names, then its own attributes.

    `private` are attributes that it keeps for itself: hooks, lists of its parameters once more, or tensors that no
    state dict names; `state` is where these come to stand.
    """

    __slots__ = ("_level", "_name", "_own", "private", "state")

    def __init__(self, call: Call, path: str | None, levels: Levels) -> None:
        attributes = call.attributes()
        dicts = [attributes.pop(key) for key in _MODULE_DICTS]
        inside = [pair for node in dicts for pair in _items(node) or () if pair[1] is not None]
        private = {key: value for key, value in attributes.items() if isinstance(key, str) and key.startswith("_")}
        own = [(key, value) for key, value in attributes.items() if key not in private]
        super().__init__(call, path, [*inside, *own])
        self.private = [(key, value) for key, value in private.items() if not _is_plain(value)]
        self.private += [(key, rest) for key, node in zip(_MODULE_DICTS, dicts, strict=True) if (rest := _rest(node))]
        self.state: dict[object, object] = {}
        self._own = len(own)
        self._name = str(call.fn)
        self._level = levels.get(call.pair, Level.KNOWN)

    def close(self) -> object:
        """Return the description: `items` are parameters, buffers and modules, `state` the rest."""
        every = list(zip(self.keys, self.done, strict=True))
        count = len(every) - self._own
        items = {resolved_key(key): value for key, value in every[:count]}
        self.state.update(every[count:])
        return Described(type=self._name, level=self._level, state=self.state, items=items, how="module")


def open_frame(node: object, path: str | None, levels: Levels) -> Frame:
    """Begin to rebuild a container."""
    if isinstance(node, dict):
        return DictFrame(node, path, node.items())
    if isinstance(node, list):
        return Frame(node, path, enumerate(node))
    if isinstance(node, tuple):
        return TupleFrame(node, path, enumerate(node))
    if isinstance(node, Call):
        return ModuleFrame(node, path, levels) if _is_module(node) else CallFrame(node, path, levels)
    raise TypeError(f"{type(node).__name__} is not something that the pickle machine makes")


def _is_module(call: Call) -> bool:
    if not isinstance(call.fn, Global) or call.items or call.pairs or call.kwargs or call.other_states():
        return False
    attributes = call.attributes()
    bare = all(arg is None or isinstance(arg, Global) for arg in call.args)
    return bare and all(_items(attributes.get(key)) is not None for key in _MODULE_DICTS)


def _items(node: object) -> list[Child] | None:
    """Return the items of a dict, or of an ordered one, as older torch had, or of a class of these; None otherwise."""
    if isinstance(node, dict):
        return list(node.items())
    if not isinstance(node, Call) or not isinstance(node.fn, Global) or node.items:
        return None
    known = node.pair in _MAPPINGS or node.fn.name.endswith("OrderedDict")
    return _filled(node)[2] if known or node.pairs else None


def _rest(node: object) -> list[object]:
    """Return what an ordered dict holds beside its items: of a class of its own it may be a great deal."""
    return [*_filled(node)[0], *(node.state or ())] if isinstance(node, Call) else []


def _is_plain(value: object) -> bool:
    """Whether an attribute is a flag, or hooks of which there are none: nothing that may hold a tensor."""
    if isinstance(value, Call):
        args, items, pairs = _filled(value)
        inside: list[object] = [*args, *items, *(inner for pair in pairs for inner in pair), *(value.state or ())]
    else:
        inside = [*value.keys(), *value.values()] if isinstance(value, dict) else [value]
    return all(type(inner) in _ATOMS for inner in inside)


def size_of(node: object) -> int:
    """Return how many children a container has, without opening it."""
    if isinstance(node, Call):
        states = sum(size_of(state) for state in node.state or () if not isinstance(state, Call))
        return len(node.args) + len(node.items or ()) + len(node.pairs or ()) + states
    return len(node) if isinstance(node, (dict, list, tuple)) else 0


def resolved_key(key: object) -> object:
    """Return a key as it is; a token becomes the bytes that it turned out to be, or loses its node."""
    if not isinstance(key, NodeToken):
        return key
    node = key.node
    return node.value if isinstance(node, Call) and isinstance(node.value, bytes) else Token(key.text)


def _filled(call: Call) -> tuple[list[object], list[object], list[Child]]:
    """Return arguments, items and pairs, with what a known container was made from among the latter.

    As in any dict, the last value of a key is the one that stays, in the place of the first.
    """
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
    return args, items, list(dict(pairs).items())


def _one(states: list[object]) -> object:
    return states[0] if len(states) == 1 else tuple(states)


def _is_pair(item: object) -> bool:
    return isinstance(item, (list, tuple)) and len(item) == 2
