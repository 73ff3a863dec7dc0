"""A small real training that can be interrupted at any moment, and goes on bit for bit as if it had not been.

``python train.py RUN``, or ``torchrun --nproc-per-node 2 train.py RUN``: dropout, AdamW, a schedule, shuffled data,
several epochs; under torchrun the model is sharded (FSDP2). It goes on from the newest good checkpoint in RUN, however
many processes saved it, and writes a line with step and loss for each step to RUN/losses.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from ckptctl import consolidate
from ckptctl.errors import UnsupportedError
from ckptctl.ops.consolidate import Options, Wanted
from ckptctl.training import (
    CheckpointScheduler,
    Policy,
    ResumableSampler,
    TrainingState,
    latest_good,
    load,
    prune,
    save,
)

EXAMPLES, BATCH = 50, 8


class Data(torch.utils.data.Dataset):
    """Rows that depend on nothing but their index."""

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(6, generator=torch.Generator().manual_seed(index))


def join() -> tuple[int, int]:
    """Join the other processes, where torchrun started this one; return its number, and how many there are."""
    if "RANK" not in os.environ:
        return 0, 1
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def seed(number: int) -> None:
    """Set all random generators; each rank draws numbers of its own."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def set_up(steps: int, every: int, rank: int, world: int) -> TrainingState:
    """Make all parts of the training; the seeds decide how it begins."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    if "RANK" in os.environ:
        fully_shard(model)
    seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return TrainingState(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        data=ResumableSampler(EXAMPLES, seed=4, rank=rank, world=world),
        saves=CheckpointScheduler(every_steps=every),
    )


def newest(run: Path, rank: int) -> tuple[dict | None, bool]:
    """Return the state to go on from, and whether it is that of as many ranks as there are now."""
    if not any(run.glob("step_*.safetensors")) and not any(run.glob("step_*/manifest.json")):
        return None, True
    good = latest_good(run)  # the same on every rank
    try:
        return load(good), True
    except UnsupportedError:  # it is sharded over another number of ranks
        whole = run / "restart.safetensors"
        if rank == 0:
            consolidate(good, whole, wanted=Wanted(only=None), options=Options(force=True))
        dist.barrier()
        return load(whole), False


def one_step(training: TrainingState, batch: torch.Tensor) -> float:
    """Train on a batch; return its loss, the mean of all ranks."""
    noise = random.random() + np.random.rand()
    loss = training.model(batch * (1 + 0.01 * noise)).square().mean()
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()
    training.scheduler.step()
    training.data.advance(len(batch))
    training.step += 1
    mean = loss.detach()
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    return mean.item()


def evaluate(training: TrainingState) -> None:
    """Take the loss without dropout on rows that are not trained on; keep the best."""
    training.model.eval()
    with torch.no_grad():
        rows = torch.stack([Data()[EXAMPLES + index] for index in range(BATCH)])
        loss = training.model(rows).square().mean().item()
    training.model.train()
    training.best = loss if training.best is None else min(training.best, loss)


def save_it(training: TrainingState, run: Path, rank: int, *, keep_all: bool) -> None:
    """Save, all ranks together; once that is durable, delete what need not be kept."""
    begin = time.monotonic()
    save(run / f"step_{training.step}{'' if dist.is_initialized() else '.safetensors'}", training.capture())
    training.saves.saved(time.monotonic() - begin)
    if rank == 0 and not keep_all:
        prune(run, Policy(last=3, best=0, anchor_every=50))


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=5, help="save every so many steps")
    parser.add_argument("--workers", type=int, default=0, help="processes that fetch data")
    parser.add_argument("--keep-all", action="store_true", help="delete no checkpoint")
    parser.add_argument("--crash-at", type=int, default=-1, help="end without a word after that step, for tests")
    return parser.parse_args()


def main() -> None:
    """Train from where the run is to the last step."""
    given = options()
    rank, world = join()
    given.run.mkdir(parents=True, exist_ok=True)
    training = set_up(given.steps, given.every, rank, world)
    state, same = newest(given.run, rank)
    training.step = state["step"] if state else 0  # it may have come to its end already
    if rank == 0:
        print(f"resumed from step {training.step}", flush=True)
    with training.saves.signals():
        while training.step < given.steps and not training.saves.stopping:
            if state is not None:
                training.data.load_state_dict(state["data"])
            generator = torch.Generator().manual_seed(5)  # the workers' seeds come from here, not from the global one
            loader = torch.utils.data.DataLoader(
                Data(), BATCH, sampler=training.data, num_workers=given.workers, generator=generator
            )
            batches = iter(loader)
            if state is not None:
                training.restore(state)  # last, for it sets the random generators
                if not same:
                    seed(1000 * training.step + rank)  # those of the state are all of rank 0
                state = None
            for batch in batches:
                loss = one_step(training, batch)
                if rank == 0:
                    with (given.run / "losses").open("a") as file:
                        file.write(f"{training.step} {loss!r}\n")
                last = training.step == given.steps
                if training.saves.due(training.step) or last:
                    save_it(training, given.run, rank, keep_all=given.keep_all)
                if training.step == given.crash_at:
                    os._exit(9)
                if last or training.saves.stopping:
                    return
            training.data.next_epoch()
            training.epoch += 1
            evaluate(training)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.barrier()  # whoever ends while another one still talks to it makes torch abort, now and then
        dist.destroy_process_group()
