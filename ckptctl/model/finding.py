"""One thing worth saying about a checkpoint, for people and for machines."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ckptctl.model.causes import CAUSES


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
    """One thing found: what kind of thing (a slug in `CAUSES`), how bad, where, and in plain words.

    `advice` is what helps here, where that is known better than for all of its kind.
    """

    aspect: Aspect
    severity: Severity
    slug: str
    where: str
    message: str
    advice: str = ""

    @property
    def hint(self) -> str:
        """What helps, where something does."""
        return self.advice or CAUSES[self.slug].cure

    @property
    def unread(self) -> bool:
        """Whether it says that something was not looked at."""
        return self.slug == "not-read"
