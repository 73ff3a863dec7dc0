"""Save while training goes on: the state is copied before anything of it can change, and written by a thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ckptctl.errors import UsageError
from ckptctl.training.at_exit import closed_at_exit
from ckptctl.training.delta import checked_base
from ckptctl.training.live import require_torch, taken_apart
from ckptctl.training.ranks import Ranks, all_ranks, world
from ckptctl.training.saving import checked_target, in_ranks, write_live

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from ckptctl.training.live import Live


_UNFINISHED: set[AsyncSaver] = set()
"""Savers whose last save nobody has waited for: they live until its outcome has been told."""


class AsyncSaver:
    """Saves states one at a time, each as `save` does, without holding up the loop longer than a copy takes.

    The memory for the copy is kept for the next one. An error of a save is raised by the next call, or by `wait`; what
    is going on at the end of the program is waited for.
    """

    def __init__(self) -> None:
        require_torch()
        self._pool = ThreadPoolExecutor(1, "ckptctl-save")
        self._saving: Future[str] | None = None
        self._copies: list[Any] = []
        self._ranks: Ranks | None = None
        self._closed = False
        closed_at_exit(self, "the last save failed: ")

    def save(
        self,
        path: str | os.PathLike[str],
        state: object,
        *,
        metadata: Mapping[str, str] | None = None,
        base: str | os.PathLike[str] | None = None,
    ) -> Future[str]:
        """Copy a state, have it saved, and return what will be its SHA-256. Waits for the save before, if need be.

        Raises
        ------
        UnsupportedError
            Something in the state cannot be kept; nothing is saved.
        CkptctlError
            The save before this one failed; this one was not begun.
        """
        if self._closed:
            raise UsageError("this saver was closed")
        self.wait()
        target = checked_target(path)
        found = checked_base(base, target)
        ranks = self._agreeing() if in_ranks(target) else Ranks()
        ranks.same(str(target), "the path to save to")
        live = ranks.agree(lambda: self._copied(state, target))
        self._saving = self._pool.submit(write_live, live, dict(metadata or {}), ranks, found)
        _UNFINISHED.add(self)
        return self._saving

    def wait(self) -> str:
        """Wait until the last save is durable; return its SHA-256, nothing if there is none. Raises its error, once."""
        saving = self._saving
        try:
            return saving.result() if saving else ""
        finally:
            if saving and saving.done():  # else somebody was interrupted: its memory is still being written from
                self._saving = None
                _UNFINISHED.discard(self)

    def close(self) -> None:
        """Wait for the last save, and give the memory back."""
        try:
            self.wait()
        finally:
            self._closed = True
            self._copies.clear()
            self._pool.shutdown()

    def __enter__(self) -> AsyncSaver:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _agreeing(self) -> Ranks:
        """Return the ranks, in a group of this saver's own: others may agree about something else meanwhile."""
        found = world()
        if self._ranks is None or (self._ranks.rank, self._ranks.size) != found:
            self._ranks = all_ranks(apart=True)
        return self._ranks

    def _copied(self, state: object, target: Path) -> Live:
        """Take a state apart, and copy all memory that it lies in, into that of the last copy where it fits."""
        import torch

        live = taken_apart(state, path=target)
        free, self._copies = self._copies, []
        for memory in live.storages.values():
            fits = next((at for at, one in enumerate(free) if len(one) == memory.size), None)
            copy = free.pop(fits) if fits is not None else torch.empty(memory.size, dtype=torch.uint8)
            memory.move_to(copy)
            self._copies.append(copy)
        return live
