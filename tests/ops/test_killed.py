"""A conversion that is killed at any call leaves the old state or the finished file, and the next one finishes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import CORPUS

HERE = Path(__file__).parent


@pytest.mark.parametrize("scenario", ["fresh", "force", "shards", "force-shards"])
def test_killed_at_every_call(scenario, tmp_path):
    files = [CORPUS / "torch_save" / name for name in ("compiled_prefix.pt", "tied.pt")]
    done = subprocess.run(
        [sys.executable, HERE / "killed.py", tmp_path, scenario, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert sum(result["killed"] for result in results) >= 30
    assert [result for result in results if result["problems"]] == []


def test_the_check_can_fail(tmp_path):
    """A writer that opens the target itself is found out."""
    code = f"""
import sys
sys.argv = ["killed.py", {str(tmp_path)!r}, "fresh", {str(CORPUS / "torch_save" / "compiled_prefix.pt")!r}]
sys.path.insert(0, {str(HERE)!r})
import killed
real = killed.run
def careless(work, options):
    data = b"".join(open(work / "m.pt", "rb"))
    fd = killed.os.open(work / "m.safetensors", killed.os.O_WRONLY | killed.os.O_CREAT)
    killed.os.write(fd, b"half")
    killed.os.unlink(work / "m.safetensors")
    real(work, killed.Options(force=True))
killed.run = careless
killed.main(killed.Path(sys.argv[1]), "fresh")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "neither old nor new" in done.stdout, done.stderr
