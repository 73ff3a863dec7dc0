"""One thing worth saying about a checkpoint, for people and for machines."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Aspect(enum.Enum):
    """Which of the five questions a finding answers."""

    STRUCTURE = "structure"
    BYTES = "bytes"
    VALUES = "values"
    SAFETY = "safety"
    RESUME = "resume"


class Severity(enum.Enum):
    """`NOTE` is good to know, `WARNING` may surprise, `ERROR` is wrong."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found: what kind of thing, how bad, where, and in plain words."""

    aspect: Aspect
    severity: Severity
    slug: str
    where: str
    message: str
