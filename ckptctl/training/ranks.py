"""What all processes of a distributed training do alike: agree, gather, and fail together."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ckptctl.errors import CkptctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """A process among all; `group` is one for saves alone, so that a thread may use it while training goes on."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def gather(self, mine: T) -> list[T]:
        """Return what each rank gives, in their order."""
        if self.size == 1:
            return [mine]
        import torch.distributed as dist

        said: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(said, mine, group=self.group)
        except RuntimeError as error:
            first = str(error).strip().partition("\n")[0][:200]
            raise CkptctlError(
                "the ranks could not agree: another one has ended, cannot be reached, or took too long",
                hint=f"torch says: {first}",
            ) from error
        return said

    def same(self, mine: T, what: str) -> T:
        """Make sure that all ranks say the same.

        Raises
        ------
        UsageError
            They do not.
        """
        said = self.gather(mine)
        if any(one != said[0] for one in said):
            other = next(rank for rank, one in enumerate(said) if one != said[0])
            raise UsageError(
                f"{what}: rank 0 says {said[0]}, rank {other} says {said[other]}", hint="all ranks have to say the same"
            )
        return mine

    def agree(self, make: Callable[[], T]) -> T:
        """Have every rank make something of its own, and return it; if that fails on one, it fails on all.

        Raises
        ------
        CkptctlError
            It failed on another rank, which the message names.
        """
        mine: T | None = None
        error: Exception | None = None
        try:
            mine = make()
        except Exception as caught:  # noqa: BLE001  # the other ranks are waiting to be told
            error = caught
        said = self.gather(_described(error))
        if error is not None:
            raise error
        failed = next(((rank, what) for rank, what in enumerate(said) if what), None)
        if failed:
            rank, (slug, message, hint) = failed
            kind = next((one for one in _kinds(CkptctlError) if one.slug == slug), CkptctlError)
            raise kind(f"rank {rank}: {message}", hint=hint)
        return mine  # type: ignore[return-value]  # it did not fail

    def first(self, make: Callable[[], T]) -> T:
        """Have rank 0 make something that all get; if it fails there, it fails on all."""
        made = self.agree(lambda: make() if self.rank == 0 else None)
        return self.gather(made)[0]  # type: ignore[return-value]  # as rank 0 made it


def _described(error: Exception | None) -> tuple[str, str, str | None] | None:
    if error is None:
        return None
    if isinstance(error, CkptctlError):
        return error.slug, error.message, error.hint
    return CkptctlError.slug, f"{type(error).__name__}: {error}", None


_GROUPS: weakref.WeakKeyDictionary[Any, dict[bool, Any]] = weakref.WeakKeyDictionary()
_PATIENCE = timedelta(hours=12)
"""How long ranks wait while one of them reads all of a checkpoint; gloo by itself gives up after half an hour."""


def world() -> tuple[int, int]:
    """Return which process this is, and of how many, as ``torch.distributed`` says; ``(0, 1)`` without it."""
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def all_ranks(*, apart: bool = False, patient: bool = False) -> Ranks:
    """Return this process among all of ``torch.distributed``, or alone. The first time, all have to call it.

    With `apart` it is a group that nobody else uses: what a thread agrees upon must not meet what others do. With
    `patient` the others are waited for for half a day; one that has died is noticed all the same, as its connection is.
    """
    rank, size = world()
    if size == 1:
        return Ranks()
    import torch.distributed as dist

    everybody = dist.group.WORLD
    if apart:
        return Ranks(rank, size, dist.new_group(backend="gloo"))
    groups = _GROUPS.setdefault(everybody, {})
    if patient not in groups:
        groups[patient] = dist.new_group(backend="gloo", timeout=_PATIENCE if patient else None)
    return Ranks(rank, size, groups[patient])


def of_first_rank(mine: tuple[str, ...], urgent: Collection[str]) -> tuple[str, ...]:
    """Return what rank 0 says, and what any rank says that is `urgent`; `mine` where there is only one process."""
    said = all_ranks().gather(mine)
    return tuple(dict.fromkeys([*said[0], *(reason for one in said for reason in one if reason in urgent)]))


def _kinds(kind: type[CkptctlError]) -> Iterator[type[CkptctlError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds(one)
