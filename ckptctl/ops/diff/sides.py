"""The two sides of a comparison: each a checkpoint that is whole, its tensors under the names that are compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.model import Component, Severity
from ckptctl.model.ties import recorded_ties, tied_keys
from ckptctl.ops.diff.report import Side
from ckptctl.rewrite.names import new_names, without_match
from ckptctl.rewrite.options import Options as Naming
from ckptctl.runs import open_one
from ckptctl.values import Numbers, Span, TensorRef, as_mapping, nested, text_items
from ckptctl.values.compare import attributes_of_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ckptctl.model import Checkpoint, Finding, Part, TensorInfo
    from ckptctl.ops.diff.options import Options

    Key = tuple[Component, str]


_TIES = frozenset({"torch-zip", "torch-legacy", "torch-script", "pickle"})
"""Formats in which two names can be the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A side: its tensors by component and name; its plain values by component, and what led to those.

    `attributes` are what hangs on tensors, by their names in the file; `aliases` names that only metadata knows;
    `doubts` say what was asked of the names and has no effect; `ties` are names that are the same bytes.
    """

    checkpoint: Checkpoint
    tensors: dict[Key, TensorInfo]
    aliases: Mapping[Key, TensorInfo]
    values: Mapping[Component, Mapping[str, object]]
    prefixes: Mapping[Component, str]
    attributes: Mapping[str, Mapping[str, object]]
    doubts: tuple[str, ...] = ()
    ties: tuple[tuple[Key, ...], ...] = ()

    @property
    def holds_ties(self) -> bool:
        """Whether its files could say that two names are the same bytes."""
        return any(one.format in _TIES for one in self.checkpoint.files)

    def side(self) -> Side:
        """Describe it for the report."""
        one = self.checkpoint
        return Side(
            path=one.path,
            title=one.title,
            layout=one.layout,
            step=one.step,
            tensors=len(self.tensors),
            components=Counter(component for component, _ in self.tensors),
            nbytes=sum(tensor.nbytes for tensor in self.tensors.values()),
        )


def open_side(path: Path, options: Options, *, first: bool) -> Opened:
    """Open a side; names of the `first` one are changed so that they are those of the other.

    Raises
    ------
    CorruptError
        It is not whole: what is missing could not be compared.
    CkptctlError
        It cannot be read; or two tensors would have one name.
    """
    checkpoint = open_one(path)
    every = (*checkpoint.findings, *(finding for one in checkpoint.files for finding in one.findings))
    wrong = [finding for finding in every if finding.severity is Severity.ERROR]
    if wrong:
        raise CorruptError(f"{path}: {_said(wrong, path)}", hint="ckptctl verify shows all that is wrong with it")
    lists = _lists(checkpoint)
    naming = Naming(strip_prefix=options.strip_prefix, rename=options.rename if first else ())
    tensors: dict[Key, TensorInfo] = {}
    aliases: dict[Key, TensorInfo] = {}
    values: dict[Component, Mapping[str, object]] = {}
    for component, part in checkpoint.parts.items():
        if options.only not in (None, component):
            continue
        there = _with_recorded_ties(checkpoint, part)
        for name, new in new_names(path, there, naming, prefix=part.prefix).items():
            if options.takes(new) and not (lists and _places(there[name]) <= lists):
                into = tensors if name in part.tensors else aliases
                into[component, new] = there[name]
        if not options.selects:
            values[component] = _below_prefix(part)
    prefixes = {
        component: part.prefix if values.get(component) is not part.values else ""
        for component, part in checkpoint.parts.items()
    }
    attributes = {name: one for root in _roots(checkpoint) for name, one in attributes_of_tensors(root).items()}
    return Opened(
        checkpoint=checkpoint, tensors=tensors, aliases=aliases, values=values, prefixes=prefixes,
        attributes=attributes, doubts=tuple(_doubts(checkpoint, naming)),
    )  # fmt: skip


def _roots(checkpoint: Checkpoint) -> list[object]:
    whole = checkpoint.values
    return [whole] if whole is not None else [one.values for one in checkpoint.files if one.values is not None]


def completed(one: Opened, other: Opened) -> tuple[Opened, Opened]:
    """Take names that only metadata knows for tensors where the other side has those, and find what is tied.

    A text may well look like such a name.
    """
    for here, there in ((one, other), (other, one)):
        for key, tensor in here.aliases.items():
            if key in there.tensors or key in there.aliases:
                here.tensors.setdefault(key, tensor)
    return (replace(one, ties=tied_keys(one.tensors.items())), replace(other, ties=tied_keys(other.tensors.items())))


def _doubts(checkpoint: Checkpoint, naming: Naming) -> Iterator[str]:
    """Yield what was asked of the names, and is of no effect."""
    names = [name for part in checkpoint.parts.values() for name in part.tensors]
    parts = checkpoint.parts.values()
    for prefix in naming.strip_prefix:
        if all(prefix in without_match(part.tensors, naming, prefix=part.prefix) for part in parts):
            yield f"--strip-prefix {prefix}: no name of {checkpoint.path} begins with it"
    for pattern, _ in naming.rename:
        if not any(pattern.search(name) for name in names):
            yield f"--map {pattern.pattern}: no name of {checkpoint.path} matches"


def _with_recorded_ties(checkpoint: Checkpoint, part: Part) -> dict[str, TensorInfo]:
    """Return the tensors of a component, those among them that are only recorded as another one that is stored."""
    found = dict(part.tensors)
    every = {name: tensor for one in checkpoint.parts.values() for name, tensor in one.tensors.items()}
    for key, value in part.values.items():
        if isinstance(value, TensorRef) and key not in every and value.name in every:
            found[key] = replace(every[value.name], name=key)
    for contents in checkpoint.files:
        for name, kept in recorded_ties(contents.metadata, every).items() if contents.metadata else ():
            if kept in part.tensors:
                found[name] = replace(part.tensors[kept], name=name)
    return found


def _lists(checkpoint: Checkpoint) -> frozenset[tuple[int, int]]:
    """Return where long lists and texts lie that are plain values, though a safetensors file holds them as tensors."""
    alone = [one.values for one in checkpoint.files if one.format == "safetensors" and one.values is not None]
    every = (value for root in (*alone, checkpoint.values) for value in nested(root, most=1 << 60))
    return frozenset((id(one.range.file), one.range.offset) for one in every if isinstance(one, (Numbers, Span)))


def _places(tensor: TensorInfo) -> frozenset[tuple[int, int]]:
    return frozenset((id(piece.range.file), piece.range.offset) for piece in tensor.pieces) or frozenset({(0, -1)})


def _said(wrong: list[Finding], path: Path) -> str:
    first = wrong[0]
    about = "" if first.where in first.message or first.where in str(path) else f"{first.where}: "
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{about}{first.message.removeprefix(f'{path}: ')}{more}"


def _below_prefix(part: Part) -> Mapping[str, object]:
    """Return the values of a component without the key that leads to them."""
    value = part.values.get(part.prefix) if part.prefix and part.values.keys() == {part.prefix} else None
    items = as_mapping(value)
    if items is not None and (isinstance(value, dict) or getattr(value, "type", "") == "collections.OrderedDict"):
        return dict(text_items(items))
    return part.values
