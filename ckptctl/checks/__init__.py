"""What a description of a checkpoint tells: what its parts are, whether it is whole, what a resume lacks."""

from __future__ import annotations

from ckptctl.checks.optimizer import Slot, optimizer_kind, optimizer_slots
from ckptctl.checks.resume import resume_gaps, rng_kinds
from ckptctl.checks.scheduler import scheduler_summary

__all__ = [
    "Slot",
    "optimizer_kind",
    "optimizer_slots",
    "resume_gaps",
    "rng_kinds",
    "scheduler_summary",
]
