"""Kill a training at random moments, start it again, and demand the losses of one that was left alone.

``python recovery.py -- python train.py {run}``, where ``{run}`` stands for the directory of the run. The program goes
on from what is there, and appends to RUN/losses a line with step and loss for each step. Exit status 0: every step had
the same loss, bit for bit, every time; 1: not so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def started(command: list[str], run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the training, with all the processes that it starts as one group; none of them outlives this."""
    words = [word.replace("{run}", str(run)) for word in command]
    with subprocess.Popen(words, start_new_session=True) as training:
        try:
            yield training
        finally:
            signal_all(training, signal.SIGKILL)


def signal_all(training: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a training and to all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(training.pid, number)


def losses(run: Path) -> dict[str, str]:
    """Return the loss of each step as text; the steps after a resume have to repeat what was there."""
    found: dict[str, str] = {}
    for line in (run / "losses").read_text().splitlines():
        step, _, loss = line.partition(" ")
        before = found.setdefault(step, loss)
        if before != loss:
            raise ValueError(f"FAIL: step {step}: loss {before}, after a resume {loss}")
    return found


def differing(alone: dict[str, str], found: dict[str, str]) -> str:
    """Return what is not as in the training that was left alone; nothing if it all is."""
    steps = [step for step in {**alone, **found} if alone.get(step) != found.get(step)]
    return f"FAIL: {len(steps)} steps of {len(alone)} are others, the first is {steps[0]}" if steps else ""


def finish(command: list[str], run: Path) -> None:
    """Let the training come to its end."""
    with started(command, run) as training:
        status = training.wait()
    if status:
        raise ValueError(f"FAIL: it ended with status {status}")


def lines(run: Path) -> int:
    """Return how many steps have been written down."""
    return (run / "losses").read_bytes().count(b"\n") if (run / "losses").exists() else 0


def interrupted(command: list[str], run: Path, how: signal.Signals, moments: list[tuple[int, float]]) -> int:
    """Interrupt the training after so many more steps and seconds, then let it end; return how often it was hit."""
    hits = 0
    for steps, seconds in moments:
        before = lines(run)
        with started(command, run) as training:
            while training.poll() is None and lines(run) < before + steps:
                time.sleep(0.001)
            time.sleep(seconds)
            hits += training.poll() is None
            signal_all(training, how)
            training.wait()
    finish(command, run)
    return hits


def main() -> int:
    """Run it all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kills", type=int, default=4, help="how often in a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    chosen = random.Random(given.seed)
    failed = hits = 0
    with tempfile.TemporaryDirectory() as place:
        finish(given.command, Path(place, "alone"))
        alone = losses(Path(place, "alone"))
        most = max(1, len(alone) // (given.kills + 1))
        for number in range(1, given.rounds + 1):
            how = (signal.SIGKILL, signal.SIGTERM)[number % 2]
            moments = [(chosen.randint(1, most), chosen.uniform(0, 0.02)) for _ in range(given.kills)]
            run = Path(place, str(number))
            try:
                hit = interrupted(given.command, run, how, moments)
                wrong = differing(alone, losses(run))
            except ValueError as error:
                hit, wrong = 0, str(error)
            hits += hit
            failed += bool(wrong)
            print(f"round {number}: {wrong or 'PASS'} ({how.name}, hit {hit} of {given.kills} times)", flush=True)
    if not hits:
        print("it was never hit: give it more steps")
    return int(bool(failed) or not hits)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(str(error))
