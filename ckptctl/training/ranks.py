"""What all processes of a distributed training do alike."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


def of_first_rank(mine: tuple[str, ...], urgent: Collection[str]) -> tuple[str, ...]:
    """Return what rank 0 says, and what any rank says that is `urgent`; `mine` where there is only one process."""
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return mine
    said: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(said, mine)
    return tuple(dict.fromkeys([*said[0], *(reason for one in said for reason in one if reason in urgent)]))
