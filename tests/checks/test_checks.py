"""What a resume would lack, and what optimizers and schedules are, on their real states."""

from __future__ import annotations

import pytest
import torch

from ckptctl.checks import optimizer_kind, optimizer_slots, resume_gaps, rng_kinds, scheduler_summary
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Component
from tests.samples import CORPUS


def saved(tmp_path, **tree):
    torch.save(tree, tmp_path / "x.pt")
    return open_checkpoint(tmp_path / "x.pt")


def trained(cls, **options):
    model = torch.nn.Linear(3, 2)
    optimizer = cls(model.parameters(), **{"lr": 0.1, **options})
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


KINDS = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}, ["momentum_buffer"]),
    "AdamW": (torch.optim.AdamW, {}, ["exp_avg", "exp_avg_sq"]),
    "Adam": (torch.optim.Adam, {"amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    "NAdam": (torch.optim.NAdam, {}, ["mu_product", "exp_avg", "exp_avg_sq"]),
    "Adamax": (torch.optim.Adamax, {}, ["exp_avg", "exp_inf"]),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.5}, ["square_avg", "momentum_buffer"]),
    "Adagrad": (torch.optim.Adagrad, {}, ["sum"]),
    "Adadelta": (torch.optim.Adadelta, {}, ["square_avg", "acc_delta"]),
    "Adafactor": (torch.optim.Adafactor, {}, ["row_var", "col_var", "variance"]),
    "Rprop": (torch.optim.Rprop, {}, ["prev", "step_size"]),
    "ASGD": (torch.optim.ASGD, {}, ["eta", "mu", "ax"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_knows_the_optimizers_of_torch(tmp_path, kind):
    cls, options, slots = KINDS[kind]
    _, optimizer = trained(cls, **options)
    part = saved(tmp_path, optimizer=optimizer.state_dict(), epoch=1).parts[Component.OPTIMIZER]
    assert optimizer_kind(part) == kind
    assert sorted(slot.name for slot in optimizer_slots(part) if slot.name != "step") == sorted(slots)


def test_an_adam_of_older_torch_is_not_guessed(tmp_path):
    _, optimizer = trained(torch.optim.Adam)
    state = optimizer.state_dict()
    del state["param_groups"][0]["decoupled_weight_decay"]
    assert optimizer_kind(saved(tmp_path, optimizer=state, step=1).parts[Component.OPTIMIZER]) == "Adam or AdamW"


def test_slots_add_up(tmp_path):
    _, optimizer = trained(torch.optim.AdamW)
    slots = {slot.name: (slot.tensors, slot.nbytes) for slot in optimizer_slots(
        saved(tmp_path, optimizer=optimizer.state_dict(), step=1).parts[Component.OPTIMIZER])}  # fmt: skip
    assert slots == {"step": (2, 8), "exp_avg": (2, 32), "exp_avg_sq": (2, 32)}


def test_master_weights_of_deepspeed_have_a_slot_of_their_own():
    path = "deepspeed/zero2_bf16_2ranks/global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    part = open_checkpoint(CORPUS / path).parts[Component.OPTIMIZER]
    assert {"master", "exp_avg", "exp_avg_sq"} <= {slot.name for slot in optimizer_slots(part)}


@pytest.mark.parametrize(
    ("make", "summary"),
    [
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10), "cosine, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3), "cosine, warm restarts, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), "one cycle, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.StepLR(o, 3), "step, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4]), "steps, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1), "lambda, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o), "plateau, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.LinearLR(o), "linear, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), "exponential, last_epoch 0"),
        (lambda o: torch.optim.lr_scheduler.PolynomialLR(o), "polynomial, last_epoch 0"),
    ],
)
def test_knows_the_schedules_of_torch(tmp_path, make, summary):
    _, optimizer = trained(torch.optim.SGD, momentum=0.9)
    part = saved(tmp_path, scheduler=make(optimizer).state_dict(), step=1).parts[Component.SCHEDULER]
    assert scheduler_summary(part) == summary


def gaps(checkpoint):
    return {finding.where for finding in resume_gaps(checkpoint)}


def test_a_complete_checkpoint_lacks_nothing(tmp_path):
    model, optimizer = trained(torch.optim.AdamW)
    rng = {"torch": torch.get_rng_state(), "numpy": (1,), "python": (2,), "cuda": [torch.get_rng_state()]}
    checkpoint = saved(tmp_path, model=model.state_dict(), optimizer=optimizer.state_dict(), scheduler={"last_epoch": 1},
                       step=3, rng=rng, sampler={"position": 4})  # fmt: skip
    assert gaps(checkpoint) == set()


def test_each_missing_part_is_named(tmp_path):
    model, optimizer = trained(torch.optim.AdamW)
    checkpoint = saved(tmp_path, model=model.state_dict(), optimizer=optimizer.state_dict())
    assert gaps(checkpoint) == {"step", "rng", "data position"}  # and no schedule was used
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    checkpoint = saved(tmp_path, model=model.state_dict(), optimizer=optimizer.state_dict())
    assert gaps(checkpoint) == {"scheduler", "step", "rng", "data position"}
    checkpoint = saved(tmp_path, model=model.state_dict(), step=5, rng_state=torch.get_rng_state())
    assert gaps(checkpoint) == {"optimizer", "scheduler", "data position", "python rng", "numpy rng", "cuda rng"}


def test_weights_alone_say_it_in_one_line():
    assert gaps(open_checkpoint(CORPUS / "torch_save" / "tied.pt")) == {"all but weights"}


def test_a_lone_component_lacks_nothing_that_it_should_have():
    path = CORPUS / "transformers/trainer_run/checkpoint-40/optimizer.pt"
    assert gaps(open_checkpoint(path)) == set()


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("torch_save/train_dict.pt", ("python", "numpy", "torch")),
        ("transformers/trainer_run/checkpoint-40/rng_state.pth", ("python", "numpy", "torch")),
        ("accelerate/save_state_1ranks/checkpoints/checkpoint_2/random_states_0.pkl", ("python", "numpy", "torch")),
    ],
)
def test_knows_whose_random_states_are_there(path, kinds):
    assert rng_kinds(open_checkpoint(CORPUS / path).parts[Component.RNG]) == kinds
