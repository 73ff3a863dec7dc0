"""A conversion that is killed at any call leaves the old state or the finished file, and the next one finishes."""

from __future__ import annotations

import json
import os
import shutil
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


def copied(source, target, old, new):
    """Copy a checkpoint under the number of an older step, an hour older."""
    for path in sorted(source.iterdir()):
        if old in path.name:
            copy = target / path.name.replace(old, new)
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copy)
            for one in [copy, *copy.rglob("*")]:
                os.utime(one, (1e9, 1e9))


def run_of(layout, path):
    """Make a small run of a layout, of real checkpoints."""
    source, number = RUNS[layout]
    shutil.copytree(CORPUS / source, path)
    if number:
        for lower in ("3", "4"):
            copied(CORPUS / source, path, number, lower)
    for name in sorted(path.iterdir()):
        if layout == "files" and "00" in name.name and "102000" not in name.name and "101000" not in name.name:
            name.unlink()


RUNS = {
    "hf-trainer": ("transformers/v4_trainer_safetensors", ""),
    "accelerate": ("accelerate/save_state_2ranks/checkpoints", ""),
    "deepspeed": ("deepspeed/zero1_bf16_2ranks", "10"),
    "megatron": ("megatron", "0000100"),
    "keras": ("keras/model_checkpoint", ""),
    "lightning": ("lightning/top2_last_copy/checkpoints", ""),
    "orbax": ("orbax/manager_zarr3", ""),
    "ranks": ("fsdp/fsdp1_sharded_tensor_2ranks", "100"),
    "files": ("safetensors/run_plain_names", ""),
}


@pytest.mark.parametrize("layout", RUNS)
def test_a_prune_killed_at_every_call(layout, tmp_path):
    run_of(layout, tmp_path / "run")
    command = [sys.executable, HERE / "killed_prune.py", tmp_path, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["victims"] >= 1
    assert sum(result["killed"] for result in found["results"]) >= 6
    assert [result for result in found["results"] if result["problems"]] == []


def test_a_careless_prune_is_found_out(tmp_path):
    """One that deletes without renaming first leaves half a checkpoint under its own name."""
    run_of("hf-trainer", tmp_path / "run")
    code = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import killed_prune
from ckptctl.ops.prune import carry_out
real = carry_out.discard
def careless(directory, names, deadline, for_good):
    for name in names:
        directory.remove(name)
        killed_prune.killed.os.mkdir(directory.path / name)
    return real(directory, names, deadline, for_good=for_good)
carry_out.discard = careless
killed_prune.main(killed_prune.Path({str(tmp_path)!r}), killed_prune.Path({str(tmp_path / "run")!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "is not what it was" in done.stdout + done.stderr


def test_two_prunes_and_a_trainer_at_the_same_time_lose_nothing(tmp_path):
    command = [sys.executable, HERE / "racing.py", tmp_path, "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lost"], found["problems"], found["ended"]) == ([], [], [0, 0, 0])
    assert 5 < len(found["left"]) < found["left"][-1] / 5
