"""What a new user stumbled over, with checkpoints that the frameworks had written that day."""

from __future__ import annotations

import shutil
import sys
import time

import pytest
import torch

from ckptctl.ops.verify import verify
from ckptctl.training import AfterSave, latest_good, load, save
from tests.samples import CORPUS


def flipped(path, at=-1):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_source_that_is_not_what_its_digest_says_is_neither_converted_nor_merged(tmp_path, ckptctl):
    one, shards = tmp_path / "m.safetensors", tmp_path / "shards"
    shutil.copy(CORPUS / "safetensors" / "edge" / "with_metadata.safetensors", one)
    shutil.copytree(CORPUS / "transformers" / "sharded_llama", shards)
    for path in (one, shards):
        assert ckptctl("verify", "--write", path).status == 0
    done = ckptctl("convert", one, "-o", tmp_path / "good.pt")
    assert "bytes checked against 1 digest on record" in done.out
    assert "5 digests on record" in ckptctl("consolidate", shards, "-o", tmp_path / "good.safetensors").out
    flipped(one)
    flipped(shards / "model-00002-of-00004.safetensors")
    for given in (
        ("convert", one, "-o", tmp_path / "bad.pt"),
        ("consolidate", shards, "-o", tmp_path / "bad.safetensors"),
    ):
        done = ckptctl(*given)
        assert (done.status, "the file was changed after its digest was made" in done.err) == (2, True)
        assert not given[-1].exists()
        assert ckptctl(*given, "--no-check").status == 0


def test_the_last_of_the_ranks_is_missed_too(tmp_path, ckptctl):
    run = tmp_path / "run"
    shutil.copytree(CORPUS / "fsdp" / "fsdp2_1d_2ranks", run)
    (run / "expected.safetensors").unlink()
    (run / "checkpoint-100-rank1.pt").unlink()
    raw = torch.load(run / "checkpoint-100-rank0.pt", weights_only=False)
    raw.pop("world_size", None)
    torch.save(raw, run / "checkpoint-100-rank0.pt")
    done = ckptctl("verify", run)
    assert done.status == 1
    assert "a rank is missing" in done.out
    assert "a rank is missing" in ckptctl("inspect", run).out


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("transformers/trainer_run/checkpoint-40", {"model", "optimizer", "scheduler", "rng_state", "trainer_state"}),
        ("accelerate/save_state_1ranks/checkpoints/checkpoint_2", {"model", "optimizer", "scheduler"}),
        ("dcp/dcp_fsdp2_2ranks", {"app", "lr_scheduler", "step", "epoch"}),
        ("fsdp/fsdp2_1d_2ranks", {"model", "optimizer", "step"}),
        ("deepspeed/zero2_bf16_2ranks", {"module", "lr_scheduler"}),
    ],
)
@pytest.mark.filterwarnings("ignore::ckptctl.training.UnverifiedWarning")
def test_what_frameworks_wrote_is_loaded_each_tensor_once_and_nested_as_it_was(path, keys):
    state = load(CORPUS / path)
    assert keys <= set(state)
    assert not any("." in str(key) for key in state if key != "ds_config")
    optimizer = state.get("optimizer") or state.get("app", {}).get("optim")
    if (
        optimizer and "deepspeed" not in path
    ):  # which keeps its groups elsewhere, and moments by the name of their parameter
        assert {"state", "param_groups"} <= set(optimizer)
        assert all("exp_avg" in one for one in optimizer["state"].values())


def test_a_merged_training_state_is_nested_as_the_optimizer_wants_it(tmp_path, ckptctl):
    for name, at in (("fsdp/fsdp2_1d_2ranks", ()), ("dcp/dcp_fsdp2_2ranks", ("app",))):
        out = tmp_path / "all.pt"
        assert ckptctl("consolidate", CORPUS / name, "--only", "all", "-o", out, "--force").status == 0
        made = torch.load(out, weights_only=True)
        for key in at:
            made = made[key]
        optimizer = made.get("optimizer") or made["optim"]
        assert {"state", "param_groups"} == set(optimizer)
        assert "embed.weight" in made["model"]


@pytest.mark.filterwarnings("error")
def test_a_framework_that_saves_to_one_name_again_keeps_its_digest_right(tmp_path):
    after, last = AfterSave(strict=True), tmp_path / "last.ckpt"
    for step in range(3):
        time.sleep(0.02)  # clocks of file systems are coarse
        torch.save({"state_dict": {"w": torch.full((50,), float(step))}, "global_step": step}, last)
        after(last)
        assert verify(last).bytes.value == "verified"
    top = tmp_path / "step=1.ckpt"
    torch.save({"state_dict": {"w": torch.zeros(3)}, "global_step": 1}, top)
    after(top)
    top.unlink()
    after(last)
    assert not top.with_name("step=1.ckpt.sha256").exists()  # its own framework has deleted the file
    directory = tmp_path / "latest"
    for step in range(2):
        time.sleep(0.02)
        directory.mkdir(exist_ok=True)
        torch.save({"w": torch.full((5,), float(step))}, directory / "pytorch_model.bin")
        after(directory)
        assert verify(directory).bytes.value == "verified"


def test_what_nobody_could_look_at_is_not_called_bad(tmp_path, ckptctl, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(CORPUS / "keras" / "files" / "model.keras", run / "model_1.keras")
    monkeypatch.setitem(sys.modules, "h5py", None)
    done = ckptctl("verify", "--latest-good", run)
    assert done.status == 2
    assert "needs h5py" in done.err
    assert "some could not be looked at, and may be good" in done.err


def test_what_lies_in_the_trash_is_not_verified_with_the_run(tmp_path, ckptctl):
    for step in (1, 2, 3):
        save(tmp_path / f"step_{step}.safetensors", {"model": {"w": torch.ones(4)}, "step": step})
    ckptctl("prune", tmp_path, "--keep-last", 1, "--keep-best", 0, "--trash-for", "7d", "--yes")
    done = ckptctl("verify", tmp_path)
    assert ".ckptctl-trash" not in done.out
    assert latest_good(tmp_path).name == "step_3.safetensors"


def test_deepspeed_keeps_a_state_for_each_parameter(ckptctl):
    done = ckptctl("verify", "--resume", CORPUS / "deepspeed" / "zero2_bf16_2ranks")
    assert " of 1 parameters" not in done.out
    assert "state for" in done.out


def test_without_arguments_it_says_what_it_can_do(ckptctl):
    done = ckptctl()
    assert done.status == 2
    assert "which command?" in done.err
    assert "inspect" in done.out + done.err
    assert "ckptctl verify --help" in ckptctl("verify", "--nonsense").err
    assert "a file, not a run" in ckptctl("verify", "--latest-good", __file__).err


def test_the_newest_of_several_files_of_ranks_says_that_it_is_several(tmp_path, ckptctl):
    for rank in range(2):
        shutil.copy(CORPUS / "fsdp" / "fsdp2_1d_2ranks" / f"checkpoint-100-rank{rank}.pt", tmp_path)
    done = ckptctl("verify", "--latest-good", tmp_path)
    assert done.out == f"{tmp_path}/checkpoint-100-rank0.pt\n"
    assert "it is 2 files, one for each rank" in done.err


def test_a_schedule_that_never_was_is_not_missed_and_a_trainer_finds_its_place(tmp_path, ckptctl):
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    path = tmp_path / "m.pt"
    for scheduled in (False, True):
        if scheduled:
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
        torch.save({"model": {"w": weight.data}, "optimizer": optimizer.state_dict(), "step": 1}, path)
        assert ("missing: scheduler" in ckptctl("inspect", path).out) is scheduled
    trainer = CORPUS / "transformers" / "trainer_run" / "checkpoint-40"
    assert "data position" not in ckptctl("inspect", trainer).out
    assert ckptctl("verify", "--require", "exact", trainer).status == 0


def test_of_which_files_nothing_is_on_record_is_said(ckptctl):
    done = ckptctl("verify", CORPUS / "transformers" / "trainer_run" / "checkpoint-40")
    assert "88 CRCs of others verified, unverified: no digest on record of model.safetensors" in done.out
    done = ckptctl("verify", CORPUS / "deepspeed" / "zero3_bf16_gathered_2ranks")
    assert "pytorch_model.bin: no part of this checkpoint, and not looked at" in done.out
    assert "TensorStore, which this version does not read" in ckptctl("verify", CORPUS / "orbax" / "manager").out


def test_a_run_is_no_checkpoint_to_convert(tmp_path, ckptctl):
    done = ckptctl("convert", CORPUS / "transformers" / "trainer_run", "-o", tmp_path / "x")
    assert "a directory of 4 checkpoints, not one" in done.err


@pytest.mark.filterwarnings("ignore")
def test_numbers_that_were_keys_stay_keys_and_lists_stay_lists(tmp_path):
    from torch.distributed.checkpoint import save as save_distributed

    one = torch.arange(4.0)
    optim = {"state": {0: {"exp_avg": one}, 1: {"exp_avg": one + 1}}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}
    save_distributed({"model": {"a.b": one, "a": one + 2}, "optim": optim}, checkpoint_id=tmp_path / "d", no_dist=True)
    state = load(tmp_path / "d")
    assert set(state["optim"]["state"]) == {"0", "1"}  # as torch itself writes and restores them
    assert state["optim"]["param_groups"][0]["params"] == [0, 1]
    assert state["model"]["a.b"].equal(one)
    assert state["model"]["a"].equal(one + 2)
