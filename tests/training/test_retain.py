"""Retention in the loop is that of the command: what no rule keeps goes, after the save."""

from __future__ import annotations

import pytest
import torch

from ckptctl.errors import PolicyError, UnknownFormatError
from ckptctl.storage.directory import Directory
from ckptctl.training import Policy, load, prune, save

LAST_TWO = Policy(last=2, best=0, anchor_every=0)


def steps(run):
    return sorted(int(path.stem.removeprefix("step_")) for path in run.glob("*.safetensors"))


def test_a_loop_keeps_what_the_rules_say(tmp_path):
    gone = []
    for step in range(1, 8):
        save(tmp_path / f"step_{step}.safetensors", {"w": torch.ones(step), "step": step})
        gone += prune(tmp_path, Policy(last=2, best=0, anchor_every=3)).deleted
    assert steps(tmp_path) == [3, 6, 7]
    assert sorted(path.name for path in gone) == [f"step_{step}.safetensors" for step in (1, 2, 4, 5)]
    assert sorted(path.name for path in tmp_path.glob("*.sha256")) == [
        f"step_{step}.safetensors.sha256" for step in (3, 6, 7)
    ]
    assert load(tmp_path)["step"] == 7


def test_runs_below_are_not_looked_into(tmp_path):
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        for step in range(4):
            save(tmp_path / run / f"step_{step}.safetensors", {"step": step})
    with pytest.raises(UnknownFormatError, match="not a run"):
        prune(tmp_path, LAST_TWO)
    assert steps(tmp_path / "a") == steps(tmp_path / "b") == [0, 1, 2, 3]


def test_training_goes_on_while_somebody_else_prunes(tmp_path):
    for step in range(4):
        save(tmp_path / f"step_{step}.safetensors", {"step": step})
    with Directory(tmp_path) as other:
        other.lock(wait=False, needed=True)
        with pytest.warns(UserWarning, match="nothing is deleted"):
            assert prune(tmp_path, LAST_TWO).count == 0
    assert steps(tmp_path) == [0, 1, 2, 3]
    assert prune(tmp_path, LAST_TWO).count == 2


def test_a_metric_that_nothing_has_is_refused(tmp_path):
    for step in range(4):
        save(tmp_path / f"step_{step}.safetensors", {"step": step})
    with pytest.raises(PolicyError, match="nope"):
        prune(tmp_path, Policy(last=1, metric="nope"))
    assert steps(tmp_path) == [0, 1, 2, 3]
