"""The page on hooks does what it says, with the real frameworks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ckptctl

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "hooks.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(4))
def test_the_examples_run_resume_keep_and_upload(number, tmp_path):
    assert len(BLOCKS) == 4
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "after the save" not in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    (sent,) = (tmp_path / "archive").iterdir()
    kept, there = ckptctl.find_checkpoints(run), ckptctl.find_checkpoints(sent)
    assert 2 <= len(kept) <= 4 < len(there) + 3
    assert {one.path.name for one in kept} <= {one.path.name for one in there}
    assert all(ckptctl.verify(one.path).bytes.value == "verified" for one in (*kept, *there))
