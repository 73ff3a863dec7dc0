"""Examples in the documentation: run them, compare, or fill in what they print (``python -m tests.console``)."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from unittest import mock

from ckptctl.cli.app import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
_BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)


def rendered(page: str) -> str:
    """Return a page with the output of every example as it is now."""
    return _BLOCK.sub(lambda block: block[1] + _run(block[2]) + block[3], page)


def _run(block: str) -> str:
    return "".join(
        f"{line}\n{output_of(line.removeprefix('$ '))}" for line in block.splitlines() if line.startswith("$ ")
    )


def output_of(command: str) -> str:
    """Return what a command prints, stdout and stderr as a terminal shows them."""
    arguments = shlex.split(command)
    assert arguments[0] == "ckptctl"
    out = io.StringIO()
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        # How old the files are differs from one checkout to the next.
        ages = mock.patch("ckptctl.cli._inspect_run.age", return_value="3 min")
        with ages, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main(arguments[1:])
    finally:
        os.chdir(before)
    return out.getvalue()


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rendered(path.read_text()))
