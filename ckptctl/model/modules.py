"""The module tree behind dotted tensor names, with runs of equal layers folded into one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ckptctl.model.tensors import TensorInfo

# Deeper than any real model; what is left of a longer name stays one piece.
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module, or a run of `count` equal ones named `name` to `last`.

    `tensors`, `numel` and `nbytes` are totals over the run. A tensor that shares its bytes with an
    earlier name counts there; `tied` maps its name, from here on down, to that earlier name.
    """

    name: str
    last: str = ""
    count: int = 1
    tensors: int = 0
    numel: int = 0
    nbytes: int = 0
    dtypes: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Module, ...] = ()


class _Node:
    __slots__ = ("children", "tensor")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.tensor: TensorInfo | None = None


class _Builder:
    """Turns nodes into modules; equal shapes get equal numbers, so that comparing them is cheap."""

    def __init__(self, tied: Mapping[str, str]) -> None:
        self._tied = tied
        self._numbers: dict[tuple[object, ...], int] = {}

    def module(self, name: str, node: _Node) -> tuple[Module, int]:
        """Return the module and the number that all modules equal to it share."""
        built = [(child, *self.module(child, inner)) for child, inner in node.children.items()]
        children = tuple(_folded(built))
        own = node.tensor
        first = self._tied.get(own.name, "") if own else ""
        counted = [own] if own and not first else []
        module = Module(
            name=name,
            tensors=sum(c.tensors for c in children) + (own is not None),
            numel=sum(c.numel for c in children) + sum(t.numel for t in counted),
            nbytes=sum(c.nbytes for c in children) + sum(t.nbytes for t in counted),
            dtypes=_union(children, own),
            tied=({name: first} if first else {})
            | {f"{name}.{inner}": to for c in children for inner, to in c.tied.items()},
            children=children,
        )
        shape = (own.dtype.name, own.shape, own.layout, first) if own else None
        key = (shape, *((child, number) for child, _, number in built))
        return module, self._numbers.setdefault(key, len(self._numbers))


def module_tree(tensors: Iterable[TensorInfo], *, tied: Mapping[str, str]) -> tuple[Module, ...]:
    """Build the tree of `tensors`, in the order in which their names first occur.

    `tied` maps each name whose bytes already belong to an earlier name to that name.
    """
    root = _Node()
    for tensor in tensors:
        node = root
        for part in tensor.name.split(".", _MAX_DEPTH):
            node = node.children.setdefault(part, _Node())
        node.tensor = tensor
    return _Builder(tied).module("", root)[0].children


def _folded(built: list[tuple[str, Module, int]]) -> Iterator[Module]:
    """Join neighbours that are equal and whose names count up by one."""
    run: list[Module] = []
    for index, (name, module, number) in enumerate(built):
        if run and number == built[index - 1][2] and _follows(run[-1].name, name):
            run.append(module)
            continue
        if run:
            yield _joined(run)
        run = [module]
    if run:
        yield _joined(run)


def _follows(name: str, following: str) -> bool:
    digits = name.isascii() and name.isdigit() and len(name) < 10
    return digits and following == str(int(name) + 1)


def _joined(run: list[Module]) -> Module:
    first = run[0]
    if len(run) == 1:
        return first
    return Module(
        name=first.name,
        last=run[-1].name,
        count=len(run),
        tensors=sum(m.tensors for m in run),
        numel=sum(m.numel for m in run),
        nbytes=sum(m.nbytes for m in run),
        dtypes=first.dtypes,
        tied=first.tied,
        children=first.children,
    )


def _union(children: tuple[Module, ...], own: TensorInfo | None) -> tuple[str, ...]:
    names = {name: None for child in children for name in child.dtypes}
    if own:
        names[own.dtype.name] = None
    return tuple(names)
