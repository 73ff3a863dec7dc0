"""Speed of saving and loading: ``python -m tests.bench training``. A state of 1 GB in BF16; all in one process, in turn."""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ckptctl.training import AsyncSaver, load, save

_TIMES = 5


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _torch_save(path: Path, state: object) -> None:
    path.unlink(missing_ok=True)
    torch.save(state, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        hashlib.file_digest(file, "sha256")


def _save(path: Path, state: object) -> None:
    path.unlink(missing_ok=True)
    save(path, state)


def _hashed(path: Path) -> None:
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")


def _compare(title: str, ways: dict[str, Callable[[], object]]) -> None:
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_TIMES):
        for way, call in ways.items():
            os.sync()  # what another way left to be written is not to be waited for here
            found[way].append(_seconds(call))
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    first = next(iter(medians.values()))
    print(f"\n{title}")
    for way, seconds in medians.items():
        print(f"  {way:40} {seconds:7.2f} s   {seconds / first:5.2f} × the time")


def main() -> None:
    """Save, save in the background, and load."""
    state = {"model": {f"layers.{i}.w": torch.randn(4096, 4096).to(torch.bfloat16) for i in range(30)}, "step": 1}
    with tempfile.TemporaryDirectory(dir=os.environ.get("CKPTCTL_BENCH_DIR")) as made:
        root = Path(made)
        _compare(
            "save 1 GB",
            {
                "torch.save + fsync + sha256": lambda: _torch_save(root / "a.pt", state),
                "ckptctl.training.save": lambda: _save(root / "a.safetensors", state),
            },
        )
        saver = AsyncSaver()

        def background() -> None:
            saver.save(root / "b.safetensors", state)

        copies, blocked = [], []
        for _ in range(_TIMES):
            copies.append(_seconds(lambda: [one.clone() for one in state["model"].values()]))
            blocked.append(_seconds(background))
            saver.wait()
        print("\nhow long AsyncSaver holds up the loop")
        print(f"  {'clone of the state':40} {statistics.median(copies):7.2f} s")
        print(
            f"  {'AsyncSaver.save, the first time':40} {blocked[0]:7.2f} s   {blocked[0] / copies[0]:5.2f} × the time"
        )
        again = statistics.median(blocked[1:])
        print(f"  {'AsyncSaver.save, later':40} {again:7.2f} s   {again / statistics.median(copies):5.2f} × the time")
        saver.close()
        _compare(
            "load 1 GB",
            {
                "sha256 of the file": lambda: _hashed(root / "a.safetensors"),
                "ckptctl.training.load": lambda: load(root / "a.safetensors"),
            },
        )
