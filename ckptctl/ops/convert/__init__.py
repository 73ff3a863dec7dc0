"""Convert checkpoints to safetensors and back: nothing lost, nothing run, nothing half-written."""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, UsageError, about
from ckptctl.ops.convert.sources import find_sources
from ckptctl.ops.convert.targets import shard_names, target_of
from ckptctl.rewrite.committed import tell, telling
from ckptctl.rewrite.options import Options
from ckptctl.rewrite.outputs import SAFETENSORS, Outputs, lay_out
from ckptctl.rewrite.prepared import Prepared, prepare
from ckptctl.rewrite.report import RewriteReport, described
from ckptctl.rewrite.shares import checked, written_out
from ckptctl.storage import address

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from ckptctl.rewrite.source import Source

__all__ = ["ConvertPlan", "Options", "RewriteReport", "convert", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertPlan:
    """One conversion, worked out and checked, not begun. `nbytes` are those of all files to be written."""

    prepared: Prepared
    outputs: Outputs
    options: Options
    nbytes: int

    def describe(self) -> RewriteReport:
        """Say what would be written."""
        return described(self.prepared, self.outputs, self.nbytes)

    def apply(self, progress: Callable[[int], None] = lambda _: None) -> RewriteReport:
        """Write it, and say what was written; `progress` is told of every number of bytes written.

        Raises
        ------
        CkptctlError
            It could not be done; nothing was changed.
        """
        outcome = written_out(self.outputs, self.prepared.source.files, self.options, progress)
        return described(self.prepared, self.outputs, self.nbytes, outcome, checked=self.options.check)


def convert(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, options: Options | None = None
) -> tuple[RewriteReport, ...]:
    """Convert a file or directory, as ``ckptctl convert PATH -o OUT`` does.

    Returns one report for each file, or set of shards, that was written.

    Raises
    ------
    CkptctlError
        Something was refused or could not be read or written; the class says what.
    """
    made, errors = plan([address(path)], address(out) if out is not None else None, options or Options())
    if errors:
        raise errors[0]
    return tuple(one.apply() for one in made)


def plan(
    paths: Iterable[Path], out: Path | None, options: Options, *, everything: bool = False
) -> tuple[list[ConvertPlan], list[CkptctlError]]:
    """Work out what to write for each path; `everything` takes all members of a directory.

    Returns the plans, and the errors of those paths that cannot be converted.

    Raises
    ------
    UsageError
        Two sources would be written to one file.
    """
    found: list[tuple[Source, Options]] = []
    errors: list[CkptctlError] = []
    for path in _expanded(paths):
        # The members of a directory are chosen by file; what is in a file, by component.
        inner = replace(options, only=None) if path.is_dir() else options
        try:
            sources = find_sources(path, only=options.only, everything=everything, safetensors=out is not None)
            found += [(source, inner) for source in sources]
        except CkptctlError as error:
            errors.append(error)
            if out is not None and out.suffix:
                tell(out, options.share, error)
    plans: list[ConvertPlan] = []
    several = len(found) > 1
    if several and out is not None and (out.suffix or out.exists()) and not out.is_dir():
        raise UsageError(f"{out}: {len(found)} sources cannot be written to one file", hint="give a directory with -o")
    share = options.share
    if several and options.resume:
        raise UsageError("--continue takes up one conversion", hint="those that are finished are left alone without it")
    if several:
        _check_targets(found, out)
    for number, (source, inner) in enumerate(found):
        if share and several and number % share.count != share.index:
            continue  # of many sources each worker takes some, whole
        chosen = replace(inner, share=None) if several else inner
        try:
            plans.append(_planned(source, out, chosen, several=several))
        except CkptctlError as error:  # one that cannot be done does not stop the rest
            errors.append(error)
    _check_apart(plans)
    return plans, errors


def _planned(source: Source, out: Path | None, options: Options, *, several: bool) -> ConvertPlan:
    target = target_of(source, out, options, several=several)
    given = out is not None and target == out
    with telling(target, options.share):
        with about(source.path):
            prepared = prepare(source, options, safetensors=target.suffix == SAFETENSORS)
            outputs = lay_out(prepared, target, options, shards={} if given else shard_names(source))
        nbytes = checked(outputs, source.files, options)
    return ConvertPlan(prepared=prepared, outputs=outputs, options=options, nbytes=nbytes)


def _check_targets(found: list[tuple[Source, Options]], out: Path | None) -> None:
    """Refuse two sources with one target, whichever worker they are of."""
    taken: dict[Path, Source] = {}
    for source, options in found:
        target = target_of(source, out, options, several=True)
        other = taken.setdefault(target, source)
        if other is not source:
            raise UsageError(
                f"{target}: {other.path} and {source.path} would both be written to it",
                hint="convert them one by one, each with -o",
            )


def _check_apart(plans: list[ConvertPlan]) -> None:
    """Refuse two sources with one target, before anything is written."""
    taken: dict[Path, ConvertPlan] = {}
    read = {contents.range.file.path.resolve(): one for one in plans for contents in one.prepared.source.files}
    for one in plans:
        index = [one.outputs.index] if one.outputs.index else []
        for path in (*(file.path for file in one.outputs.files), *index):
            whole = path.parent.resolve() / path.name
            reader = read.get(whole, one)
            if reader is not one:
                raise UsageError(
                    f"{path}: it would be written from {one.prepared.source.path}, and is to be converted itself",
                    hint="convert them one by one, or give a directory with -o",
                )
            other = taken.setdefault(whole, one)
            if other is not one:
                raise UsageError(
                    f"{path}: {other.prepared.source.path} and {one.prepared.source.path} would both be written to it",
                    hint="convert them one by one, each with -o",
                )


def _expanded(paths: Iterable[Path]) -> Iterable[Path]:
    """Expand patterns that the shell has left alone."""
    for path in paths:
        names = sorted(glob.glob(str(path))) if glob.has_magic(str(path)) and not path.exists() else []  # noqa: PTH207  # a pattern may be absolute
        yield from map(Path, names) if names else (path,)
