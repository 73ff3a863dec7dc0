"""What `prune` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from ckptctl.retention import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to keep, and how to go about it.

    Parameters
    ----------
    policy
        The rules. Its metric, if it has one, is asked for by name: some checkpoint must have it.
    verify_bytes
        Whether the newest checkpoint counts as sound only if its bytes are those that were written; else its
        structure is enough.
    trash_for
        How long what is pruned can be restored; not at all if zero.
    wait, lock_needed
        Whether to wait for a directory that another prune has locked, and whether it is an error if the file system
        has no locks.
    """

    policy: Policy = field(default_factory=Policy)
    verify_bytes: bool = False
    trash_for: timedelta = timedelta(0)
    wait: bool = False
    lock_needed: bool = True
