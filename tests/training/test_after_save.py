"""`AfterSave`: digests, a look, upload, retention, in this order; and what does not pass costs nothing else."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

import ckptctl
from ckptctl.errors import CorruptError, MissingExtraError, UnreadableError
from ckptctl.training import AfterSave, Policy, latest_good
from tests.training.processes import run as run_processes

LAST = Policy(last=2, best=0, anchor_every=0)


def saved(run, step):
    run.mkdir(exist_ok=True)
    path = run / f"step_{step}.pt"
    torch.save({"step": step, "w": torch.full((50,), float(step))}, path)
    return path


def names(path):
    return sorted(one.name for one in path.iterdir() if not one.name.startswith("."))


def test_all_of_it(tmp_path):
    run = tmp_path / "run"
    with AfterSave(policy=LAST, upload_to=tmp_path / "archive") as after:
        for step in range(1, 6):
            after(saved(run, step))
    assert len(names(tmp_path / "archive")) == 10
    assert set(names(run)) >= {"step_4.pt", "step_4.pt.sha256", "step_5.pt", "step_5.pt.sha256"}
    assert ckptctl.latest_good(run) == latest_good(run) == run / "step_5.pt"
    assert all(ckptctl.verify(one.path).bytes.value == "verified" for one in ckptctl.find_checkpoints(run))


def test_what_does_not_pass_is_warned_of_and_costs_nothing(tmp_path):
    run = tmp_path / "run"
    after = AfterSave(policy=LAST, upload_to=tmp_path / "archive")
    for step in (1, 2):
        after(saved(run, step))
    bad = saved(run, 3)
    bad.write_bytes(bad.read_bytes()[:-200])
    with pytest.warns(UserWarning, match=r"after the save of .*step_3.pt: .*ckptctl verify shows all of it"):
        after(bad)
    after.close()
    assert {"step_1.pt", "step_2.pt", "step_3.pt"} <= set(names(run))
    assert not any("step_3" in name for name in names(tmp_path / "archive"))
    with pytest.raises(CorruptError):
        AfterSave(strict=True)(bad)


def test_an_upload_that_cannot_be_made_is_said_at_the_end(tmp_path):
    run = tmp_path / "run"
    (tmp_path / "archive").write_text("a file, where a directory is needed")
    after = AfterSave(upload_to=tmp_path / "archive")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        after(saved(run, 1))
        uploader = next(iter(after._uploaders.values()))
        uploader.drain_seconds = 0.5
        with pytest.raises(UnreadableError, match="1 checkpoint not uploaded"):
            after.close()
    assert any("not uploaded" in str(one.message) for one in found)
    assert (run / "step_1.pt").exists()


def test_of_several_processes_one_does_the_work_when_all_have_come(tmp_path):
    program = """
from ckptctl.training import AfterSave, Policy
import time
path.mkdir(exist_ok=True)
with AfterSave(policy=Policy(last=1, best=0, anchor_every=0)) as after:
    for step in (1, 2, 3):
        time.sleep(0.1 * rank)
        save(path / f"step_{step}", {"step": step, "own": torch.full((3,), float(rank))})
        after(path / f"step_{step}")
        assert (path / f"step_{step}" / "SHA256SUMS").exists() or (path / f"step_{step}" / "manifest.json").exists()
"""
    run_processes(program, 2, tmp_path / "run")
    assert names(tmp_path / "run")[-1] == "step_3"
    assert len(names(tmp_path / "run")) <= 2


@pytest.mark.parametrize("name", ["transformers", "lightning", "keras"])
def test_a_framework_that_is_missing_is_named(name):
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("transformers", "lightning", "pytorch_lightning", "keras"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import ckptctl.training.hooks.{name}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{name} is not installed" in done.stderr
    assert MissingExtraError.__name__ in done.stderr
