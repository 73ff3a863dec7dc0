"""Retention in the loop: after a save is durable, what no rule keeps goes, exactly as `ckptctl prune` does it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import LockedError, UsageError
from ckptctl.ops.prune import PruneReport, Pruning, Settings
from ckptctl.retention import Policy
from ckptctl.storage import address, is_remote
from ckptctl.training.warned import warned

if TYPE_CHECKING:
    import os


def prune(run: str | os.PathLike[str], policy: Policy | None = None) -> PruneReport:
    """Delete the checkpoints of a run that no rule keeps, and return what was deleted. Of several processes, for one.

    The newest whole one, pinned ones and what is being written always stay. While somebody else prunes the run
    nothing is deleted, and what could not be deleted stays: a warning says so, training goes on. Where the
    file system has no locks it goes on without one.

    Parameters
    ----------
    run
        The directory of the checkpoints; directories in it are not looked into.
    policy
        The rules, united; by default those of ``ckptctl prune``.

    Raises
    ------
    UnknownFormatError
        It holds no checkpoint.
    PolicyError
        The rules name a metric that no checkpoint has, or would leave no whole checkpoint; nothing is deleted.
    """
    if is_remote(address(run)):
        raise UsageError(f"{run}: a run in the loop lies on a disk", hint="ckptctl prune takes one in a bucket")
    path = Path(run)
    settings = Settings(policy=policy or Policy(), lock_needed=False)
    with Pruning([path], settings, datetime.now(tz=timezone.utc), below=False) as pruning:
        for error in pruning.errors:
            if not isinstance(error, LockedError):
                raise error
            warned(f"nothing is deleted: {error}")
        report = next((pruning.apply(plan) for plan in pruning.plans), PruneReport(path=path))
    for problem in report.errors:
        warned(f"{path}: {problem}")
    return report
