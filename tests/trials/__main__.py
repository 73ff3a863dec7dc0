"""Long trials: ``python -m tests.trials fuzz --minutes 60``, or any other of them by its name."""

from __future__ import annotations

import sys

from tests.trials import fuzz

TRIALS = {one.__name__.rpartition(".")[2]: one for one in (fuzz,)}

if __name__ == "__main__":
    for line in TRIALS[sys.argv[1]].main(*sys.argv[2:]):
        print(line)
