"""For training loops: save so that there is always a whole checkpoint, load what is one, know when to save.

Saving and loading need torch, the extra ``ckptctl[torch]``; the rest does not, and importing this loads it not.
"""

from __future__ import annotations

from ckptctl.retention import AnchorMode, Mode, Policy
from ckptctl.training.capture import TrainingState
from ckptctl.training.hooks import AfterSave
from ckptctl.training.in_background import AsyncSaver
from ckptctl.training.interval import Interval, optimal_interval, waste
from ckptctl.training.loading import UnverifiedWarning, latest_good, load
from ckptctl.training.retain import prune
from ckptctl.training.sampler import ResumableSampler
from ckptctl.training.saving import save
from ckptctl.training.schedule import CheckpointScheduler
from ckptctl.training.transfer import Uploaded
from ckptctl.training.uploader import Uploader

__all__ = [
    "AfterSave",
    "AnchorMode",
    "AsyncSaver",
    "CheckpointScheduler",
    "Interval",
    "Mode",
    "Policy",
    "ResumableSampler",
    "TrainingState",
    "UnverifiedWarning",
    "Uploaded",
    "Uploader",
    "latest_good",
    "load",
    "optimal_interval",
    "prune",
    "save",
    "waste",
]
