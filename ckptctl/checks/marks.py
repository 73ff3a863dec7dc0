"""Marks of a save in progress that frameworks leave in a name, in a directory, or beside a checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.model import Aspect, Finding, Severity
from ckptctl.storage import has_file, is_remote
from ckptctl.storage.set_aside import is_set_aside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_INTERRUPTED = "checkpoint-is-incomplete.txt"
_UNFINISHED = "-unfinished"
_TEMPORARY = (
    r"\.?tmp[-_.](?P<after>.+)"
    r"|\.?(?P<before>.+?)(?:\.(?:tmp|temp|part|partial|incomplete)(?:[-_.]?[0-9A-Za-z]{1,32})?"
    r"|\.orbax-checkpoint-tmp(?:[-.][0-9A-Za-z]{1,32})?|-unfinished)"
)


def base_name(name: str) -> str | None:
    """Return the name that a save in progress would have in the end; None if the name is no temporary one."""
    found = re.fullmatch(_TEMPORARY, name)
    return (found["after"] or found["before"]) if found else None


def unfinished_marks(path: Path) -> Iterator[Finding]:
    """Yield the marks of an unfinished save that frameworks leave in the name, in the directory, or beside it."""
    if base_name(path.name):
        yield _unfinished(path, "it still has the temporary name of a save in progress")
    if has_file(path / _INTERRUPTED):
        yield _unfinished(path, f"it holds {_INTERRUPTED}")
    if is_remote(path) and is_set_aside(path):  # type: ignore[arg-type]  # it is remote
        yield _unfinished(path, "a prune has set it aside; ckptctl prune --restore may bring it back")
    if has_file(path.parent / f"{path.name}{_UNFINISHED}"):
        yield _unfinished(path, f"{path.name}{_UNFINISHED} stands beside it")


def _unfinished(path: Path, why: str) -> Finding:
    return Finding(
        aspect=Aspect.STRUCTURE,
        severity=Severity.ERROR,
        slug="unfinished",
        where=path.name,
        message=f"unfinished: {why}",
    )
