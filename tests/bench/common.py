"""Running commands in turn, with time and peak memory of each from a small parent."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MEASURE = Path(__file__).parent.parent / "measure.py"
MB = 1_000_000


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs some code."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def ckptctl(*arguments: object) -> list[str]:
    """The program itself."""
    return [str(Path(sys.executable).with_name("ckptctl")), *map(str, arguments)]


def measured(command: list[str]) -> tuple[float, int, str]:
    """Seconds, peak memory in bytes and output of a command, which must succeed."""
    # The bytecode of an installed package is there already; let that of a working copy be written.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, MEASURE, *command], capture_output=True, text=True, check=True, env=env)
    result = json.loads(done.stdout)
    if result["status"]:
        raise SystemExit(f"{command}: {result['err']}")
    return result["seconds"], result["peak"], result["out"]


def compare(title: str, ways: dict[str, list[str]], times: int = 5, clean: Callable[[], None] = lambda: None) -> None:
    """Run commands in turn; print medians, with the speed relative to the first. `clean` removes what they made.

    A command that prints a number of seconds has measured itself.
    """
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
    for _ in range(times):
        for way, command in ways.items():
            seconds, peak, out = measured(command)
            own = out.strip().replace(".", "", 1).isdigit()
            found[way].append((float(out) if own else seconds, peak))
            clean()
    medians = {way: statistics.median(seconds for seconds, _ in runs) for way, runs in found.items()}
    first = next(iter(medians.values()))
    print(f"\n{title}")
    for way, runs in found.items():
        peak = max(peak for _, peak in runs) / MB
        print(f"  {way:40} {medians[way]:7.2f} s   {first / medians[way]:5.2f} × the speed   {peak:6.0f} MB")
