"""Do the weights in 16 bits agree with those in fp32 that they were rounded from? DeepSpeed keeps both.

They disagree where partitions are of another step, or were put together in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Aspect, Component, Finding, Severity
from ckptctl.tensors.gather import blocks
from ckptctl.tensors.stream import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ckptctl.model import Checkpoint, TensorInfo

_NARROW = frozenset({"BF16", "F16", "F32"})
_BLOCK = 4 << 20


def check_halves(
    path: Path, checkpoint: Checkpoint, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Finding]:
    """Yield a finding for each weight whose copy in 16 bits is not what it rounds to."""
    if checkpoint.layout != "deepspeed" or Component.MODEL not in checkpoint.parts:
        return
    try:
        other = open_checkpoint(path, narrow=True).parts.get(Component.MODEL)
    except CkptctlError as error:
        yield _of_error(path, error)
        return
    for name, tensor in checkpoint.parts[Component.MODEL].tensors.items():
        half = other.tensors.get(name) if other else None
        if half is None or tensor.dtype.name != "F32" or half.dtype.name not in _NARROW or half.shape != tensor.shape:
            continue
        if half.identity == tensor.identity:
            continue  # it is kept once only
        try:
            agree = _rounds_to(tensor, half, progress)
        except CkptctlError as error:
            yield _of_error(path, error)
            continue
        if not agree:
            message = (
                f"{name} in fp32 does not round to its copy in {half.dtype}: partitions mixed up, or of another save"
            )
            yield Finding(
                aspect=Aspect.VALUES, severity=Severity.ERROR, slug="halves-differ", where=path.name, message=message
            )


def _of_error(path: Path, error: CkptctlError) -> Finding:
    slug = error.kind or error.slug
    return Finding(aspect=Aspect.VALUES, severity=Severity.ERROR, slug=slug, where=path.name, message=error.message)


def _rounds_to(tensor: TensorInfo, half: TensorInfo, progress: Callable[[int], None]) -> bool:
    from ckptctl.tensors.cast import cast  # noqa: PLC0415  # NumPy, only for those who ask

    wide, narrow = blocks(tensor, most=2 * _BLOCK), blocks(half, most=_BLOCK)
    made = held = memoryview(b"")
    while True:
        if not made:
            block = next(wide, None)
            made = memoryview(cast(block, tensor.dtype, half.dtype)[0]).cast("B") if block is not None else made
            progress(len(block) if block is not None else 0)
        held = held or next(narrow, memoryview(b""))
        count = min(len(made), len(held))
        if not count:
            return len(made) == len(held)
        if not equal(made[:count], held[:count]):
            return False
        made, held = made[count:], held[count:]
