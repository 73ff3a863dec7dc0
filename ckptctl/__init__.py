"""Look into, trust, migrate, keep, merge and compare the checkpoints of models.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "CkptctlError": "ckptctl.errors",
    "Checkpoint": "ckptctl.model",
    "CheckpointInfo": "ckptctl.model.run",
    "Component": "ckptctl.model",
    "ConsolidateReport": "ckptctl.ops.consolidate",
    "ConvertOptions": "ckptctl.rewrite.options:Options",
    "DiffOptions": "ckptctl.ops.diff:Options",
    "DiffReport": "ckptctl.ops.diff",
    "InspectReport": "ckptctl.ops.inspect",
    "RewriteReport": "ckptctl.rewrite.report",
    "Selection": "ckptctl.ops.inspect",
    "TensorInfo": "ckptctl.model",
    "VerifyLevel": "ckptctl.ops.verify:Level",
    "VerifyReport": "ckptctl.ops.verify",
    "Wanted": "ckptctl.ops.consolidate",
    "consolidate": "ckptctl.ops.consolidate",
    "convert": "ckptctl.ops.convert",
    "diff": "ckptctl.ops.diff",
    "find_checkpoints": "ckptctl.runs",
    "inspect": "ckptctl.ops.inspect",
    "latest_good": "ckptctl.training",
    "open_checkpoint": "ckptctl.layouts",
    "verify": "ckptctl.ops.verify",
}
__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, inside = _PUBLIC[name].partition(":")
    return getattr(import_module(module), inside or name)
