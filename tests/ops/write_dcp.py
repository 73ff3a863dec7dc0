"""Write random tensors, cut by random meshes and placements, as a distributed checkpoint of so many ranks.

``python write_dcp.py DIRECTORY RANKS SEED`` also writes what they are whole, to ``DIRECTORY.whole.pt``.
"""

from __future__ import annotations

import os
import random
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.float64,
    torch.complex64,
)


def meshes(ranks: int) -> list[tuple[int, ...]]:
    return [(ranks,), *((size, ranks // size) for size in range(1, ranks + 1) if ranks % size == 0)]


def work(rank: int, directory: str, ranks: int, seed: int) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29600 + seed),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
    }
    dist.init_process_group("gloo")
    made = {shape: init_device_mesh("cpu", shape) for shape in meshes(ranks)}
    choose = random.Random(seed)  # the same on every rank
    whole, state = {}, {}
    for number in range(40):
        shape = tuple(choose.choice((1, 2, 3, 4, 5, 7, 8, 11)) for _ in range(choose.randint(0, 3)))
        torch.manual_seed(seed * 1000 + number)
        tensor = (torch.randn(shape) * 100).to(choose.choice(DTYPES))
        mesh = made[choose.choice(list(made))]
        placements = [
            Replicate() if not shape or choose.random() < 0.3 else Shard(choose.randrange(len(shape)))
            for _ in range(mesh.ndim)
        ]
        name = f"layer.{number}"
        whole[name] = tensor
        state[name] = distribute_tensor(tensor, mesh, placements)
    state["plain"] = whole["plain"] = torch.arange(7)
    dcp.save({"model": state}, checkpoint_id=directory)
    if rank == 0:
        torch.save(whole, f"{directory}.whole.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[2])
    mp.spawn(work, args=(sys.argv[1], ranks, int(sys.argv[3])), nprocs=ranks)
