"""The module tree behind dotted tensor names, with runs of equal layers folded into one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
    __slots__ = ("children", "number", "tensor")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.tensor: TensorInfo | None = None
        self.number = -1


class _Builder:
    """Turns nodes into modules. Equal nodes get equal numbers first, so that a run of them is built once."""

    def __init__(self, tied: Mapping[str, str]) -> None:
        self._tied = tied
        self._numbers: dict[tuple[object, ...], int] = {}

    def module(self, node: _Node, name: str = "") -> Module:
        """Return the module that a node is, its children folded."""
        children = tuple(self._joined(run) for run in _runs(node))
        own = node.tensor
        first = self._tied.get(own.name, "") if own else ""
        counted = [own] if own and not first else []
        return Module(
            name=name,
            tensors=sum(c.tensors for c in children) + (own is not None),
            numel=sum(c.numel for c in children) + sum(t.numel for t in counted),
            nbytes=sum(c.nbytes for c in children) + sum(t.nbytes for t in counted),
            dtypes=_union(children, own),
            tied=({name: first} if first else {})
            | {f"{name}.{inner}": to for c in children for inner, to in c.tied.items()},
            children=children,
        )

    def number(self, node: _Node) -> int:
        """Give a node and all below it their numbers."""
        own = node.tensor
        tied = self._tied.get(own.name, "") if own else ""
        shape = (own.dtype.name, own.shape, own.layout, own.nbytes, own.whole, tied) if own else None
        key = (shape, *((child, self.number(inner)) for child, inner in node.children.items()))
        node.number = self._numbers.setdefault(key, len(self._numbers))
        return node.number

    def _joined(self, run: list[tuple[str, _Node]]) -> Module:
        name, node = run[0]
        first, count = self.module(node, name), len(run)
        if count == 1:
            return first
        totals = {field: getattr(first, field) * count for field in ("tensors", "numel", "nbytes")}
        return replace(first, last=run[-1][0], count=count, **totals)


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
    builder = _Builder(tied)
    builder.number(root)
    return builder.module(root).children


def _runs(node: _Node) -> Iterator[list[tuple[str, _Node]]]:
    """Yield the children, neighbours that are equal and whose names count up by one together."""
    run: list[tuple[str, _Node]] = []
    for name, child in node.children.items():
        if run and (child.number != run[-1][1].number or not _follows(run[-1][0], name)):
            yield run
            run = []
        run.append((name, child))
    if run:
        yield run


def _follows(name: str, following: str) -> bool:
    digits = name.isascii() and name.isdigit() and len(name) < 10
    return digits and following == str(int(name) + 1)


def _union(children: tuple[Module, ...], own: TensorInfo | None) -> tuple[str, ...]:
    names = {name: None for child in children for name in child.dtypes}
    if own:
        names[own.dtype.name] = None
    return tuple(names)
