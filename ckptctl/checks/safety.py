"""What a loader would import or call for a checkpoint, and whether that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.model import Aspect, Checkpoint, Finding, Level, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRONG = {
    Level.FOREIGN: "a loader would import {}",
    Level.DANGEROUS: "a loader would run {}",
}


def safety(checkpoint: Checkpoint, *, allowed: frozenset[str] = frozenset()) -> Iterator[Finding]:
    """Yield what is neither known, nor inert, nor `allowed` by its exact name (``module.Name``)."""
    for contents in checkpoint.files:
        for use in contents.globals:
            what = _WRONG.get(use.level)
            if what is None or str(use) in allowed:
                continue
            called = f", called {use.calls}×" if use.calls else ""
            yield Finding(
                aspect=Aspect.SAFETY,
                severity=Severity.ERROR,
                slug=f"{use.level.value}-global",
                where=contents.range.file.path.name,
                message=f"{what.format(use)} ({use.level.value}{called})",
            )
