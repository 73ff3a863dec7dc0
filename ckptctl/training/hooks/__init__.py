"""For loops that people already have: what is done after each save, and a callback for each framework.

``transformers``, ``lightning`` and ``keras`` are modules of their own here, which need the framework of that name.
"""

from __future__ import annotations

from ckptctl.training.hooks.after_save import AfterSave

__all__ = ["AfterSave"]
