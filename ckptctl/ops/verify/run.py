"""Verify the checkpoints of a run, and find the newest one that is good."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.checks.completeness import EMPTY
from ckptctl.checks.structure import left_empty, missing_pointers, orphan_digests
from ckptctl.errors import UsageError
from ckptctl.model import Aspect, Finding, Severity
from ckptctl.model.run import State
from ckptctl.ops.verify import Level, VerifyReport, verify
from ckptctl.ops.verify.report import judged
from ckptctl.runs import find_runs, is_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ckptctl.model.run import CheckpointInfo, Run

_RANKED = re.compile(r"(.*[-_.])rank[-_]?[0-9]{1,6}(\.(?:pt|pth|bin|ckpt))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A checkpoint that is newer than the one that was found, and why it was passed over."""

    path: Path
    why: str


def verify_path(
    path: Path, level: Level, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Callable[[], VerifyReport]]:
    """Yield a call for each checkpoint at a path: one, or all of the runs in it."""
    runs = find_runs(path) if is_run(path) else ()
    if not runs:
        yield lambda: verify(path, level=level, progress=progress)
    for run in runs:
        for info in run.checkpoints:
            if not _is_passed(run, info):
                yield from _calls(info, level, progress)
        beside = _of_run(run)
        if beside.findings or not run.checkpoints:
            yield lambda beside=beside: beside  # type: ignore[misc]


def _is_passed(run: Run, info: CheckpointInfo) -> bool:
    """Whether it is an empty name that training has long left behind: nobody would resume from it."""
    newer = run.checkpoints[run.checkpoints.index(info) + 1 :]
    return info.completeness.why == (EMPTY,) and any(other.complete for other in newer)


def latest_good(path: Path, level: Level) -> tuple[Path | None, tuple[Skipped, ...]]:
    """Return the newest checkpoint of a run that is complete and of which no digest or checksum failed.

    With `level.quick`, complete is enough. The second value is what was passed over.

    Raises
    ------
    UsageError
        There are several runs in the directory.
    """
    runs = [run for run in find_runs(path) if run.checkpoints]
    if len(runs) > 1:
        names = ", ".join(sorted({str(run.path) for run in runs})[:4])
        raise UsageError(f"{path}: it holds {len(runs)} runs, of which one must be named", hint=names)
    skipped: list[Skipped] = []
    for info in reversed(runs[0].checkpoints if runs else ()):
        reports = [call() for call in _calls(info, level, lambda _: None)]
        bad = [report for report in reports if not report.intact]
        if not bad:
            return info.path, tuple(skipped)
        wrong = [f for report in bad for f in report.findings if f.severity is Severity.ERROR]
        skipped.append(Skipped(path=info.path, why="; ".join(finding.message for finding in wrong[:2])))
    return None, tuple(skipped)


def _calls(info: CheckpointInfo, level: Level, progress: Callable[[int], None]) -> Iterator[Callable[[], VerifyReport]]:
    """Yield a call for each name of a checkpoint; the files of all ranks are one."""
    ranked = tuple(path.name for path in info.paths if _RANKED.fullmatch(path.name))
    if level.quick and not (level.values or level.resume or level.require):
        yield lambda: _of_info(info)
        return
    if len(ranked) > 1:
        directory = info.path.parent
        yield lambda: _with_siblings(verify(directory, level=level, names=ranked, progress=progress), info)
    for path in info.paths:
        if len(ranked) < 2 or path.name not in ranked:
            yield lambda path=path: _with_siblings(verify(path, level=level, progress=progress), info)  # type: ignore[misc]


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
