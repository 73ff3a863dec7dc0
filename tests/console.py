"""Examples in the documentation: run them, compare, or fill in what they print (``python -m tests.console``)."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from ckptctl.cli.app import main

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "tour.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
_BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)
_SCRIPT = re.compile(r"`([a-z_]+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)


def rendered(page: str) -> str:
    """Return a page with the output of every example as it is now. What they write is gone afterwards."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        prepared(Path(directory))
        for script, code in _SCRIPT.findall(page):
            (Path(directory) / script).write_text(code)
        os.chdir(directory)
        try:
            return _BLOCK.sub(lambda block: block[1] + _run(block[2]) + block[3], page)
        finally:
            os.chdir(before)


def prepared(place: Path) -> None:
    """Make what the examples are about: the corpus, and a run that may be pruned, saved step by step."""
    (place / "tests").symlink_to(ROOT / "tests")
    directory = place / "runs" / "gpt2"
    shutil.copytree(ROOT / "tests" / "corpus" / "data" / "transformers" / "trainer_run", directory)
    for path in directory.rglob("*"):
        seconds = 1e9 + int(path.relative_to(directory).parts[0].rpartition("-")[2] or 0)
        os.utime(path, (seconds, seconds))


def _run(block: str) -> str:
    return "".join(
        f"{line}\n{output_of(line.removeprefix('$ '))}" for line in block.splitlines() if line.startswith("$ ")
    )


def output_of(command: str) -> str:
    """Return what a command prints, stdout and stderr as a terminal shows them."""
    arguments = shlex.split(command)
    if arguments[0] == "python":
        done = subprocess.run(
            [sys.executable, *arguments[1:]], capture_output=True, text=True, check=True, cwd=os.getcwd()
        )
        return done.stdout
    assert arguments[0] == "ckptctl"
    out = io.StringIO()
    # How old the files are differs from one checkout to the next, how long it takes from one run to the next.
    ages = mock.patch("ckptctl.cli._inspect_run.age", return_value="3 min")
    clocks = [
        mock.patch(f"ckptctl.{module}.time", mock.Mock(monotonic=mock.Mock(side_effect=itertools.count(0, 0.1))))
        for module in ("rewrite.carry_out", "cli._verify_answer")
    ]
    saved = mock.patch("ckptctl.cli._prune_text._saved", return_value="Nov 12 04:10")
    with ages, saved, clocks[0], clocks[1], contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        main(arguments[1:])
    return out.getvalue()


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rendered(path.read_text()))
