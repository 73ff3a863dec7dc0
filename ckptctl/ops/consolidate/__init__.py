"""From shards to one: recognise what it is, make sure that it is whole, and write exactly the tensors it holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError, about
from ckptctl.model import Component
from ckptctl.ops.consolidate.beside import Copied, copy_files, files_to_copy
from ckptctl.ops.consolidate.doubts import absent_names, check, doubts, ignored, ranks_of
from ckptctl.ops.consolidate.source import keeps_its_form, source_of, without_tensors
from ckptctl.rewrite.committed import telling
from ckptctl.rewrite.cuts import Cuts
from ckptctl.rewrite.joining import joined
from ckptctl.rewrite.options import Options
from ckptctl.rewrite.outputs import SAFETENSORS, TORCH_SUFFIXES, Outputs, lay_out
from ckptctl.rewrite.prepared import Prepared, prepare
from ckptctl.rewrite.report import RewriteReport, described
from ckptctl.rewrite.shares import checked, written_out
from ckptctl.runs import open_one
from ckptctl.storage import address

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ckptctl.model import Checkpoint

__all__ = ["ConsolidatePlan", "ConsolidateReport", "Cuts", "Options", "Wanted", "consolidate", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a sharded checkpoint is wanted.

    `only` is a component, None for all of them; `tag` one of several states in a directory of DeepSpeed; `narrow`
    takes the weights in 16 bits that DeepSpeed computed with, not those in fp32 that it trained; `cuts` say how
    tensors were cut where their files do not; `copy_files` takes configuration and tokenizer along.
    """

    only: Component | None = Component.MODEL
    tag: str = ""
    narrow: bool = False
    cuts: Cuts = field(default_factory=Cuts)
    copy_files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidateReport:
    """What was, or would be, written of a sharded checkpoint.

    `taken` is the dotted path that led to the component that was taken; `left_out` maps each other component to the
    bytes of its tensors; `copied` are files that were taken along.
    """

    path: Path
    title: str
    layout: str
    step: float | None
    ranks: int
    taken: str
    left_out: Mapping[str, int]
    copied: tuple[Path, ...]
    ignored: tuple[str, ...]
    output: RewriteReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidatePlan:
    """A consolidation, worked out and checked, not begun. `nbytes` are those of all files to be written."""

    checkpoint: Checkpoint
    prepared: Prepared
    outputs: Outputs
    options: Options
    wanted: Wanted
    nbytes: int
    copies: tuple[Copied, ...]

    def describe(self) -> ConsolidateReport:
        """Say what would be written."""
        return self._report(described(self.prepared, self.outputs, self.nbytes))

    def apply(self, progress: Callable[[int], None] = lambda _: None) -> ConsolidateReport:
        """Write it, and say what was written; `progress` is told of every number of bytes written.

        Raises
        ------
        CkptctlError
            It could not be done; nothing was changed. Or a file beside the shards could not be copied after it was.
        """
        outcome = written_out(self.outputs, self.prepared.source.files, self.options, progress)
        if not self.options.share or not self.options.share.index:
            copy_files(self.copies, force=self.options.force)
        return self._report(described(self.prepared, self.outputs, self.nbytes, outcome, checked=self.options.check))

    def _report(self, output: RewriteReport) -> ConsolidateReport:
        checkpoint, only = self.checkpoint, self.wanted.only
        parts = checkpoint.parts
        step = checkpoint.step
        return ConsolidateReport(
            path=checkpoint.path,
            title=checkpoint.title,
            layout=checkpoint.layout,
            step=step.value if step else None,
            ranks=ranks_of(checkpoint),
            taken=parts[only].prefix if only else "",
            left_out={
                component.value: sum(tensor.nbytes for tensor in part.tensors.values())
                for component, part in parts.items()
                if only and component is not only and part.tensors
            },
            copied=tuple(one.target for one in self.copies),
            ignored=ignored(checkpoint, (file.path for file in self.outputs.files)),
            output=output,
        )


def consolidate(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    wanted: Wanted | None = None,
    options: Options | None = None,
) -> ConsolidateReport:
    """Make one file of a sharded checkpoint, as ``ckptctl consolidate PATH -o OUT`` does.

    Raises
    ------
    CkptctlError
        It is not whole, was refused, or could not be read or written; the class says what.
    """
    return plan(
        address(path), address(out) if out is not None else None, wanted or Wanted(), options or Options()
    ).apply()


def plan(path: Path, out: Path | None, wanted: Wanted, options: Options) -> ConsolidatePlan:
    """Work out what to write, and make sure that every element of it is there exactly once.

    Raises
    ------
    CkptctlError
        It is not whole, not sharded, or must not be written.
    """
    target = _target(path, out)
    with telling(target, options.share):
        return _planned(path, target, wanted, options)


def _planned(path: Path, target: Path, wanted: Wanted, options: Options) -> ConsolidatePlan:
    checkpoint = open_one(path, tag=wanted.tag, narrow=wanted.narrow)
    check(path, checkpoint, tagged=bool(wanted.tag), narrow=wanted.narrow)
    part = checkpoint.parts.get(wanted.only) if wanted.only else None
    if wanted.only and part is None:
        there = ", ".join(component.value for component in checkpoint.parts) or "nothing"
        raise UsageError(f"{path}: it has no {wanted.only.value}", hint=f"it has {there}")
    chosen = {component: one for component, one in checkpoint.parts.items() if wanted.only in (None, component)}
    absent = absent_names(checkpoint)
    parts = {
        component: replace(
            one,
            tensors=joined(path, one.tensors, wanted.cuts, prefix=one.prefix, absent=absent, compare=options.check),
            values=one.values if wanted.only is None and keeps_its_form(one) else without_tensors(one.values),
        )
        for component, one in chosen.items()
    }
    source = source_of(checkpoint, parts, everything=wanted.only is None)
    inner = replace(options, only=wanted.only)
    with about(path):
        prepared = prepare(source, inner, safetensors=target.suffix == SAFETENSORS)
        prepared = replace(prepared, warnings=(*prepared.warnings, *doubts(checkpoint, chosen, parts, wanted.cuts)))
        outputs = lay_out(prepared, target, inner, shards={})
    nbytes = checked(outputs, source.files, options)
    copies = files_to_copy(checkpoint, target.parent, force=options.force) if wanted.copy_files else ()
    return ConsolidatePlan(
        checkpoint=checkpoint,
        prepared=prepared,
        outputs=outputs,
        options=inner,
        wanted=wanted,
        nbytes=nbytes,
        copies=copies,
    )


def _target(path: Path, out: Path | None) -> Path:
    """Return the file to write: by default one beside the directory that has its name."""
    whole = path.resolve() if path.name in ("", "..") else path
    name = f"{whole.name.removesuffix('.index.json').removesuffix(SAFETENSORS)}{SAFETENSORS}"
    if out is None:
        return whole.parent / name if path.is_dir() else whole.with_name(name)
    if out.is_dir() or not out.suffix:
        return out / name
    if out.suffix not in (SAFETENSORS, *TORCH_SUFFIXES):
        known = " ".join((SAFETENSORS, *TORCH_SUFFIXES))
        raise UsageError(f"{out}: its suffix does not say in which format to write", hint=f"one of {known}")
    return out
