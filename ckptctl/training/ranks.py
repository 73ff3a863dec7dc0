"""What all processes of a distributed training do alike."""

from __future__ import annotations

import sys
from typing import Any


def of_first_rank(mine: tuple[str, ...]) -> tuple[str, ...]:
    """Return what rank 0 says, on every rank; `mine` where there is only one process."""
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return mine
    said: list[Any] = [mine]
    distributed.broadcast_object_list(said, src=0)
    return tuple(said[0])
