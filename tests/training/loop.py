"""A small real training: dropout, AdamW, a schedule, shuffled data, several epochs; ``python loop.py RUN WORKERS STEPS STOP``.

It goes on from the newest good checkpoint in RUN, writes a line for each step to RUN/losses, and stops dead at STOP.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import torch

from ckptctl.training import ResumableSampler, TrainingState, load, save


class Data(torch.utils.data.Dataset):
    """Rows that are augmented at random, by a worker or the loop itself."""

    def __len__(self):
        return 50

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator)


def main(run: Path, workers: int, steps: int, stop: int) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sampler = ResumableSampler(50, seed=4)
    training = TrainingState(model=model, optimizer=optimizer, scheduler=scheduler, data=sampler)
    state = load(run) if any(run.glob("step_*.safetensors")) else None
    while training.step < steps:
        generator = torch.Generator().manual_seed(5)
        if state is not None:
            sampler.load_state_dict(state["data"])
        loader = torch.utils.data.DataLoader(Data(), 8, sampler=sampler, num_workers=workers, generator=generator)
        batches = iter(loader)
        if state is not None:
            training.restore(state)
            state = None
        for batch in batches:
            noise = random.random() + np.random.rand()
            loss = model(batch * (1 + 0.01 * noise)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            training.step += 1
            sampler.advance(len(batch))
            with (run / "losses").open("a") as file:
                file.write(f"{training.step} {loss.item()!r}\n")
            save(run / f"step_{training.step}.safetensors", training.capture())
            if training.step == stop:
                os._exit(9)
            if training.step == steps:
                return
        sampler.next_epoch()
        training.epoch += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
