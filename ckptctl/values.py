"""The nested plain state of a checkpoint: step, learning rates, betas, arguments.

A value is None, a bool, int, float, str or bytes, a dict, list or tuple of values, or one of the
records below, which stand for what plain Python cannot. Nothing here is ever called or built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.model import Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.storage import ByteRange

MAPPING_TYPES = frozenset(
    {"collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.dict"}
)


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

    `args` are the arguments of its constructor, `state` its attributes, `items` what was put into
    it (a dict for mappings, a list for sequences and sets).
    """

    type: str
    level: Level = Level.KNOWN
    args: tuple[object, ...] = ()
    state: object = None
    items: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Text or bytes too long to be read with the rest; they stay in the file."""

    range: ByteRange
    text: bool = False


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


def attributes(value: object) -> Mapping[object, object] | None:
    """Return the items of a mapping, or else the attributes of a described object."""
    items = as_mapping(value)
    if items is None and isinstance(value, Described) and isinstance(value.state, dict):
        return value.state
    return items


def children(value: object) -> Iterator[tuple[str, object]]:
    """Yield what is directly inside a value, each under the text of its key or index."""
    if isinstance(value, dict):
        yield from ((key_text(key), inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), inner) for index, inner in enumerate(value))
    elif isinstance(value, Described):
        yield from ((f"({index})", inner) for index, inner in enumerate(value.args))
        yield from children(value.state)
        yield from children(value.items)


def key_text(key: object) -> str:
    """Return a dict key as the text by which it stands in a dotted name."""
    return key if isinstance(key, str) else key.decode("latin1") if isinstance(key, bytes) else str(key)


def as_json(value: object, *, limit: int = 1_000_000) -> object:
    """Return a value as JSON has it: what JSON cannot say becomes an object with a ``$`` key.

    For reading, not for restoring. After `limit` nodes the rest is left out and said so.
    """
    return _Json(limit).of(value)


class _Json:
    def __init__(self, limit: int) -> None:
        self._left = limit

    def of(self, value: object) -> object:
        self._left -= 1
        if self._left < 0:
            return {"$elided": "too many values"}
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else {"$float": str(value)}
            case bytes():
                return {"$bytes": len(value), "hex": value[:32].hex()}
            case dict():
                return {key_text(key): self.of(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.of(inner) for inner in value]
            case TensorRef(name=name, type=kind):
                return {"$tensor": name, "type": kind}
            case Span(range=place, text=text):
                return {"$text" if text else "$bytes": place.length}
            case Elided(why=why):
                return {"$elided": why}
            case Described():
                parts = {"args": value.args, "state": value.state, "items": value.items}
                inner = {key: self.of(part) for key, part in parts.items() if part not in (None, ())}
                return {"$type": value.type, "level": value.level.value, **inner}
        return {"$unknown": type(value).__name__}
