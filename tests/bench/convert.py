"""Speed and memory of `convert`: ``python -m tests.bench convert``.

The rival is ``torch.load`` and ``save_file`` in a process that has imported both already; its time is that of the two
calls and a flush. Ours is that of the whole command. Inputs of 1 and 4 GB of BF16 lie in the page cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.common import MB, ckptctl, measured, python

MAKE = """
import sys, torch
count = int(sys.argv[2])
torch.save({f"model.layers.{i}.mlp.weight": torch.randn(4096, 4096).to(torch.bfloat16) for i in range(count)}, sys.argv[1])
"""
RIVAL = """
import os, sys, time, torch
from safetensors.torch import save_file
start = time.perf_counter()
save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])
with open(sys.argv[2], "rb+") as file:
    os.fsync(file.fileno())
print(time.perf_counter() - start)
"""
COPY = """
import subprocess, sys, time
start = time.perf_counter()
subprocess.run(["cp", sys.argv[1], sys.argv[2]], check=True)
subprocess.run(["sync", sys.argv[2]], check=True)
print(time.perf_counter() - start)
"""


def compare(gigabytes: int, times: int) -> None:
    """Convert one file in all ways, in turn, and print the medians."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("CKPTCTL_BENCH_DIR")) as name:
        source, target = Path(name) / "m.pt", Path(name) / "out.safetensors"
        subprocess.run(python(MAKE, source, gigabytes * 30), check=True)
        subprocess.run(["sync", source], check=True)
        ways = {
            "torch.load + save_file + flush": python(RIVAL, source, target),
            "cp + flush": python(COPY, source, target),
            "ckptctl convert": ckptctl("convert", source, "-o", target, "--quiet"),
            "ckptctl convert --no-digest": ckptctl("convert", source, "-o", target, "--quiet", "--no-digest"),
            "ckptctl convert --no-check": ckptctl("convert", source, "-o", target, "--quiet", "--no-check"),
        }
        found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
        for _ in range(times):
            for way, command in ways.items():
                subprocess.run(["cat", source], stdout=subprocess.DEVNULL, check=True)
                found[way].append(timed(command))
                for made in Path(name).glob("out*"):
                    made.unlink()
                subprocess.run(["sync"], check=True)
        show(f"{source.name} of {gigabytes} GB of BF16, {gigabytes * 30} tensors", found)


def timed(command: list[str]) -> tuple[float, int]:
    """Seconds and peak of a command; what it prints is its own time, if it prints one."""
    seconds, peak, out = measured(command)
    return (float(out) if out.strip() else seconds), peak


def show(title: str, found: dict[str, list[tuple[float, int]]]) -> None:
    """Print medians, ratios to the rival and to cp, and peaks."""
    seconds = {way: statistics.median(run[0] for run in runs) for way, runs in found.items()}
    rival, copy, *_ = seconds.values()
    print(
        f"\n{title} (targets: 2 × faster than the rival, 2.5 × without digest, at most 1.5 × cp without check, 120 MB)"
    )
    for way, runs in found.items():
        peak = max(run[1] for run in runs) / MB
        ratios = f"{rival / seconds[way]:5.2f} × faster than torch   {seconds[way] / copy:5.2f} × cp"
        print(f"  {way:32} {seconds[way]:7.2f} s   {ratios}   {peak:6.0f} MB")


def main() -> None:
    """Compare at both sizes."""
    compare(1, 5)
    compare(4, 3)


if __name__ == "__main__":
    print(json.dumps({"python": sys.version.split()[0]}))
    main()
