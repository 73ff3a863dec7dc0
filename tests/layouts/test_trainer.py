"""The Hugging Face Trainer over DeepSpeed: the Trainer's step, schedule and random states count."""

from __future__ import annotations

import shutil

import pytest

from ckptctl.checks import resume_gaps
from ckptctl.checks.completeness import completeness
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Component
from ckptctl.model.run import State
from tests.samples import CORPUS

TRAINER = CORPUS / "transformers" / "trainer_run" / "checkpoint-40"
BESIDE = ("trainer_state.json", "config.json", "rng_state.pth", "scheduler.pt", "training_args.bin")


@pytest.fixture
def over_deepspeed(tmp_path):
    path = tmp_path / "checkpoint-40"
    shutil.copytree(CORPUS / "deepspeed" / "zero2_bf16_2ranks", path)
    for name in BESIDE:
        shutil.copyfile(TRAINER / name, path / name)
    return path


def test_its_step_epoch_and_states_are_the_trainers(over_deepspeed):
    found = open_checkpoint(over_deepspeed)
    assert (found.layout, found.path, found.step.value, found.epoch.value) == ("deepspeed", over_deepspeed, 40, 2.5)
    assert {Component.MODEL, Component.OPTIMIZER, Component.SCHEDULER, Component.RNG} <= found.parts.keys()
    assert "rng" not in [gap.where for gap in resume_gaps(found)]
    assert completeness(over_deepspeed).whole


def test_its_commit_mark_is_the_trainers(over_deepspeed):
    (over_deepspeed / "trainer_state.json").unlink()
    assert completeness(over_deepspeed).state is State.UNFINISHED


def test_a_missing_rank_of_deepspeed_is_still_noticed(over_deepspeed):
    next(over_deepspeed.glob("global_step10/*zero_pp_rank_1*")).unlink()
    assert completeness(over_deepspeed).state is State.DAMAGED
