"""The nested plain state of a checkpoint: step, learning rates, betas, arguments.

A value is None, a bool, int, float, str or bytes, a dict, list or tuple of values, or one of the
records below, which stand for what plain Python cannot. Nothing here is ever called or built.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from ckptctl.model import Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ckptctl.model import DType
    from ckptctl.storage import ByteRange


VALUES_KEY = "ckptctl.values"
"""The key of a safetensors file's ``__metadata__`` under which the plain values of its checkpoint stand, as JSON."""
RANK_KEY = "ckptctl.rank"
"""The key under which it says of which rank the file is, ``0 of 2``; there are files of the other ranks then."""
BLOCKS_KEY = "ckptctl.blocks"
"""The key under which such a file says which tensors are blocks of larger ones: whole shapes and offsets, as JSON."""
RANK_VALUES_KEY = "ckptctl.rank_values"
"""The key under which such a file has its rank's plain values; some of the tensors that they name are in another."""
BASE_KEY = "ckptctl.base"
"""The key under which a file says which other one has those of its tensors that have not changed, as JSON."""
BASE_VALUES_KEY = "ckptctl.base_values"
"""The key under which such a file has its plain values; some of the tensors that they name are in its base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """Stands where the tensor called `name` stood. `type` is its class; `state` what hung on it."""

    name: str
    type: str = "torch.Tensor"
    requires_grad: bool = False
    state: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An object as data: its class, how far that is trusted, and what it was to be made from.

    `args` are the arguments of its constructor, `state` its attributes (a dict of them, or whatever its class
    takes in their place), `items` what was put into it (a dict for mappings, a list for sequences and sets).
    `how` says how it was made from `args`: by a ``call``, by ``new`` (its class's ``__new__`` alone), or by
    ``new-ex`` (the same, the last of `args` being a dict of keyword arguments). For a whole ``torch.nn.Module``
    it is ``module``: then `items` are its parameters, buffers and modules.
    """

    type: str
    level: Level = Level.KNOWN
    args: tuple[object, ...] = ()
    state: object = None
    items: object = None
    how: str = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Text or bytes too long to be read with the rest; they stay in the file.

    `text` is for text in UTF-8; `latin1` for bytes that are written as such a text, a character each.
    """

    range: ByteRange
    text: bool = False
    latin1: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A long list (or tuple, as `type` says) of nothing but numbers, which stay in the file as elements of `dtype`.

    BOOL stands for bool, I64 and U64 for int, F64 for float.
    """

    range: ByteRange
    dtype: DType
    type: str


@dataclass(frozen=True, slots=True)
class Elided:
    """Stands for what was left out, and says why."""

    why: str


@dataclass(slots=True, eq=False)
class Token:
    """A dict key that is no plain value. Two tokens are never equal."""

    text: str = field(default="object")

    def __str__(self) -> str:
        return f"<{self.text}>"


def as_mapping(value: object) -> Mapping[object, object] | None:
    """Return the items of a dict, or of an object that is one in all but its class."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Described) and isinstance(value.items, dict):
        return value.items
    return None


def is_module(value: object) -> bool:
    """Whether a described object is a whole ``torch.nn.Module``, or a module of TorchScript."""
    return isinstance(value, Described) and (value.how == "module" or value.type.startswith("__torch__."))


def attributes(value: object) -> Mapping[object, object] | None:
    """Return the items of a mapping, or else the attributes of a described object."""
    items = as_mapping(value)
    if items is None and isinstance(value, Described) and isinstance(value.state, dict):
        return value.state
    return items


def children(value: object) -> Iterator[tuple[str, object]]:
    """Yield what is directly inside a value, each under the text of its key or index."""
    if isinstance(value, dict):
        yield from text_items(value)
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), inner) for index, inner in enumerate(value))
    elif isinstance(value, Described):
        yield from ((f"({index})", inner) for index, inner in enumerate(value.args))
        yield from children(value.state)
        yield from children(value.items)


def nested(value: object, *, skip: str = "", most: int = 10_000) -> Iterator[object]:
    """Yield a value and what is inside it, level by level, each object once, up to `most` of them.

    What stands under the key `skip` is passed over.
    """
    todo: deque[object] = deque([value])
    seen, left = {id(value)}, most
    while todo:
        value = todo.popleft()
        yield value
        for key, inner in islice(children(value), left):
            left -= 1
            if key != skip and id(inner) not in seen:
                seen.add(id(inner))
                todo.append(inner)


def with_names(value: object, prefix: str) -> object:
    """Return a value whose tensors are called by their names below `prefix`; a tensor by itself is called just that."""
    alone = isinstance(value, TensorRef)
    return with_references(value, lambda ref: replace(ref, name=prefix if alone else f"{prefix}.{ref.name}"))


def with_references(value: object, change: Callable[[TensorRef], TensorRef]) -> object:
    """Return a value in which each reference to a tensor is what `change` makes of it."""
    made: dict[int, object] = {}

    def of(value: object) -> object:
        if not isinstance(value, (dict, list, tuple, TensorRef, Described)):
            return value
        if id(value) not in made:
            made[id(value)] = Elided("it holds itself")
            made[id(value)] = inside(value)
        return made[id(value)]

    def inside(value: object) -> object:
        match value:
            case TensorRef():
                changed = change(value)
                return replace(changed, state=of(changed.state))
            case dict():
                return {key: of(inner) for key, inner in value.items()}
            case list():
                return [of(inner) for inner in value]
            case tuple():
                return tuple(map(of, value))
            case Described(args=args, state=state, items=items):
                return replace(value, args=tuple(map(of, args)), state=of(state), items=of(items))
        return value

    return of(value)


def text_items(items: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    """Yield the items of a mapping under the text of their keys; equal texts are told apart by a number."""
    last: dict[str, int] = {}
    for key, value in items.items():
        text = found = key_text(key)
        while found in last:
            last[text] += 1
            found = f"{text}#{last[text]}"
        last[found] = 1
        yield found, value


def key_text(key: object) -> str:
    """Return a dict key as the text by which it stands in a dotted name."""
    return key if isinstance(key, str) else key.decode("latin1") if isinstance(key, bytes) else str(key)


@dataclass(frozen=True, slots=True)
class State:
    """The plain values of a whole checkpoint, by the text of their top-level keys."""

    items: Mapping[str, object]


def as_json(value: object, *, nodes: int = 200_000, depth: int = 100) -> object:
    """Return a value as JSON has it: what JSON cannot say becomes an object with a ``$`` key.

    For reading, not for restoring. After so many `nodes`, or deeper than `depth`, the rest is left out
    and said so.
    """
    return _Json(nodes).of(value, depth)


class _Json:
    def __init__(self, nodes: int) -> None:
        self._left = nodes

    def of(self, value: object, depth: int) -> object:
        self._left -= 1
        if self._left < 0 or depth < 0:
            return {"$elided": "too many values" if self._left < 0 else "nested too deeply"}
        match value:
            case dict():
                return self._object(text_items(value), depth)
            case list() | tuple():
                return self._array(value, depth)
            case Described():
                parts = {"args": value.args, "state": value.state, "items": value.items}
                given = [(key, part) for key, part in parts.items() if part is not None and part != ()]
                return {"$type": value.type, "level": value.level.value, **self._object(given, depth)}
        return _leaf(value)

    def _object(self, items: Iterable[tuple[str, object]], depth: int) -> dict[str, object]:
        made: dict[str, object] = {}
        for key, inner in items:
            if self._left < 0:
                made["$elided"] = "too many values"
                break
            made[key] = self.of(inner, depth - 1)
        return made

    def _array(self, items: Iterable[object], depth: int) -> list[object]:
        made: list[object] = []
        for inner in items:
            made.append(self.of(inner, depth - 1))
            if self._left < 0:
                break
        return made


def _leaf(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case None | bool() | int() | str():
            return value
        case bytes():
            return {"$bytes": len(value), "hex": value[:32].hex()}
        case TensorRef(name=name, type=kind):
            return {"$tensor": name, "type": kind}
        case Span(range=place, text=text):
            return {"$text" if text else "$bytes": place.length}
        case Numbers(range=place, dtype=dtype, type=kind):
            return {"$numbers": place.length * 8 // dtype.bits, "type": kind}
        case Elided(why=why):
            return {"$elided": why}
    return {"$unknown": type(value).__name__}
