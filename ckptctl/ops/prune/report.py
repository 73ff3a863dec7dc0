"""What a prune did in one directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was done in one directory.

    `deleted` are the paths of the `count` checkpoints that are gone, or in the trash; `emptied` the names of what was
    in the trash from before and is gone for good; `freed` is in bytes on disk; `errors` say what could not be done.
    """

    path: Path
    deleted: tuple[Path, ...] = ()
    count: int = 0
    emptied: tuple[str, ...] = ()
    freed: int = 0
    errors: tuple[str, ...] = ()
