"""What is found of the bytes of files, and of a checkpoint."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.model import Aspect, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.checks.digests import Recorded
    from ckptctl.formats import Checksum
    from ckptctl.storage import StoredFile

Place = tuple[int, int, str]
"""Where a tensor lies in a file: its first byte, the one after its last, its name."""


class Outcome(enum.Enum):
    """What looking at bytes gave; "could not tell" is never "fine"."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    """Nothing is on record to compare them with."""
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class FileBytes:
    """One file of a checkpoint: what is on record of its bytes, and what was found."""

    path: Path
    nbytes: int
    file: StoredFile | None = None
    recorded: tuple[Recorded, ...] = ()
    checksums: tuple[Checksum, ...] = ()
    places: list[Place] = field(default_factory=list)
    covered: bool = False
    digest: str = ""
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome | None:
        """None for a file that holds no tensors and has nothing on record."""
        if self.findings:
            return Outcome.FAILED
        matched = bool(self.digest) and any(one.digest == self.digest for one in self.recorded)
        if matched or (self.covered and self.checksums):
            return Outcome.VERIFIED
        return Outcome.UNVERIFIED if self.places or self.recorded else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesReport:
    """What came of the bytes of a checkpoint.

    `digests` are those of its files, of which so many were `compared` with one on record; `records` counts checksums
    that were compared, `nbytes` what was read; of the `unverified` files nothing is on record.
    """

    outcome: Outcome
    findings: tuple[Finding, ...]
    digests: Mapping[Path, str]
    compared: int
    records: int
    nbytes: int
    unverified: tuple[str, ...] = ()


def finding_of(one: FileBytes, slug: str, message: str) -> Finding:
    """Return a finding about the bytes of a file."""
    return Finding(
        aspect=Aspect.BYTES, severity=Severity.ERROR, slug=slug, where=one.path.name,
        message=message.removeprefix(f"{one.path}: "),
    )  # fmt: skip
