"""A training that was interrupted goes on as if it had not been, bit for bit."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ckptctl.errors import UnsupportedError
from ckptctl.training import ResumableSampler, TrainingState, load, save
from tests.console import ROOT

LOOP = ROOT / "docs" / "examples" / "train.py"


def losses(run: Path, workers: int, stops: tuple[int, ...] = (), steps: int = 18) -> dict[int, str]:
    """The losses by step, of a training that is stopped some times; each step must say the same every time."""
    run.mkdir()
    options = {"workers": workers, "steps": steps, "every": 1}
    for stop in (*stops, -1):
        done = subprocess.run(
            [sys.executable, LOOP, run, *(f"--{key}={value}" for key, value in options.items()), f"--crash-at={stop}"],
            capture_output=True,
            check=False,
        )
        assert done.returncode == (9 if stop > 0 else 0), done.stderr.decode()
    found: dict[int, str] = {}
    for line in (run / "losses").read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss
    return found


@pytest.mark.parametrize(("workers", "stops"), [(0, (3, 7, 14)), (2, (8,))])
def test_resume_is_exact_at_any_step(workers, stops, tmp_path):
    """Steps 7 and 14 end an epoch; the others are in the middle of one."""
    whole = losses(tmp_path / "whole", workers)
    assert len(whole) == 18
    assert losses(tmp_path / "again", workers, stops) == whole


def small(**changes):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return TrainingState(model=model, optimizer=optimizer, **changes)


def test_l09_what_is_missing_is_named(tmp_path):
    state = small().capture()
    del state["rng"]
    del state["optimizer"]
    with pytest.raises(UnsupportedError, match=r"missing: optimizer, rng\.python, rng\.numpy, rng\.torch"):
        small().restore(state)
    assert small().restore(state, strict=False) == ["optimizer", "rng.python", "rng.numpy", "rng.torch"]


def test_the_generators_go_on(tmp_path):
    training = small()
    save(tmp_path / "s.safetensors", training.capture())
    expected = (random.random(), np.random.rand(), torch.rand(3).tolist())
    small().restore(load(tmp_path / "s.safetensors"))
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == expected


def test_the_optimizer_goes_by_name():
    first = small()
    state = first.capture()
    other = small()
    reordered = list(other.model.parameters())[::-1]
    other.optimizer = torch.optim.AdamW([{"params": reordered[:3]}, {"params": reordered[3:]}], lr=7.0)
    other.restore(state)
    mine = {id(p): s for p, s in other.optimizer.state.items()}
    for (name, p), q in zip(other.model.named_parameters(), first.model.parameters(), strict=True):
        assert torch.equal(other.optimizer.state[p]["exp_avg"], first.optimizer.state[q]["exp_avg"]), name
    assert [group["lr"] for group in other.optimizer.param_groups] == [0.1, 0.1]
    assert mine


def test_other_parameters_are_listed():
    state = small().capture()
    other = small()
    other.model.add_module("more", torch.nn.Linear(2, 2))
    other.optimizer = torch.optim.AdamW([*list(other.model.parameters())[1:]])
    state["model"] = other.model.state_dict()
    with pytest.raises(UnsupportedError, match=r"without 0\.weight and with more\.bias, more\.weight"):
        other.restore(state)
    split = small()
    split.optimizer = torch.optim.AdamW([{"params": [p]} for p in split.model.parameters()], lr=0.1)
    with pytest.raises(UnsupportedError, match="are in one group of the optimizer"):
        small().restore(split.capture())
    foreign = small()
    foreign.optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(UnsupportedError, match="1 parameter of the optimizer: not of the model"):
        foreign.capture()


def test_gradients_and_what_is_trained():
    first = small(accumulated=2, best=0.5, step=7, epoch=1, counters={"seen": 3})
    next(first.model.parameters()).requires_grad_(False)
    other = small()
    other.restore(first.capture())
    assert (other.accumulated, other.best, other.step, other.epoch, other.counters) == (2, 0.5, 7, 1, {"seen": 3})
    for one, two in zip(first.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
        assert one.requires_grad == two.requires_grad


def test_hooks_are_told_of():
    training = small()
    assert training.not_captured() == []
    training.model[1].register_forward_hook(lambda *_: None)
    assert training.not_captured() == ["hooks of 1"]


def test_the_sampler_is_a_function_of_seed_epoch_and_what_was_used():
    sampler = ResumableSampler(11, seed=3)
    first = list(sampler)
    assert sorted(first) == list(range(11))
    sampler.advance(4)
    other = ResumableSampler(11, seed=3)
    other.load_state_dict(sampler.state_dict())
    assert (list(other), len(other)) == (first[4:], 7)
    other.next_epoch()
    assert sorted(other) == sorted(first) != list(other) != first
    halves = [ResumableSampler(11, seed=3, rank=rank, world=2) for rank in range(2)]
    assert sorted(index for half in halves for index in half) == sorted(first[:10])
    for half in halves:
        half.advance(3)
    for world, used in ((1, 6), (2, 3), (4, 1)):  # six are used: of four ranks, two see one that was used again
        again = [ResumableSampler(11, seed=3, rank=rank, world=world) for rank in range(world)]
        for one in again:
            one.load_state_dict(halves[0].state_dict())
        assert {one.used for one in again} == {used}
        assert {index for one in again for index in one} == set(first[used * world : 11 // world * world])
    with pytest.raises(ValueError, match="seed is 4 here, and was 3"):
        ResumableSampler(11, seed=4).load_state_dict(sampler.state_dict())
