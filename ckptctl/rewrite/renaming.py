"""New names for tensors in the tree of plain values: the keys under which they stand change with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError
from ckptctl.rewrite.trees import below
from ckptctl.values import Described, TensorRef

if TYPE_CHECKING:
    from collections.abc import Mapping


def renamed(values: object, names: Mapping[str, str], *, prefix: str) -> object:
    """Return a tree whose tensors have new names, keys included; `prefix` is the path to its root in the source.

    Raises
    ------
    UsageError
        A tensor would leave its place among the plain values.
    """
    return _Renaming(names, prefix).of(values, prefix)


class _Renaming:
    def __init__(self, names: Mapping[str, str], prefix: str) -> None:
        self._names, self._prefix = names, prefix
        self._done: dict[int, tuple[object, object]] = {}

    def of(self, value: object, at: str) -> object:
        if isinstance(value, TensorRef):
            return replace(value, name=self._names[value.name], state=self.of(value.state, at))
        if not isinstance(value, (dict, list, tuple, Described)):
            return value
        known = self._done.get(id(value))
        if known is None:
            known = self._done[id(value)] = (value, self._made(value, at))
        return known[1]

    def _made(self, value: object, at: str) -> object:
        match value:
            case dict():
                return {self._key(key, inner, at): self.of(inner, below(at, key)) for key, inner in value.items()}
            case list():
                return [self._fixed(inner, below(at, index)) for index, inner in enumerate(value)]
            case tuple():
                return tuple(self._fixed(inner, below(at, index)) for index, inner in enumerate(value))
            case Described(args=args, state=state, items=items):
                made = tuple(self._fixed(inner, below(at, f"({index})")) for index, inner in enumerate(args))
                return replace(value, args=made, state=self.of(state, at), items=self.of(items, at))
        return value

    def _cut(self, path: str) -> str:
        return path.removeprefix(self._prefix).removeprefix(".") if self._prefix else path

    def _key(self, key: object, value: object, at: str) -> object:
        """The key of a tensor whose last part has a new name."""
        if not isinstance(value, TensorRef) or self._names[value.name] == self._cut(value.name):
            return key
        new, above = self._names[value.name], self._cut(at)
        if isinstance(key, str) and value.name == below(at, key) and (not above or new.startswith(f"{above}.")):
            return new.removeprefix(f"{above}.") if above else new
        raise self._out_of_place(value)

    def _fixed(self, value: object, at: str) -> object:
        """Something in a list, which has a place and no name."""
        if isinstance(value, TensorRef) and self._names[value.name] != self._cut(value.name):
            raise self._out_of_place(value)
        return self.of(value, at)

    def _out_of_place(self, ref: TensorRef) -> UsageError:
        return UsageError(
            f"{ref.name} cannot be called {self._names[ref.name]}: it would leave its place among the plain values",
            hint="--only model renames the weights alone",
        )
