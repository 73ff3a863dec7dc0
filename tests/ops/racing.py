"""A trainer that saves and two prunes at the same time: ``python racing.py DIRECTORY SECONDS`` prints what was lost.

The trainer saves as the Hugging Face Trainer does, into the directory that has the final name already, and looks after
each save whether all that must be kept is there and whole.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from ckptctl.errors import LockedError
from ckptctl.ops.prune import Pruning, Settings
from ckptctl.retention import Mode, Policy

ANCHOR, LAST, BEST = 10, 2, 1
POLICY = Policy(last=LAST, best=BEST, metric="eval_loss", mode=Mode.MIN, anchor_every=ANCHOR)


def loss(step: int) -> float:
    return hashlib.sha256(str(step).encode()).digest()[0] / 256 + 1 / step


def save(run: Path, step: int) -> None:
    """Write file by file, each in two halves; the trainer's state comes last."""
    directory = run / f"checkpoint-{step}"
    directory.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes([step % 256]) * 256
    log = [{"step": step, "eval_loss": loss(step)}]
    state = json.dumps({"global_step": step, "epoch": step / 100, "log_history": log}).encode()
    for name, data in (("config.json", b"{}"), ("model.safetensors", weights), ("trainer_state.json", state)):
        with (directory / name).open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            time.sleep(0.001)
            file.write(data[len(data) // 2 :])


def is_whole(run: Path, step: int) -> bool:
    try:
        weights = (run / f"checkpoint-{step}" / "model.safetensors").read_bytes()
        state = json.loads((run / f"checkpoint-{step}" / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return weights.endswith(bytes([step % 256]) * 256) and state["global_step"] == step


def train(run: Path, until: float, lost: list[str]) -> None:
    """Save until the time is over; note every step that must be there and is not."""
    step = 0
    while time.monotonic() < until:
        step += 1 + step % 3
        save(run, step)
        saved = steps_before(step)
        must = {*saved[-LAST:], min(saved, key=lambda one: (loss(one), -one))}
        must |= {min(one for one in saved if one >= at) for at in range(ANCHOR, step + 1, ANCHOR)}
        lost += [f"after {step}: {one} is not whole" for one in sorted(must) if not is_whole(run, one)]


def steps_before(last: int) -> list[int]:
    found, step = [], 0
    while step < last:
        step += 1 + step % 3
        found.append(step)
    return found


def keep_pruning(run: Path, until: float, problems: list[str]) -> None:
    settings = Settings(policy=POLICY)
    while time.monotonic() < until:
        with Pruning([run], settings, datetime.now(tz=timezone.utc)) as pruning:
            told = [str(error) for error in pruning.errors if not isinstance(error, LockedError)]
            reports = [pruning.apply(plan) for plan in pruning.plans]
        problems += [text for text in told if "not a run" not in text and "has the metric" not in text]
        problems += [error for report in reports for error in report.errors]


def main(run: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    with multiprocessing.Manager() as manager:
        lost, problems = manager.list(), manager.list()
        workers = [multiprocessing.Process(target=train, args=(run, until, lost))]
        workers += [multiprocessing.Process(target=keep_pruning, args=(run, until, problems)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        left = sorted(int(name.rpartition("-")[2]) for name in os.listdir(run) if name.startswith("checkpoint-"))
        ended = [worker.exitcode for worker in workers]
        print(json.dumps({"lost": list(lost), "problems": list(problems), "left": left, "ended": ended}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
