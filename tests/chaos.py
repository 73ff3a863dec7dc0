"""Crash the example training at every event of its files, in every mode of ckpt-chaos: ``python -m tests.chaos RANKS``.

``before``: killed just before the event; ``torn``: a file is cut in half at that moment; ``term``: SIGTERM and a grace
period; ``unsynced``: everything that was not flushed is taken back. After each the training is started again, and must
come to the same last loss from the newest checkpoint that was whole. Needs the package ``ckpt-chaos`` (0.1.8).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from tests.console import ROOT

MODES = ("before", "torn", "term", "unsynced")
VERDICTS = ("HARD_FAIL", "SILENT_DIVERGENCE", "LOST_WORK")


def main() -> int:
    """Run it; the exit status is that of ckpt-chaos: 0 if every point passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--points", type=int, default=100_000, help="at most so many, sampled evenly")
    parser.add_argument("--crash-rank", type=int, default=0)
    given = parser.parse_args()
    checkpoints = "step_*.safetensors" if given.ranks == 1 else "step_*"
    training = ["docs/examples/train.py", "{out}", "--steps", "6", "--every", "2", "--keep-all"]
    words = [
        "--modes", given.modes, "--fail-on", ",".join((*VERDICTS, "CONTROL_FAIL")),
        "--checkpoint-glob", f"{{out}}/{checkpoints}", "--ckpt-ignore-size",
        "--step-regex", r"resumed from step (\d+)", "--result-cmd", "tail -n 1 {out}/losses",
        "--max-points", str(given.points),
        *(("--ranks", str(given.ranks), "--crash-rank", str(given.crash_rank)) if given.ranks > 1 else ()),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "ckpt_chaos", "run", "--work", place, *words, "--", sys.executable, *training]
        # Version 0.1.8 crashes no rank but the one that this says, whatever --crash-rank is.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CKPT_CHAOS_CRASH_RANK": str(given.crash_rank)}
        return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
