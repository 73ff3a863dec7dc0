"""Are the values those of a model that trains? NaN, infinities, tensors of nothing but zeros or subnormal numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, counted
from ckptctl.model import Aspect, Checkpoint, Component, Finding, Severity
from ckptctl.tensors.compare import alone, unravelled
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
        for tensor, corner in (
            here for one in part.tensors.values() for stored in (one, *one.parts) for here in _here(stored)
        ):
            if not has_stats(tensor) or tensor.identity in seen:
                continue
            seen.add(tensor.identity)
            try:
                found = stats(tensor, progress)
            except CkptctlError as error:
                yield _finding(tensor, Severity.ERROR, error.slug, error.message)
                continue
            yield from _odd(tensor, corner, found, part.component)


def _here(tensor: TensorInfo) -> Iterator[tuple[TensorInfo, tuple[int, ...] | None]]:
    """Yield a tensor, or the blocks of it that are here, and each copy; of a block, where it sits in the whole."""
    if tensor.whole or tensor.layout != "strided":
        yield tensor, None
    for piece in (*(() if tensor.whole else tensor.pieces), *tensor.copies):
        yield alone(tensor, piece), piece.offsets


def _odd(tensor: TensorInfo, corner: tuple[int, ...] | None, found: Stats, component: Component) -> Iterator[Finding]:
    """Say what is odd about a tensor, or about a block of one, of which zeros and small numbers say nothing."""
    if found.nan or found.infinite:
        kinds = [f"{count:,} {kind}" for count, kind in ((found.nan, "NaN"), (found.infinite, "Inf")) if count]
        first = unravelled(found.first, tensor.shape)
        where = [at + start for at, start in zip(first, corner or (0,) * len(first), strict=True)]
        what = f"{tensor.name} {_described(tensor)} holds {' and '.join(kinds)}, the first at {where}"
        if _PADDED.search(tensor.name):
            yield _finding(tensor, Severity.WARNING, "not-finite", f"{what}; it may be padding, which is never used")
        elif _MASK.search(tensor.name) and not found.nan:
            yield _finding(tensor, Severity.WARNING, "not-finite", f"{what}; by its name it is a mask, which may")
        else:
            yield _finding(tensor, Severity.ERROR, "not-finite", what)
    elif corner is not None:
        return
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
