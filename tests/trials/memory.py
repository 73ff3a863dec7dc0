"""Memory under a hard limit: ``python -m tests.trials memory``. Each command on gigabytes, in a child that may not have them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench import rivals

_LIMIT = 900 << 20
"""Address space: what Python, its libraries and the stacks of threads take is in it."""


def limited(*arguments: object) -> tuple[int, str]:
    """Run the program with an address space that is much smaller than its input."""
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_LIMIT, _LIMIT)),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    return done.returncode, (done.stderr or done.stdout).strip().rpartition("\n")[2][:160]


def main(*_: str) -> list[str]:
    """Run each command on about 2 GB; a status of 0 or, of `diff`, 1 is what is hoped for."""
    lines = ["| command | on | exit |", "| --- | ---: | ---: |"]
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        (root / "make.py").write_text(rivals.MAKE)
        subprocess.run([sys.executable, root / "make.py", root, "60"], check=True)
        one, pickle = root / "a.safetensors", root / "m.pt"
        for what, arguments, good in (
            ("inspect", ["inspect", one, "--tensors"], (0,)),
            ("verify --values", ["verify", one, "--values"], (0,)),
            ("verify --write", ["verify", one, "--write"], (0,)),
            ("verify (CRC)", ["verify", pickle], (0,)),
            ("convert", ["convert", pickle, "-o", root / "out.safetensors"], (0,)),
            ("convert --dtype", ["convert", one, "-o", root / "out32.safetensors", "--dtype", "f32"], (0,)),
            ("consolidate", ["consolidate", root / "rows", "-o", root / "one.safetensors"], (0,)),
            ("diff, equal", ["diff", one, root / "b.safetensors"], (0,)),
            ("diff, all measures", ["diff", one, root / "out32.safetensors", "--dtype-tolerant"], (0, 1)),
        ):
            status, said = limited(*arguments)
            size = sum(
                path.stat().st_size for path in root.rglob("*") if path.is_file() and str(path) in map(str, arguments)
            )
            verdict = str(status) if status in good else f"**{status}**: {said}"
            lines.append(f"| {what} | {max(size, one.stat().st_size) / 1e9:.1f} GB | {verdict} |")
            print(lines[-1], flush=True)
    return lines
