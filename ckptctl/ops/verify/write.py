"""Write digests of what is good and has none: a sidecar for a file, ``SHA256SUMS`` for a directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.checks.digest_lines import is_readable
from ckptctl.checks.digests import SUMS, recorded_for, sums_of
from ckptctl.model import Aspect, Finding, Severity
from ckptctl.ops.verify.report import Judgement
from ckptctl.storage import is_there, open_file
from ckptctl.storage.atomic import flush_directory, write_small
from ckptctl.storage.digest import sha256_of, sidecar_line, sidecar_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptctl.ops.verify.report import VerifyReport


def write_digests(report: VerifyReport, *, whole: bool) -> VerifyReport:
    """Write what is missing, never over a digest that disagrees; return the report with what was written.

    `whole` says that a directory is one checkpoint, not one that holds the files of ranks among others.
    """
    if report.path.is_dir() and whole:
        return _sums(report, report.path)
    wrote = []
    for path, digest in report.digests.items():
        names = [entry.name for entry in path.parent.iterdir()]
        if not recorded_for(path, names, sums_of(path.parent, names)):
            write_small(sidecar_of(path), sidecar_line(digest, path.name), create=True)
            flush_directory(path.parent)
            wrote.append(sidecar_of(path))
    return replace(report, wrote=tuple(wrote))


def _sums(report: VerifyReport, directory: Path) -> VerifyReport:
    known = sums_of(directory, [entry.name for entry in directory.iterdir()])
    found = {path.relative_to(directory).as_posix(): path for path in _files(directory)}
    digests = {name: report.digests.get(path) or sha256_of(open_file(path)) for name, path in found.items()}
    wrong = [name for name, digest in digests.items() if known.get(name, digest) != digest]
    if wrong:
        return _refused(report, "digest-mismatch", wrong[0], f"{SUMS} says another digest of {wrong[0]}")
    wrong = [name for name, path in found.items() if _beside(path) not in ("", digests[name])]
    if wrong:
        return _refused(report, "digest-mismatch", wrong[0], f"{wrong[0]}.sha256 says another digest of it")
    if is_there(directory / SUMS) and not is_readable(directory / SUMS):
        return _refused(report, "no-digest", SUMS, f"there are lines in {SUMS} that are no digests")
    if digests.keys() <= known.keys():
        return report
    lines = b"".join(sidecar_line(digest, name) for name, digest in sorted({**known, **digests}.items()))
    write_small(directory / SUMS, lines)
    flush_directory(directory)
    return replace(report, wrote=(directory / SUMS,))


def _beside(path: Path) -> str:
    """Return the digest that a sidecar has of a file; empty if there is none."""
    names = [entry.name for entry in path.parent.iterdir()]
    return next((one.digest for one in recorded_for(path, names, {}) if one.digest and not one.shared), "")


def _files(directory: Path) -> Iterator[Path]:
    """Yield the files of a checkpoint that a list of digests is about: no digests, nothing hidden but metadata."""
    for path in sorted(directory.rglob("*")):
        hidden = path.name.startswith(".") and path.name != ".metadata"
        if path.is_file() and not hidden and path.name != SUMS and path.suffix != ".sha256":
            yield path


def _refused(report: VerifyReport, slug: str, where: str, why: str) -> VerifyReport:
    """Say why digests were asked for and not written."""
    finding = Finding(
        aspect=Aspect.BYTES, severity=Severity.ERROR, slug=slug, where=where, message=f"{why}; nothing was written"
    )  # fmt: skip
    return replace(report, findings=(*report.findings, finding), judgement=Judgement.WRONG)
