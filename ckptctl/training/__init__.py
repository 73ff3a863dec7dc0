"""For training loops: when to save, and how often.

What is here that needs torch needs the extra ``ckptctl[torch]``.
"""

from __future__ import annotations

from ckptctl.training.interval import Interval, optimal_interval, waste
from ckptctl.training.schedule import CheckpointScheduler

__all__ = ["CheckpointScheduler", "Interval", "optimal_interval", "waste"]
