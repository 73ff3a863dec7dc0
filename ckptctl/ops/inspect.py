"""Look inside a checkpoint: what is in it, how big, at which step, what a resume would lack, is it safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ckptctl import checks
from ckptctl.formats import format_named
from ckptctl.layouts import open_checkpoint
from ckptctl.model import (
    Checkpoint,
    Component,
    Finding,
    Found,
    GlobalUse,
    Module,
    Part,
    Region,
    TensorInfo,
    module_tree,
)
from ckptctl.storage import LocalFile

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which tensors to show: names that match an `include` glob and no `exclude` glob, of `only` one component."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    only: Component | None = None

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return not (self.include or self.exclude or self.only)

    def takes(self, name: str) -> bool:
        """Whether the globs take a name."""
        taken = not self.include or any(fnmatchcase(name, glob) for glob in self.include)
        return taken and not any(fnmatchcase(name, glob) for glob in self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRow:
    """One component: how many tensors and elements, how many bytes, which dtypes, and what kind it is.

    Tied tensors count once. `slots` are what an optimizer keeps; `about` is the kind in a few words.
    """

    component: Component
    prefix: str
    tensors: int
    parameters: int
    nbytes: int
    dtypes: tuple[str, ...]
    values: int
    about: str = ""
    slots: tuple[checks.Slot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One tensor: its type and shape, its bytes, and where they lie (offset in bytes, None if in several places)."""

    name: str
    component: Component
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int | None
    layout: str
    shard: tuple[int, ...] | None = None
    tied: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectReport:
    """All that `inspect` found. `nbytes` is the size on disk; `parameters` counts the model's elements."""

    path: Path
    layout: str
    title: str
    formats: tuple[str, ...]
    nbytes: int
    files: int
    tensors: int
    parameters: int
    step: Found | None
    epoch: Found | None
    metrics: tuple[Found, ...]
    components: tuple[ComponentRow, ...]
    missing: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    globals: tuple[GlobalUse, ...]
    tied: tuple[tuple[str, ...], ...]
    metadata: Mapping[str, str]
    modules: tuple[Module, ...]
    module_component: Component | None
    selected: int | None = None
    tensor_list: tuple[TensorRow, ...] | None = None
    values: Mapping[str, object] | None = field(default=None)
    regions: tuple[Region, ...] | None = None


def inspect(  # noqa: PLR0913  # what to show is chosen part by part
    path: str | os.PathLike[str],
    *,
    selection: Selection | None = None,
    tensors: bool = False,
    values: bool = False,
    header: bool = False,
    sort: str = "file",
) -> InspectReport:
    """Describe the checkpoint at `path` without loading a tensor or running anything in it.

    Parameters
    ----------
    selection
        Which tensors to count and list; all by default.
    tensors, values, header
        Also list every tensor; the plain values; what every byte of the file is for.
    sort
        Order of the list of tensors: ``file`` (as stored), ``name``, ``size`` or ``offset``.

    Raises
    ------
    CkptctlError
        It cannot be read; the class says why.
    """
    checkpoint, chosen = open_checkpoint(path), selection or Selection()
    parts = _selected(checkpoint, chosen)
    tied = _tied_groups(t for part in parts.values() for t in part.tensors.values())
    first_of = {name: group[0] for group in tied for name in group[1:]}
    rows = tuple(_row(part, first_of) for part in parts.values())
    trunk = _trunk(parts)
    return InspectReport(
        path=checkpoint.path,
        layout=checkpoint.layout,
        title=checkpoint.title,
        formats=tuple(dict.fromkeys(contents.format for contents in checkpoint.files)),
        nbytes=sum(contents.range.length for contents in checkpoint.files),
        files=len(checkpoint.files),
        tensors=sum(len(part.tensors) for part in checkpoint.parts.values()),
        parameters=_parameters(checkpoint.parts.get(Component.MODEL)),
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        metrics=checkpoint.metrics,
        components=rows,
        missing=checks.resume_gaps(checkpoint),
        findings=(*checkpoint.findings, *(finding for contents in checkpoint.files for finding in contents.findings)),
        globals=_globals(checkpoint),
        tied=tied,
        metadata={key: text for contents in checkpoint.files for key, text in contents.metadata.items()},
        modules=_modules(trunk, first_of) if trunk else (),
        module_component=trunk.component if trunk else None,
        selected=None if chosen.all else sum(row.tensors for row in rows),
        tensor_list=_sorted(_tensor_rows(parts, first_of), sort) if tensors else None,
        values=_values(parts) if values else None,
        regions=_regions(checkpoint) if header else None,
    )


def _selected(checkpoint: Checkpoint, selection: Selection) -> dict[Component, Part]:
    if selection.all:
        return dict(checkpoint.parts)
    return {
        component: Part(
            component=component,
            prefix=part.prefix,
            tensors={name: tensor for name, tensor in part.tensors.items() if selection.takes(name)},
            values=part.values,
        )
        for component, part in checkpoint.parts.items()
        if selection.only in (None, component)
    }


def _tied_groups(tensors: Iterable[TensorInfo]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that are the same bytes read in the same way."""
    by_place: dict[tuple[int, int], list[TensorInfo]] = {}
    for tensor in tensors:
        if tensor.pieces and tensor.nbytes:
            place = tensor.pieces[0].range
            by_place.setdefault((id(place.file), place.offset), []).append(tensor)
    groups: list[tuple[str, ...]] = []
    for near in by_place.values():
        if len(near) > 1:
            same: dict[object, list[str]] = {}
            for tensor in near:
                same.setdefault(tensor.identity, []).append(tensor.name)
            groups += [tuple(names) for names in same.values() if len(names) > 1]
    return tuple(groups)


def _parameters(model: Part | None) -> int:
    """Count the elements of a model, tied tensors once."""
    tensors = model.tensors if model else {}
    again = {name for group in _tied_groups(tensors.values()) for name in group[1:]}
    return sum(tensor.numel for name, tensor in tensors.items() if name not in again)


def _row(part: Part, first_of: Mapping[str, str]) -> ComponentRow:
    counted = [tensor for name, tensor in part.tensors.items() if name not in first_of]
    about = ""
    slots: tuple[checks.Slot, ...] = ()
    match part.component:
        case Component.OPTIMIZER:
            about, slots = checks.optimizer_kind(part), checks.optimizer_slots(part)
        case Component.SCHEDULER:
            about = checks.scheduler_summary(part)
        case Component.RNG:
            about = ", ".join(checks.rng_kinds(part))
        case Component.TRAINER | Component.DATA | Component.OTHER:
            about = ", ".join(part.values)
    return ComponentRow(
        component=part.component,
        prefix=part.prefix,
        tensors=len(part.tensors),
        parameters=sum(tensor.numel for tensor in counted),
        nbytes=sum(tensor.nbytes for tensor in counted),
        dtypes=tuple(dict.fromkeys(tensor.dtype.name for tensor in part.tensors.values())),
        values=len(part.values),
        about=about,
        slots=slots,
    )


def _globals(checkpoint: Checkpoint) -> tuple[GlobalUse, ...]:
    """Return the globals of all files, each once, the least trusted first."""
    every = {str(use): use for contents in checkpoint.files for use in contents.globals}
    order = ("dangerous", "foreign", "inert", "known")
    return tuple(sorted(every.values(), key=lambda use: (order.index(use.level.value), str(use))))


def _trunk(parts: Mapping[Component, Part]) -> Part | None:
    """Return the component whose modules are shown: the model, or else the first that has tensors."""
    ordered = sorted(parts.values(), key=lambda part: part.component is not Component.MODEL)
    return next((part for part in ordered if part.tensors), None)


def _modules(part: Part, first_of: Mapping[str, str]) -> tuple[Module, ...]:
    modules = module_tree(part.tensors.values(), tied=first_of)
    for step in part.prefix.split(".") if part.prefix else ():
        if len(modules) != 1 or modules[0].name != step or not modules[0].children:
            break
        modules = modules[0].children
    return modules


def _tensor_rows(parts: Mapping[Component, Part], first_of: Mapping[str, str]) -> list[TensorRow]:
    return [
        TensorRow(
            name=tensor.name,
            component=part.component,
            dtype=tensor.dtype.name,
            shape=tensor.shape,
            nbytes=tensor.nbytes,
            file=tensor.pieces[0].range.file.path.name if tensor.pieces else "",
            offset=_offset(tensor),
            layout=tensor.layout,
            shard=None if tensor.whole or len(tensor.pieces) != 1 else tensor.pieces[0].shape,
            tied=first_of.get(tensor.name, ""),
        )
        for part in parts.values()
        for tensor in part.tensors.values()
    ]


def _offset(tensor: TensorInfo) -> int | None:
    """Where the bytes of a tensor begin, if they lie in one piece of a file on disk."""
    place = tensor.pieces[0].range if len(tensor.pieces) == 1 else None
    return place.offset if place and isinstance(place.file, LocalFile) else None


def _sorted(rows: list[TensorRow], sort: str) -> tuple[TensorRow, ...]:
    keys: dict[str, Callable[[TensorRow], tuple[object, ...]]] = {
        "name": lambda row: (row.name,),
        "size": lambda row: (-row.nbytes, row.name),
        "offset": lambda row: (row.file, row.offset if row.offset is not None else -1),
    }
    return tuple(sorted(rows, key=keys[sort])) if sort in keys else tuple(rows)


def _values(parts: Mapping[Component, Part]) -> Mapping[str, object]:
    return {key: value for part in parts.values() for key, value in part.values.items()}


def _regions(checkpoint: Checkpoint) -> tuple[Region, ...]:
    return tuple(region for contents in checkpoint.files for region in format_named(contents.format).account(contents))
