"""Look inside a checkpoint: what is in it, how big, at which step, what a resume would lack, is it safe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl import checks
from ckptctl.checks.marks import unfinished_marks
from ckptctl.formats import format_named
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Checkpoint, Component, Finding, GlobalUse, Module, Part, Region, module_tree
from ckptctl.model.ties import tied_groups
from ckptctl.ops.inspect.report import ComponentRow, InspectReport, Selection, TensorRow
from ckptctl.ops.inspect.rows import component_row, sort_rows, tensor_rows

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

from ckptctl.storage import address, meanwhile
from ckptctl.values import State

__all__ = ["ComponentRow", "InspectReport", "Selection", "TensorRow", "inspect"]


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
    chosen, where = selection or Selection(), address(path)
    where.is_dir()  # a store is asked what lies there, once
    marks = meanwhile(where, lambda: tuple(unfinished_marks(where)))
    checkpoint = open_checkpoint(where)
    parts = _selected(checkpoint, chosen)
    tied = tied_groups(t for part in parts.values() for t in part.tensors.values())
    marked = marks() if checkpoint.path == where else tuple(unfinished_marks(checkpoint.path))
    report = _summary(checkpoint, parts, tied, marked, all_of_it=chosen.all)
    return replace(
        report,
        tensor_list=sort_rows(tensor_rows(parts, _first_of(tied)), sort) if tensors else None,
        values=_values(parts) if values else None,
        regions=_regions(checkpoint) if header else None,
    )


def _summary(
    checkpoint: Checkpoint,
    parts: Mapping[Component, Part],
    tied: tuple[tuple[str, ...], ...],
    marked: tuple[Finding, ...],
    *,
    all_of_it: bool,
) -> InspectReport:
    first_of, trunk = _first_of(tied), _trunk(parts)
    rows = tuple(component_row(part, first_of) for part in parts.values())
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
        findings=(
            *marked,
            *checkpoint.findings,
            *(finding for contents in checkpoint.files for finding in contents.findings),
        ),
        globals=_globals(checkpoint),
        tied=tied,
        metadata={key: text for contents in checkpoint.files for key, text in contents.metadata.items()},
        modules=_modules(trunk, first_of) if trunk else (),
        module_component=trunk.component if trunk else None,
        selected=None if all_of_it else sum(row.tensors for row in rows),
    )


def _first_of(tied: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """Map every tied name but the first of its group to that first one."""
    return {name: group[0] for group in tied for name in group[1:]}


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


def _parameters(model: Part | None) -> int:
    """Count the elements of a model, tied tensors once."""
    tensors = model.tensors if model else {}
    again = {name for group in tied_groups(tensors.values()) for name in group[1:]}
    return sum(tensor.numel for name, tensor in tensors.items() if name not in again)


def _globals(checkpoint: Checkpoint) -> tuple[GlobalUse, ...]:
    """Return the globals of all files, each once, the least trusted first."""
    order = ("dangerous", "foreign", "inert", "known")
    every: dict[tuple[str, str], GlobalUse] = {}
    for use in (use for contents in checkpoint.files for use in contents.globals):
        known = every.setdefault((use.module, use.name), use)
        if known is not use:
            every[use.module, use.name] = replace(
                min(known, use, key=lambda one: order.index(one.level.value)),
                calls=known.calls + use.calls,
                count=known.count + use.count,
                opcodes=tuple(dict.fromkeys((*known.opcodes, *use.opcodes))),
            )
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


def _values(parts: Mapping[Component, Part]) -> State:
    return State({key: value for part in parts.values() for key, value in part.values.items()})


def _regions(checkpoint: Checkpoint) -> tuple[Region, ...]:
    return tuple(
        region
        for contents in checkpoint.files
        if (found := format_named(contents.format))
        for region in found.account(contents)
    )
