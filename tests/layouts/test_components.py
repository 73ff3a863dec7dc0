"""Which component each part of a checkpoint belongs to, and step, epoch and metric, on what frameworks write."""

from __future__ import annotations

import pytest
import torch

from ckptctl.layouts import open_checkpoint
from tests.samples import CORPUS, entry, safetensors_bytes


def summary(path):
    checkpoint = open_checkpoint(path)
    return {component.value: (part.prefix, len(part.tensors)) for component, part in checkpoint.parts.items()}


LIGHTNING = {"model": ("state_dict", 10), "optimizer": ("optimizer_states", 27), "scheduler": ("lr_schedulers", 0)}
EXPECTED = {
    "torch_save/train_dict.pt": {"model": ("model_state_dict", 10), "optimizer": ("optimizer_state_dict", 27),
                                 "scheduler": ("scheduler_state_dict", 0), "rng": ("rng", 2), "trainer": ("", 0)},
    "torch_save/checkpoint.pth.tar": {"model": ("state_dict", 10), "optimizer": ("optimizer", 9),
                                      "scheduler": ("scheduler", 0), "trainer": ("", 1)},
    "torch_save/bare_state_dict.pth": {"model": ("", 10)},
    "torch_save/compiled_prefix.pt": {"model": ("", 10)},
    "torch_save/tied.pt": {"model": ("", 4)},
    "torch_save/single_tensor.pt": {"other": ("", 1)},
    "torch_save/list_root.pt": {"trainer": ("", 0)},
    "torch_save/empty_dict.pt": {},
    "torch_save/optimizers.pt": {"optimizer": ("optimizers", 293), "scheduler": ("schedulers", 0),
                                 "trainer": ("scaler", 0), "other": ("ema", 11)},
    "numpy1/train_dict_numpy1.pt": {"model": ("model_state_dict", 1), "rng": ("rng", 2), "trainer": ("", 0),
                                    "other": ("array", 1)},
    "transformers/trainer_run/checkpoint-40/optimizer.pt": {"optimizer": ("", 63)},
    "transformers/trainer_run/checkpoint-40/scheduler.pt": {"scheduler": ("", 0)},
    "transformers/trainer_run/checkpoint-40/rng_state.pth": {"rng": ("", 2)},
    "transformers/trainer_run/checkpoint-40/training_args.bin": {"trainer": ("", 0)},
    "accelerate/save_state_1ranks/checkpoints/checkpoint_2/optimizer.bin": {"optimizer": ("", 27)},
    "accelerate/save_state_1ranks/checkpoints/checkpoint_2/scheduler.bin": {"scheduler": ("", 0)},
    "accelerate/save_state_1ranks/checkpoints/checkpoint_2/random_states_0.pkl": {"rng": ("", 2)},
    "accelerate/save_state_1ranks/checkpoints/checkpoint_2/dl_state_dict.bin": {"data": ("", 0)},
    "accelerate/fsdp2_sharded_2ranks.expected.safetensors": {"model": ("model", 10), "optimizer": ("optimizer", 27)},
    "dcp/dcp_fsdp2_2ranks.expected.safetensors": {"model": ("app.model", 10), "optimizer": ("app.optim", 27)},
    "deepspeed/zero2_bf16_2ranks.optim.safetensors": {"optimizer": ("", 10)},
    "fsdp/fsdp2_1d_2ranks/checkpoint-100-rank0.pt": {"model": ("model", 10), "optimizer": ("", 54), "trainer": ("", 0)},
    "lightning/top2_improving/checkpoints/last.ckpt": LIGHTNING,
}  # fmt: skip


@pytest.mark.parametrize("path", EXPECTED)
def test_sorts_what_frameworks_write(path):
    found = summary(CORPUS / path)
    assert EXPECTED[path].items() <= found.items() if "lightning" in path else found == EXPECTED[path]


def test_every_tensor_belongs_to_exactly_one_component():
    for path in CORPUS.glob("torch_save/*.pt"):
        checkpoint = open_checkpoint(path)
        names = [name for part in checkpoint.parts.values() for name in part.tensors]
        assert sorted(names) == sorted(checkpoint.files[0].tensors)


def facts(path):
    checkpoint = open_checkpoint(path)
    step = checkpoint.step and (checkpoint.step.value, checkpoint.step.where)
    epoch = checkpoint.epoch and (checkpoint.epoch.value, checkpoint.epoch.where)
    return step, epoch, {metric.name: round(metric.value, 6) for metric in checkpoint.metrics}


@pytest.mark.parametrize(
    ("path", "step", "epoch", "metrics"),
    [
        ("torch_save/train_dict.pt", (1200, "inside: step"), (3, "inside: epoch"), {"best val_loss": 0.4375, "loss": 1.743251}),
        ("torch_save/checkpoint.pth.tar", None, (5, "inside: epoch"), {"best acc1": 71.5}),
        ("torch_save/tied.pt", None, None, {}),
        ("numpy1/train_dict_numpy1.pt", None, (3, "inside: epoch"), {"best val_loss": 0.25}),
        ("lightning/top2_improving/checkpoints/epoch=3-step=40.ckpt", (40, "inside: global_step"), (3, "inside: epoch"),
         {"best val_loss": None}),
        ("deepspeed/zero2_bf16_2ranks/global_step10/mp_rank_00_model_states.pt", (10, "inside: global_steps"),
         (2, "inside: epoch"), {"best val_loss": None}),
        ("fsdp/fsdp2_1d_2ranks/checkpoint-100-rank0.pt", (100, "inside: step"), None, {}),
        ("megatron/iter_0000100/common.pt", (100, "inside: iteration"), None, {}),
        ("safetensors/run_zero_padded/checkpoint-0001000.safetensors", (1000, "metadata: step"), None, {}),
    ],
)  # fmt: skip
def test_finds_step_epoch_and_metric_and_says_where(path, step, epoch, metrics):
    found = facts(CORPUS / path)
    if step:
        assert found[0] == step or (path.startswith("safetensors/run") and found[0][0] == step[0])
    else:
        assert found[0] is None
    if epoch:
        assert found[1] == epoch
    for name, value in metrics.items():
        assert name in found[2]
        assert value is None or found[2][name] == value


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-1000.safetensors", 1000), ("ckpt_step_0420.safetensors", 420), ("iter_0001000.safetensors", 1000),
        ("epoch=3-step=40.safetensors", 40), ("model.step-7.safetensors", 7), ("checkpoint-5-rank3.safetensors", 5),
        ("resnet18.safetensors", None), ("model-00001-of-00004.safetensors", None), ("gpt2-step.safetensors", None),
        ("step-१२.safetensors", None), ("mystep5.safetensors", None), ("llama-2-7b.safetensors", None),
    ],
)  # fmt: skip
def test_a_step_in_the_name_counts_where_none_is_inside(tmp_path, name, step):
    path = tmp_path / name
    path.write_bytes(safetensors_bytes({"w": entry()}, bytes(8)))
    found = open_checkpoint(path).step
    assert (found and found.value) == step


def test_a_step_inside_outranks_the_name(tmp_path):
    path = tmp_path / "checkpoint-99.safetensors"
    path.write_bytes(safetensors_bytes({"__metadata__": {"step": "12"}, "w": entry()}, bytes(8)))
    assert open_checkpoint(path).step.value == 12


@pytest.mark.parametrize(
    "value", [torch.tensor(7), torch.tensor(7.0), torch.tensor([7], dtype=torch.int16), torch.tensor(7, dtype=torch.bfloat16),
              torch.tensor(7, dtype=torch.float16), torch.tensor(7, dtype=torch.uint8)]
)  # fmt: skip
def test_a_step_may_be_a_tensor(tmp_path, value):
    torch.save({"step": value, "model": {"w": torch.ones(1)}}, tmp_path / "x.pt")
    assert open_checkpoint(tmp_path / "x.pt").step.value == 7


def test_a_metric_may_be_a_numpy_scalar(tmp_path):
    import numpy as np

    torch.save({"best_loss": np.float32(0.5), "model": {"w": torch.ones(1)}, "epoch": np.int64(3)}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert [(metric.name, metric.value) for metric in checkpoint.metrics] == [("best loss", 0.5)]
    assert checkpoint.epoch.value == 3


def test_a_bool_is_no_number(tmp_path):
    torch.save({"step": True, "best_loss": False, "model": {"w": torch.ones(1)}}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert (checkpoint.step, checkpoint.metrics) == (None, ())
