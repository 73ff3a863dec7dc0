"""Make the plain state of a checkpoint fit to be written: what cannot be kept is named, and taken out if asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptctl.errors import LimitError
from ckptctl.model import Level
from ckptctl.values import Described, Elided, Numbers, Span, TensorRef, Token, children, is_module, key_text
from ckptctl.values.encode import numbers_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ORDERED = "collections.OrderedDict"
_VERSIONS = "_metadata"
"""Where torch keeps the versions of modules, beside a state dict."""
_DISTRIBUTED = frozenset(
    {
        "torch.distributed.tensor.DTensor",
        "torch.distributed._shard.sharded_tensor.api.ShardedTensor",
    }
)
_TENSORS = frozenset(
    {
        "torch.Tensor", "torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer",
        "numpy.ndarray", "torch.storage.TypedStorage", "torch.storage.UntypedStorage",
    }
)  # fmt: skip
_GONE = object()
_MAX_DEPTH = 100
"""Deeper than any real checkpoint, and shallow enough to be gone through by functions that call themselves."""


@dataclass(slots=True)
class Tidied:
    """A tree that can be written; `unkept` says where there was something that cannot, and what.

    `tensors` are the names that it refers to, `places` where bytes and numbers lie that it holds as values.
    """

    values: object = None
    unkept: dict[str, str] = field(default_factory=dict)
    tensors: set[str] = field(default_factory=set)
    places: set[tuple[int, int]] = field(default_factory=set)
    modules: list[str] = field(default_factory=list)


def tidied(values: object, *, unholdable: Mapping[str, str]) -> Tidied:
    """Return a tree without what cannot be kept.

    `unholdable` maps the names of tensors that cannot be written to the reason. Modules become the state dict
    of their tensors.
    """
    work = _Tidy(unholdable)
    made = work.of(values, "")
    work.result.values = None if made is _GONE else made
    return work.result


class _Tidy:
    def __init__(self, unholdable: Mapping[str, str]) -> None:
        self.result = Tidied()
        self._unholdable = unholdable
        self._done: dict[int, tuple[object, object]] = {}
        self._depth = 0

    def of(self, value: object, at: str) -> object:
        """Return what a value becomes, `_GONE` if it cannot be kept; what is shared is gone through once."""
        if not isinstance(value, (dict, list, tuple, Described)):
            return self._made(value, at)
        known = self._done.get(id(value))
        if known is None:
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise LimitError(
                    f"{at[:200]} is nested deeper than {_MAX_DEPTH}", hint="--only model takes the weights alone"
                )
            known = self._done[id(value)] = (value, self._made(value, at))
            self._depth -= 1
        return known[1]

    def _made(self, value: object, at: str) -> object:
        match value:
            case TensorRef():
                return self._reference(value, at)
            case Described():
                return self._described(value, at)
            case dict():
                return self._dict(value, at)
            case list():
                return [self._item(inner, below(at, index)) for index, inner in enumerate(value)]
            case tuple():
                return tuple(self._item(inner, below(at, index)) for index, inner in enumerate(value))
            case Span(range=place) | Numbers(range=place):
                self.result.places.add((id(place.file), place.offset))
            case Elided(why=why):
                return self._unkept(at, f"left out by the reader: {why}")
        return value

    def _item(self, value: object, at: str) -> object:
        """Something with a place that must stay: nothing stands for what is gone."""
        made = self.of(value, at)
        return None if made is _GONE else made

    def _dict(self, value: Mapping[object, object], at: str) -> dict[object, object]:
        made: dict[object, object] = {}
        for key, inner in value.items():
            place = below(at, key)
            if isinstance(key, Token):
                self._unkept(place, f"its key is a {key.text}, no plain value")
                continue
            found = self.of(inner, place)
            if found is not _GONE:
                made[key] = found
        return made

    def _reference(self, ref: TensorRef, at: str) -> object:
        why = self._unholdable.get(ref.name)
        if why is None and ref.type not in _TENSORS | _DISTRIBUTED:
            why = f"a tensor of the class {ref.type}"
        if why is not None:
            return self._unkept(at or ref.name, why)
        self.result.tensors.add(ref.name)
        kind = "torch.Tensor" if ref.type in _DISTRIBUTED else ref.type
        state = None if ref.state is None else self._item(ref.state, at)
        return replace(ref, type=kind, state=state) if kind != ref.type or state != ref.state else ref

    def _described(self, value: Described, at: str) -> object:
        if is_module(value):
            return self._module(value, at)
        if value.level in (Level.FOREIGN, Level.DANGEROUS):
            named = f"the class {value.args[0]}" if value.type == "type" and value.args else value.type
            return self._unkept(at, f"{named} ({value.level.value})")
        return replace(
            value,
            args=tuple(self._item(inner, below(at, f"({i})")) for i, inner in enumerate(value.args)),
            state=None if value.state is None else self._item(value.state, at),
            items=None if value.items is None else self._item(value.items, at),
        )

    def _module(self, value: Described, at: str) -> object:
        self.result.modules.append(value.type)
        items: dict[object, object] = {}
        for name, ref in _references(value):
            made = self._reference(ref, below(at, name))
            if isinstance(made, TensorRef):
                # As in a state dict, where parameters are tensors like any other.
                items[name] = TensorRef(name=made.name)
        return Described(type=_ORDERED, items=items)

    def _unkept(self, at: str, why: str) -> object:
        self.result.unkept[at or "the whole"] = why
        return _GONE


def _references(module: Described) -> Iterator[tuple[str, TensorRef]]:
    """Yield the tensors in a module under the names that its state dict gives them."""
    todo: list[tuple[str, object]] = [("", module)]
    while todo:
        at, value = todo.pop()
        if isinstance(value, TensorRef):
            yield at, value
        elif is_module(value) or isinstance(value, (dict, list, tuple)):
            todo += [(below(at, key), inner) for key, inner in reversed(list(children(value)))]


def references(value: object) -> Iterator[TensorRef]:
    """Yield every reference to a tensor in a tree, each object once: references at two places are two objects."""
    todo, seen = [value], set[int]()
    while todo:
        value = todo.pop()
        if isinstance(value, TensorRef):
            yield value
            todo.append(value.state)
        elif isinstance(value, (dict, list, tuple, Described)) and id(value) not in seen:
            seen.add(id(value))
            todo += _inside(value)


def _inside(value: dict[object, object] | list[object] | tuple[object, ...] | Described) -> list[object]:
    if isinstance(value, Described):
        return [value.args, value.state, value.items]
    return list(value.values() if isinstance(value, dict) else value)


def mapped(value: object, change: Callable[[object], object]) -> object:
    """Return a tree whose parts went through `change`, from the inside out; what is shared stays shared."""
    done: dict[int, tuple[object, object]] = {}

    def of(value: object) -> object:
        known = done.get(id(value))
        if known is None:
            known = done[id(value)] = (value, change(_rebuilt(value, of)))
        return known[1]

    return of(value)


def _rebuilt(value: object, of: Callable[[object], object]) -> object:
    match value:
        case dict():
            return {key: of(inner) for key, inner in value.items()}
        case list():
            return [of(inner) for inner in value]
        case tuple():
            return tuple(of(inner) for inner in value)
        case TensorRef(state=state) if state is not None:
            return replace(value, state=of(state))
        case Described(args=args, state=state, items=items):
            return replace(value, args=tuple(of(inner) for inner in args), state=of(state), items=of(items))
    return value


def state_dict(values: object) -> dict[str, TensorRef] | None:
    """Return the references of a plain state dict: a dict of nothing but tensors under text; None for all else."""
    items: object = values
    if isinstance(values, Described) and values.type == _ORDERED:
        state = values.state if isinstance(values.state, dict) else {}
        items = values.items if state.keys() <= {_VERSIONS} else None
    if not isinstance(items, dict) or not items:
        return None
    plain = all(isinstance(key, str) and is_plain_tensor(ref) for key, ref in items.items())
    return items if plain else None


def is_plain_tensor(value: object) -> bool:
    """Whether a value is a tensor of torch with nothing attached to it."""
    if not isinstance(value, TensorRef):
        return False
    return value.type == "torch.Tensor" and not value.requires_grad and value.state is None


def count_values(value: object) -> int:
    """Return how many plain values a tree holds: leaves that are no tensors, a long list of numbers as one."""
    counts: dict[int, int] = {}

    def of(value: object) -> int:
        if not isinstance(value, (dict, list, tuple, Described)):
            return not isinstance(value, TensorRef)
        if id(value) not in counts:
            counts[id(value)] = _counted(value, of)
        return counts[id(value)]

    return of(value)


def _counted(
    value: dict[object, object] | list[object] | tuple[object, ...] | Described, of: Callable[[object], int]
) -> int:
    if isinstance(value, (list, tuple)) and numbers_dtype(value):
        return 1
    inside = sum(of(inner) for inner in _inside(value) if not isinstance(value, Described) or inner is not None)
    return max(inside, 1) if isinstance(value, Described) else inside


def below(at: str, key: object) -> str:
    """Return the dotted path to what stands under a key."""
    text = key_text(key)
    return f"{at}.{text}" if at else text
