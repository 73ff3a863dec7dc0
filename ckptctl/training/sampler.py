"""The order of samples as a function of seed and epoch, and how far it has been gone through."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class ResumableSampler:
    """Yields indices of a data set, shuffled anew for each epoch, from where training is.

    For ``torch.utils.data.DataLoader(sampler=…)``. The loop says how many samples it has used (`advance`): workers
    fetch ahead of it, so that what was handed out says nothing. It draws from no global generator. Give the loader a
    ``generator`` of its own, or the seeds of its workers come out of the global one at every start.

    Parameters
    ----------
    size
        How many samples there are.
    seed
        Decides the order, with the epoch.
    shuffle
        Off for the order in which they lie.
    rank, world
        Every `world`-th sample from `rank` on is yielded; all ranks yield as many, the rest is left out.
    """

    def __init__(self, size: int, *, seed: int = 0, shuffle: bool = True, rank: int = 0, world: int = 1) -> None:
        if size < 0 or not 0 <= rank < world:
            raise ValueError("size is not negative, and rank is below world")
        self.size, self.seed, self.shuffle, self.rank, self.world = size, seed, shuffle, rank, world
        self.epoch, self.used = 0, 0

    def __len__(self) -> int:
        return self.size // self.world - self.used

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.size))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)  # noqa: S311  # an order, no secret
        each = self.size // self.world
        yield from order[self.rank : each * self.world : self.world][self.used :]

    def advance(self, samples: int) -> None:
        """Say that so many more samples of this epoch have been used, by this rank."""
        if samples < 0:
            raise ValueError("samples are not used less")
        self.used = min(self.used + samples, self.size // self.world)

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.used = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return where it is."""
        return {"epoch": self.epoch, "used": self.used, "size": self.size, "seed": self.seed,
                "world": self.world, "shuffle": self.shuffle}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; among another number of ranks from the same sample, or from a few before it.

        Raises
        ------
        ValueError
            It is of another data set or order.
        """
        mine = self.state_dict()
        wrong = [key for key in ("size", "seed", "shuffle") if state[key] != mine[key]]
        if wrong:
            raise ValueError(f"{wrong[0]} is {mine[wrong[0]]} here, and was {state[wrong[0]]} when it was saved")
        used = int(state["used"]) * int(state["world"]) // self.world
        self.epoch, self.used = int(state["epoch"]), min(used, self.size // self.world)
