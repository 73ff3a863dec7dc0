"""Whether a checkpoint is whole, its bytes are right, and training can go on from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.checks.file_bytes import Outcome
from ckptctl.checks.intact import check_bytes
from ckptctl.checks.resumable import Verdict, resume_report
from ckptctl.checks.safety import safety
from ckptctl.checks.structure import look
from ckptctl.errors import UnsupportedError
from ckptctl.model import Aspect, Finding, Severity
from ckptctl.ops.verify.report import Judgement, Level, VerifyReport, judged
from ckptctl.ops.verify.write import write_digests
from ckptctl.storage import address, is_writable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from ckptctl.checks.file_bytes import BytesReport
    from ckptctl.checks.gather import Gathering
    from ckptctl.checks.resumable import ResumeReport
    from ckptctl.checks.structure import Looked
    from ckptctl.model import Checkpoint
    from ckptctl.storage.share import Share

__all__ = ["Judgement", "Level", "Outcome", "Verdict", "VerifyReport", "verify"]

_ORDER = tuple(Verdict)


def verify(
    path: str | os.PathLike[str],
    *,
    level: Level | None = None,
    names: tuple[str, ...] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> VerifyReport:
    """Look at the checkpoint at `path` as far as `level` says. Whatever is wrong with it is a finding, never an error.

    `names`, where given, are the only ones in the directory that count: the files of all ranks. `progress` is told
    of every number of bytes read.
    """
    where, asked = address(path), level or Level()
    if asked.write and not is_writable(where):
        raise UnsupportedError(f"{where}: no digests are written there", hint="verify --write before the upload")
    where = where.resolve() if asked.share and where.name in ("", "..") else where
    looked = look(where, names=names)
    shown = where / names[0] if names else where
    if looked.checkpoint is None:
        _tell(shown, asked.share, looked)
        return VerifyReport(path=shown, judgement=judged(looked.findings, seen=looked.seen), findings=looked.findings)
    report = _described(shown, looked)
    findings = list(looked.findings)
    if not asked.quick:
        found = _bytes(shown, None if names else where, looked.checkpoint, asked, progress)
        findings += [*found.findings, *safety(looked.checkpoint, allowed=asked.allowed)]
        report = replace(
            report, bytes=found.outcome, records=found.records, compared=found.compared,
            digests=dict(found.digests), read=found.nbytes, unverified=found.unverified,
        )  # fmt: skip
        if asked.strict:
            findings = _strictly(shown, findings, found.outcome)
    first = not asked.share or not asked.share.index
    if asked.values and first:
        from ckptctl.checks.finite import check_values  # noqa: PLC0415  # NumPy, only for those who ask
        from ckptctl.checks.halves import check_halves  # noqa: PLC0415  # and so does this

        findings += check_values(looked.checkpoint, progress)
        findings += check_halves(where, looked.checkpoint, progress)
    if asked.resume or asked.require:
        resume = resume_report(looked.checkpoint, whole=looked.whole)
        findings += _required(shown, resume, asked.require)
        report = replace(report, resume=resume)
    report = replace(report, findings=tuple(findings), judgement=judged(tuple(findings), seen=True))
    return write_digests(report, whole=names is None) if asked.write and report.good and first else report


def _bytes(
    path: Path, where: Path | None, checkpoint: Checkpoint, asked: Level, progress: Callable[[int], None]
) -> BytesReport:
    gathering = _gathering(path, asked.share) if asked.share else None
    return check_bytes(
        checkpoint,
        root=where,
        digest_all=asked.write,
        gathering=gathering,
        workers=asked.workers,
        progress=progress,
    )


def _tell(path: Path, share: Share | None, looked: Looked) -> None:
    """Tell the first worker of several that this one could not look."""
    if share:
        _gathering(path, share).fail(looked.findings[0].message)


def _gathering(path: Path, share: Share) -> Gathering:
    from ckptctl.checks.gather import Gathering  # noqa: PLC0415  # for one worker of several

    return Gathering.of(path, share)


def _described(path: Path, looked: Looked) -> VerifyReport:
    checkpoint: Checkpoint | None = looked.checkpoint
    if checkpoint is None:
        raise ValueError("nothing was opened")
    return VerifyReport(
        path=path,
        judgement=Judgement.GOOD,
        title=checkpoint.title,
        layout=checkpoint.layout,
        step=checkpoint.step,
        tensors=sum(len(part.tensors) for part in checkpoint.parts.values()),
        nbytes=sum(contents.range.length for contents in checkpoint.files),
    )


def _strictly(path: Path, findings: list[Finding], outcome: Outcome) -> list[Finding]:
    """Make an error of what is unverified, and of a digest on record that cannot be read."""
    found = [replace(one, severity=Severity.ERROR) if one.slug == "no-digest" else one for one in findings]
    if outcome is Outcome.UNVERIFIED:
        message = "nothing is on record to compare its bytes with (--write makes a digest)"
        found.append(
            Finding(aspect=Aspect.BYTES, severity=Severity.ERROR, slug="unverified", where=path.name, message=message)
        )
    return found


def _required(path: Path, resume: ResumeReport, wanted: Verdict | None) -> list[Finding]:
    """Say that a resume would be less than what is required."""
    if wanted is None or _ORDER.index(resume.verdict) <= _ORDER.index(wanted):
        return []
    message = f"a resume is {resume.verdict.value}, {wanted.value} is required: {resume.reason}"
    return [Finding(aspect=Aspect.RESUME, severity=Severity.ERROR, slug="resume", where=path.name, message=message)]
