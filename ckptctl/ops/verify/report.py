"""What `verify` is asked, and what it answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.checks.file_bytes import Outcome
from ckptctl.checks.structure import is_wrong
from ckptctl.errors import MissingExtraError, UnreadableError
from ckptctl.model import Severity

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.checks.resumable import ResumeReport, Verdict
    from ckptctl.model import Finding, Found
    from ckptctl.storage.share import Share


_UNSEEN = frozenset({UnreadableError.slug, MissingExtraError.slug})
"""What says nothing about a file, but that nobody could look."""


class Judgement(enum.Enum):
    """Whether a checkpoint can be trusted."""

    GOOD = "good"
    WRONG = "wrong"
    UNSEEN = "unseen"
    """It could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How far to look. Structure always; bytes and safety unless `quick`; values and resume if asked for.

    `strict` fails what is unverified, `allowed` are globals of a team's own (``module.Name``), `require` the verdict
    that a resume must reach, `write` whether to write digests where none are on record. With a `share` this is one
    worker of several: it reads some of the files, and the first one judges by what all have found. `workers` are the
    threads that read, by default as many as there are processors.
    """

    quick: bool = False
    values: bool = False
    resume: bool = False
    strict: bool = False
    allowed: frozenset[str] = frozenset()
    require: Verdict | None = None
    write: bool = False
    share: Share | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was found about one checkpoint.

    `bytes` is None where they were not looked at; `records` counts the checksums inside files that were compared,
    `digests` are the SHA-256 of files, by path, of which so many were `compared` with one on record and agree; `read`
    is how many bytes were read; `wrote` are digests that were written. Of the files called `unverified` nothing is
    on record.
    """

    path: Path
    judgement: Judgement
    title: str = ""
    layout: str = ""
    step: Found | None = None
    tensors: int = 0
    nbytes: int = 0
    bytes: Outcome | None = None
    findings: tuple[Finding, ...] = ()
    resume: ResumeReport | None = None
    records: int = 0
    compared: int = 0
    digests: dict[Path, str] = field(default_factory=dict)
    read: int = 0
    wrote: tuple[Path, ...] = ()
    unverified: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return self.judgement is Judgement.GOOD

    @property
    def complete(self) -> bool:
        """Whether everything is there: structure only."""
        return self.judgement is not Judgement.UNSEEN and not any(map(is_wrong, self.findings))

    @property
    def intact(self) -> bool:
        """Whether it is complete and no digest or checksum failed."""
        return self.complete and self.bytes is not Outcome.FAILED


def judged(findings: tuple[Finding, ...], *, seen: bool) -> Judgement:
    """Sum up findings."""
    wrong = [finding.slug for finding in findings if finding.severity is Severity.ERROR]
    if not seen or (wrong and _UNSEEN.issuperset(wrong)):
        return Judgement.UNSEEN
    return Judgement.WRONG if wrong else Judgement.GOOD
