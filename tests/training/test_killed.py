"""A writer that is killed at any moment leaves a state that loads: the old one, or the new."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
import warnings

import pytest

from ckptctl.training.loading import load

WRITER = """
import sys, torch
from ckptctl.training import AsyncSaver, save
path, background = sys.argv[1], sys.argv[2] == "background"
saver = AsyncSaver()
print("ready", flush=True)
step = 0
while True:
    step += 1
    state = {"step": step, "w": torch.full((1 << 18,), float(step)), "long": [step] * 1000}
    (saver.save if background else save)(path.format(step=step), state)
"""


@pytest.mark.parametrize("name", ["last.safetensors", "step_{step}.safetensors"])
@pytest.mark.parametrize("how", ["at once", "background"])
def test_killed_at_any_moment(name, how, tmp_path):
    chosen = random.Random(len(name) + len(how))
    seen = set()
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path / name, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        writer.stdout.readline()
        time.sleep(chosen.uniform(0.05, 0.4))
        writer.send_signal(signal.SIGKILL)
        _, error = writer.communicate()
        assert error == b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kill may have come between a file that was replaced and its digest
            files = [path for path in tmp_path.iterdir() if path.suffix == ".safetensors"]
            for path in files:
                state = load(path)
                assert set(state["w"].tolist()) == {float(state["step"])} == set(map(float, state["long"]))
                seen.add(state["step"])
    assert seen
    assert len([path for path in tmp_path.iterdir() if path.name.endswith("ckptctl-tmp")]) <= 6
