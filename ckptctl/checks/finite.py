"""Are the values those of a model that trains? NaN, infinities, tensors of nothing but zeros or subnormal numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, counted
from ckptctl.model import Aspect, Checkpoint, Component, Finding, Severity
from ckptctl.tensors.compare import unravelled
from ckptctl.tensors.stats import Stats, has_stats, stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptctl.model import TensorInfo


_PADDED = re.compile(r"fp32_flat_groups|single_partition_of_fp32_groups")
"""Flat groups of DeepSpeed end in padding that nobody writes."""
_MASK = re.compile(r"(?:^|[._])(?:(?:attn|attention|causal|padding)_)?(?:mask|masked_bias|bias_mask)$")
"""Buffers that are added to scores of attention, to take positions out."""
_TRAINED = frozenset({Component.MODEL, Component.OPTIMIZER, Component.OTHER})


def check_values(checkpoint: Checkpoint, progress: Callable[[int], None] = lambda _: None) -> Iterator[Finding]:
    """Read every floating tensor of model and optimizer and yield what is odd about it; tied tensors once.

    A score that the trainer wrote down may well be infinite.
    """
    seen: set[object] = set()
    for part in (part for part in checkpoint.parts.values() if part.component in _TRAINED):
        for tensor in (stored for one in part.tensors.values() for stored in (one, *one.parts)):
            if not has_stats(tensor) or tensor.identity in seen:
                continue
            seen.add(tensor.identity)
            try:
                found = stats(tensor, progress)
            except CkptctlError as error:
                yield _finding(tensor, Severity.ERROR, error.slug, error.message)
                continue
            yield from _odd(tensor, found, part.component)


def _odd(tensor: TensorInfo, found: Stats, component: Component) -> Iterator[Finding]:
    if found.nan or found.infinite:
        kinds = [f"{count:,} {kind}" for count, kind in ((found.nan, "NaN"), (found.infinite, "Inf")) if count]
        where = list(unravelled(found.first, tensor.shape))
        what = f"{tensor.name} {_described(tensor)} holds {' and '.join(kinds)}, the first at {where}"
        if _PADDED.search(tensor.name):
            yield _finding(tensor, Severity.WARNING, "not-finite", f"{what}; it may be padding, which is never used")
        elif _MASK.search(tensor.name) and not found.nan:
            yield _finding(tensor, Severity.WARNING, "not-finite", f"{what}; by its name it is a mask, which may")
        else:
            yield _finding(tensor, Severity.ERROR, "not-finite", what)
    elif found.zero and component is Component.MODEL and tensor.numel > 1:
        yield _finding(tensor, Severity.NOTE, "all-zero", f"{tensor.name} {_described(tensor)} is all zeros")
    elif found.subnormal and component is Component.MODEL:
        what = f"{tensor.name} {_described(tensor)} holds nothing but subnormal numbers and zeros"
        yield _finding(tensor, Severity.WARNING, "subnormal", what)


def _described(tensor: TensorInfo) -> str:
    return f"({tensor.dtype}, {counted(tensor.numel, 'element')})"


def _finding(tensor: TensorInfo, severity: Severity, slug: str, message: str) -> Finding:
    where = tensor.pieces[0].range.file.path.name if tensor.pieces else tensor.name
    return Finding(aspect=Aspect.VALUES, severity=severity, slug=slug, where=where, message=message)
