"""Trainings by real frameworks, with the hooks: killed at random moments, they go on from what verifies.

``nox -s frameworks`` runs this; the test suite itself needs none of them.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ckptctl

HERE = Path(__file__).parent
TRAININGS = {"hf.py": 300, "lit.py": 600, "ker.py": 80}


def train(program, run, steps, upload):
    words = [sys.executable, str(HERE / program), str(run), str(steps), str(upload)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("program", TRAININGS)
def test_a_training_that_is_killed_at_random_times_goes_on_from_what_verifies(program, tmp_path):
    chosen, steps = random.Random(program), TRAININGS[program]
    run, upload = tmp_path / "run", tmp_path / "archive"
    resumed = []
    for _ in range(4):
        process = train(program, run, steps, upload)
        while "resumes from" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        resumed.append(line.strip())
        time.sleep(chosen.uniform(0.2, 1.5))
        process.kill()
        process.communicate()
        found = [one for one in ckptctl.find_checkpoints(run) if one.complete] if run.is_dir() else []
        for one in found[-1:]:
            assert ckptctl.verify(one.path).judgement.value == "good"
    out, err = train(program, run, steps, upload).communicate(timeout=300)
    assert f"ended at {steps}" in out, err
    assert re.search(r"resumes from .*(?:run)", out), (out, resumed)
    left = ckptctl.find_checkpoints(run)
    assert 1 <= len(left) <= 4
    for one in left:
        report = ckptctl.verify(one.path)
        assert (report.judgement.value, report.bytes.value) == ("good", "verified")
    sent = ckptctl.find_checkpoints(upload)
    assert {one.path.name for one in left} <= {one.path.name for one in sent}
    for one in sent:
        assert ckptctl.verify(one.path).bytes.value == "verified"
