"""Verify the checkpoints of a run, and find the newest one that is good."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.checks.beside import left_empty, missing_pointers, orphan_digests
from ckptctl.checks.completeness import EMPTY, glance
from ckptctl.errors import UsageError
from ckptctl.model import Aspect, Component, Finding, Severity
from ckptctl.model.endings import ENDINGS
from ckptctl.model.run import State
from ckptctl.ops.verify import Level, VerifyReport, verify
from ckptctl.ops.verify.report import Judgement, judged
from ckptctl.runs import find_runs, is_run, parts_of
from ckptctl.storage.set_aside import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ckptctl.model.run import CheckpointInfo, Run

_WEIGHTS = (*ENDINGS, ".index.json")
_SHARD = re.compile(r".+-[0-9]{3,6}-of-[0-9]{3,6}\.(?:safetensors|bin)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A checkpoint that is newer than the one that was found, and why it was passed over.

    `unseen` says that nobody could look at it: it may be good.
    """

    path: Path
    why: str
    unseen: bool = False


def verify_path(
    path: Path, level: Level, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Callable[[], VerifyReport]]:
    """Yield a call for each checkpoint at a path: one, or all of the runs in it and those beside them."""
    runs = find_runs(path) if is_run(path) else ()
    if not runs:
        yield lambda: verify(path, level=level, progress=progress)
    for run in runs:
        for info in run.checkpoints:
            if not _is_passed(run, info):
                yield from (call for _, call in _calls(info, level, progress))
        beside = _of_run(run)
        if beside.findings or not run.checkpoints:
            yield lambda beside=beside: beside  # type: ignore[misc]
    for directory, names in {run.path: run.others for run in runs}.items():
        for name in _weights(directory, tuple(name for name in names if not name.startswith(PREFIX))):
            yield lambda where=directory / name: verify(where, level=level, progress=progress)  # type: ignore[misc]


def _weights(directory: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the checkpoints beside those of a run that hold a model: the best or the final weights."""
    indexed = any(name.endswith(".index.json") for name in names)
    for name in names:
        path = directory / name
        shard = indexed and _SHARD.fullmatch(name)
        if name.endswith(_WEIGHTS) and path.is_file() and not path.is_symlink() and not shard:
            seen = glance(path)
            if seen.recognised and (seen.checkpoint is None or Component.MODEL in seen.checkpoint.parts):
                yield name


def _is_passed(run: Run, info: CheckpointInfo) -> bool:
    """Whether it is an empty directory that training has long left behind: nobody would resume from it."""
    newer = run.checkpoints[run.checkpoints.index(info) + 1 :]
    empty = info.completeness.why == (EMPTY,) and info.path.is_dir()
    return empty and any(other.complete for other in newer)


def latest_good(path: Path, level: Level) -> tuple[Path | None, tuple[Skipped, ...]]:
    """Return the newest checkpoint of a run that is complete and of which no digest or checksum failed.

    With `level.quick`, complete is enough; what else the level asks for must be right too. Safety does not count.
    The second value is what was passed over.

    Raises
    ------
    UsageError
        There are several runs in the directory, or it is none.
    """
    if path.is_file():
        raise UsageError(f"{path}: a file, not a run", hint=f"ckptctl verify {path} says whether it is good")
    runs = [run for run in find_runs(path) if run.checkpoints]
    skipped: list[Skipped] = []
    for info in _newest_first(path, runs):
        for where, call in _calls(info, level, lambda _: None):
            report = call()
            wrong = [f for f in report.findings if f.severity is Severity.ERROR and f.aspect is not Aspect.SAFETY]
            if not wrong and report.judgement is not Judgement.UNSEEN:
                return where, tuple(skipped)
            said = [finding.message for finding in wrong or report.findings]
            unseen = report.judgement is Judgement.UNSEEN
            why = "; ".join(said[:2]) or "it could not be looked at"
            skipped.append(Skipped(path=where, why=why, unseen=unseen))
    return None, tuple(skipped)


def _newest_first(path: Path, runs: list[Run]) -> list[CheckpointInfo]:
    """Return the checkpoints of a run, the newest first; of several families in one directory, by their time."""
    if len({run.path for run in runs}) > 1:
        names = ", ".join(sorted({str(run.path) for run in runs})[:4])
        raise UsageError(f"{path}: it holds {len(runs)} runs, of which one must be named", hint=names)
    if len(runs) > 1:
        return sorted((i for run in runs for i in run.checkpoints), key=lambda info: info.saved_at, reverse=True)
    return list(reversed(runs[0].checkpoints)) if runs else []


def _calls(
    info: CheckpointInfo, level: Level, progress: Callable[[int], None]
) -> Iterator[tuple[Path, Callable[[], VerifyReport]]]:
    """Yield the path and a call for each name of a checkpoint; the files of all ranks are one."""
    parts = parts_of(info)
    for where, names in parts:
        path = where / names[0] if names else where
        if level.quick and not (level.values or level.resume or level.require):
            one = info if len(parts) == 1 else replace(info, path=path, completeness=glance(path).completeness)
            yield path, lambda one=one: _of_info(one)  # type: ignore[misc]
        else:
            yield (
                path,
                lambda where=where, names=names: _with_siblings(  # type: ignore[misc]
                    verify(where, level=level, names=names, progress=progress), info
                ),
            )


def _with_siblings(report: VerifyReport, info: CheckpointInfo) -> VerifyReport:
    """Add what only shows beside the other checkpoints of the run, such as a file that they all have."""
    if info.complete or not report.complete:
        return report
    findings = (*report.findings, *_not_whole(info))
    return replace(report, findings=findings, judgement=judged(findings, seen=True))


def _of_info(info: CheckpointInfo) -> VerifyReport:
    """A report from names, sizes and headers alone."""
    findings = () if info.complete else tuple(_not_whole(info))
    unseen = info.completeness.state is State.UNKNOWN
    return VerifyReport(
        path=info.path,
        judgement=judged(findings, seen=not unseen),
        step=info.step,
        nbytes=info.nbytes,
        findings=findings,
    )


def _not_whole(info: CheckpointInfo) -> Iterator[Finding]:
    for why in info.completeness.why or (info.completeness.state.value,):
        yield Finding(
            aspect=Aspect.STRUCTURE,
            severity=Severity.ERROR,
            slug=info.completeness.state.value,
            where=info.path.name,
            message=why,
        )


def _of_run(run: Run) -> VerifyReport:
    """A report on what a run has beside its checkpoints: pointers that lead nowhere, digests without a file."""
    dangling = [(pointer.name, pointer.target) for pointer in run.pointers if pointer.dangling]
    empty = [info.path.name for info in run.checkpoints if _is_passed(run, info)]
    findings = (*missing_pointers(dangling, run.path.name), *orphan_digests(run.path), *left_empty(empty))
    judgement = judged(findings, seen=bool(run.checkpoints))
    return VerifyReport(path=run.path, judgement=judgement, title=run.title, findings=findings)
