"""The page on torchrun does what it says: a worker is killed, the group comes back; then another number of workers."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from ckptctl.layouts import open_checkpoint
from tests.console import ROOT

PAGE = (ROOT / "docs" / "how-to" / "restart-under-torchrun.md").read_text()
TWO, ONE, BY_HAND = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)
BIN = Path(sys.executable).parent


def start(command: str, where: Path) -> subprocess.Popen:
    (where / "train.py").write_text((ROOT / "docs" / "examples" / "train.py").read_text())
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    words = ["sh", "-ec", command.replace("torchrun ", "exec torchrun ")]
    return subprocess.Popen(words, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def workers(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return sorted(found)


def losses(run: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (run / "losses").read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(step, loss) == loss, f"step {step} had another loss"
    return found


def end(training: subprocess.Popen) -> str:
    out, err = training.communicate(timeout=200)
    assert training.returncode == 0, err[-3000:]
    return out


def test_a_worker_is_killed_and_the_group_comes_back_then_goes_on_as_one(tmp_path, ckptctl):
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for where in (alone, killed):
        where.mkdir()
    end(start(TWO, alone))
    training = start(TWO, killed)
    for number, least in enumerate((12, 31)):
        limit = time.monotonic() + 100
        while (
            not (killed / "runs/x/losses").exists() or len((killed / "runs/x/losses").read_text().split("\n")) < least
        ):
            assert time.monotonic() < limit
            assert training.poll() is None
            time.sleep(0.005)
        os.kill(workers(training.pid)[-1 - number], signal.SIGKILL)
    said = end(training)
    resumed = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("resumed from step")]
    assert 0 == resumed[0] < resumed[1] < resumed[2]
    assert set(resumed[3:]) <= {60}  # now and then torch aborts a process that is finished, and it is started once more
    assert losses(killed / "runs/x") == losses(alone / "runs/x")

    assert "resumed from step 60" in end(start(ONE, killed))
    found = losses(killed / "runs/x")
    assert list(found) == [str(step) for step in range(1, 91)]
    checkpoint = open_checkpoint(killed / "runs/x/step_90")
    assert len([one for one in checkpoint.files if one.range.file.path.name.startswith("rank")]) == 1
    whole = killed / "runs/x/restart.safetensors"
    for component in ("model", "optimizer", "rng", "data"):
        assert ckptctl("diff", alone / "runs/x/step_60", whole, "--only", component).status == 0

    by_hand = BY_HAND.replace(
        "$(ckptctl verify --latest-good runs/x)", ckptctl("verify", "--latest-good", alone / "runs/x").out.strip()
    )
    assert (
        ckptctl(*shlex.split(by_hand.replace("whole.safetensors", str(tmp_path / "whole.safetensors")))[1:]).status == 0
    )
    assert ckptctl("diff", alone / "runs/x/step_60", tmp_path / "whole.safetensors").status == 0


def test_the_code_on_the_page_is_that_of_the_example():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    example = re.sub(r"\s+", " ", (ROOT / "docs" / "examples" / "train.py").read_text())
    for line in ("good = latest_good(run) # the same on every rank", "except UnsupportedError: # it is sharded over another number of ranks",
                 "consolidate(good, whole, wanted=Wanted(only=None), options=Options(force=True)) dist.barrier()"):  # fmt: skip
        assert line in example
        assert line in re.sub(r"\s+", " ", code)
