"""Running commands in turn, with time and peak memory of each from a small parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
