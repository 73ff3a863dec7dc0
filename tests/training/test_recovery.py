"""The script that kills a training finds what goes wrong, and passes what does not."""

from __future__ import annotations

import subprocess
import sys

from tests.console import ROOT

EXAMPLES = ROOT / "docs" / "examples"
FORGETFUL = """
import pathlib, sys, time
run = pathlib.Path(sys.argv[1]); run.mkdir(exist_ok=True)
done = run / "done"
first = int(done.read_text()) if done.exists() else 0
for step in range(first, 60):
    time.sleep(0.01)
    with (run / "losses").open("a") as file:
        file.write(f"{step} {SAID}\\n")
    done.write_text(str(step + 1))
"""


def recovery(*words):
    return subprocess.run(
        [sys.executable, EXAMPLES / "recovery.py", *words], capture_output=True, text=True, check=False
    )


def test_l12_the_example_training_passes():
    """Killed by either signal at random moments, in saves and evaluations too, it comes to the same losses."""
    done = recovery("--rounds=2", "--kills=2", "--", sys.executable, EXAMPLES / "train.py", "{run}", "--steps=60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS") == 2


def test_a_training_that_begins_its_random_numbers_anew_is_found(tmp_path):
    (tmp_path / "bad.py").write_text(FORGETFUL.replace("SAID", "step - first"))
    done = recovery("--rounds=1", "--kills=3", "--", sys.executable, tmp_path / "bad.py", "{run}")
    assert done.returncode == 1
    assert "FAIL" in done.stdout


def test_a_training_that_fails_is_said_to():
    done = recovery("--rounds=1", "--", sys.executable, "-c", "raise SystemExit(3)", "{run}")
    assert done.returncode == 1
    assert "status 3" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
