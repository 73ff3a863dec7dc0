"""Runs a program as several processes of torch.distributed, as ``torchrun`` would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HEAD = """
import atexit, os, sys, torch, torch.distributed as dist, warnings
from pathlib import Path
from ckptctl.training import AsyncSaver, TrainingState, latest_good, load, save
from ckptctl.errors import CkptctlError
torch.set_num_threads(1)
dist.init_process_group("gloo")
atexit.register(dist.destroy_process_group)
rank, world, path = dist.get_rank(), dist.get_world_size(), Path(sys.argv[1])
"""
TAIL = """
try:
    if dist.is_initialized():
        dist.barrier()
except RuntimeError:
    pass  # the other one was killed
import threading
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush(); sys.stderr.flush()
os._exit(0)  # all that Python does at the end is done; torch's own teardown aborts now and then
"""


@dataclass(frozen=True)
class Done:
    """What one process said, and how it ended."""

    status: int
    out: str
    err: str


def begin(program: str, world: int, *words: object) -> list[subprocess.Popen]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", HEAD + program + TAIL, *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**env, "RANK": str(rank)},
        )
        for rank in range(world)
    ]  # fmt: skip


def ended(processes: list[subprocess.Popen]) -> list[Done]:
    found = []
    for one in processes:
        out, err = one.communicate(timeout=120)
        found.append(Done(one.returncode, out, err))
    return found


def run(program: str, world: int, *words: object) -> list[Done]:
    """Run it; every process must end well."""
    done = ended(begin(program, world, *words))
    assert [one.status for one in done] == [0] * world, "\n".join(one.err for one in done)
    return done


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}
