"""Whole, unfinished, damaged or not looked into: structure only, and said in plain words."""

from __future__ import annotations

import shutil

import pytest

from ckptctl.checks.completeness import completeness
from ckptctl.checks.marks import base_name
from ckptctl.model.run import State
from tests.samples import CORPUS

DAMAGED = CORPUS / "damaged"


@pytest.mark.parametrize(
    ("name", "state", "why"),
    [
        ("dcp_chunk_missing", State.DAMAGED, "24 of 42 elements"),
        ("dcp_metadata_missing", State.UNFINISHED, ".metadata, which is written last, is missing"),
        ("dcp_shard_file_missing", State.DAMAGED, "__1_0.distcp is missing"),
        ("dcp_shard_file_truncated", State.DAMAGED, "__1_0.distcp is cut at 82543 bytes"),
        ("fsdp_rank_missing", State.DAMAGED, "checkpoint-100-rank2.pt is missing"),
        ("index_escapes_directory", State.DAMAGED, "no name of a file beside it"),
        ("index_names_absent_tensor", State.DAMAGED, "in a shard that does not hold it"),
        ("index_shard_missing", State.DAMAGED, "model-00002-of-00004.safetensors is missing: 6 tensors lost"),
        ("index_shard_truncated", State.DAMAGED, "cut at 4518 of 5648 bytes"),
        ("index_total_size_wrong", State.WHOLE, ""),
        ("legacy_truncated.pt", State.DAMAGED, "cut at 14814 of 21164 bytes"),
        ("pt_all_zero_bytes.pt", State.DAMAGED, "are zero"),
        ("pt_flipped_storage_byte_crc_wrong.pt", State.WHOLE, ""),
        ("pt_storage_record_missing.pt", State.DAMAGED, "record data/3 is missing"),
        ("pt_truncated_half.pt", State.DAMAGED, "cut at 13594"),
        ("pt_truncated_last_bytes.pt", State.DAMAGED, "cut at 27161"),
        ("pt_zero_length.pt", State.UNFINISHED, "it is empty"),
        ("text_named.pt", State.UNKNOWN, "text, not a checkpoint"),
        ("trainer_last_save_cut_short/checkpoint-10", State.WHOLE, ""),
        ("trainer_last_save_cut_short/checkpoint-40", State.UNFINISHED, "trainer_state.json, which is written last"),
        ("trainer_last_save_cut_short/tmp-checkpoint-50", State.UNFINISHED, "temporary name"),
        ("run_with_faults/checkpoint-60000.safetensors.tmp", State.UNFINISHED, "temporary name"),
        ("zero_latest_dangling", State.DAMAGED, "global_step20 is missing, though latest names it"),
        ("zero_optimizer_rank_missing", State.DAMAGED, "rank_1_mp_rank_00_optim_states.pt is missing"),
    ],
)  # fmt: skip
def test_damaged_entries_are_told_apart_and_explained(name, state, why):
    found = completeness(DAMAGED / name)
    assert found.state is state
    assert found.whole is (state is State.WHOLE)
    assert any(why in text for text in found.why) if why else found.why == ()


WHOLE = [
    "transformers/trainer_run/checkpoint-40", "transformers/trainer_bf16_save_only_model/checkpoint-20",
    "transformers/peft_lora", "transformers/sharded_llama", "transformers/v4_trainer_bin/checkpoint-40",
    "accelerate/save_state_2ranks/checkpoints/checkpoint_2", "accelerate/fsdp2_sharded_2ranks/checkpoint_0",
    "accelerate/fsdp1_sharded_2ranks/checkpoint_0", "accelerate/save_model_sharded_bin", "dcp/dcp_fsdp2_4ranks",
    "dcp/dcp_metadata_per_rank_2ranks", "deepspeed/zero3_bf16_2ranks", "deepspeed/zero0_fp32_2ranks",
    "deepspeed/zero2_bf16_round_robin_2ranks", "fsdp/fsdp2_1d_4ranks", "fsdp/fsdp1_local_2ranks",
    "lightning/fabric_sharded", "lightning/trainer_sharded/checkpoints/epoch=0-step=5.ckpt", "megatron/iter_0000100",
    "orbax/manager/30", "orbax/manager_zarr3/20", "torch_save/custom_class.pt", "torch_save/calls_print_on_load.pt",
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_frameworks_finished_is_whole_whatever_classes_it_names(name):
    found = completeness(CORPUS / name)
    assert found.why == ()
    assert found.whole


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt"])
@pytest.mark.parametrize("keep", [0, 100, 0.5, -1])
def test_a_member_that_is_cut_anywhere_is_noticed_without_reading_tensors(tmp_path, name, keep):
    target = tmp_path / "checkpoint-40"
    shutil.copytree(CORPUS / "transformers/trainer_run/checkpoint-40", target)
    size = (target / name).stat().st_size
    with (target / name).open("r+b") as file:
        file.truncate(int(size * keep) if isinstance(keep, float) else keep if keep >= 0 else size + keep)
    found = completeness(target)
    assert found.state is State.DAMAGED
    assert any(name in text for text in found.why)


@pytest.mark.parametrize("rows", [0, 5000])
def test_a_trainers_state_that_is_cut_is_an_unfinished_save(tmp_path, rows):
    import json

    target = tmp_path / "checkpoint-40"
    shutil.copytree(CORPUS / "transformers/trainer_run/checkpoint-40", target)
    path = target / "trainer_state.json"
    state = json.loads(path.read_text())
    state["log_history"] += [{"step": i, "loss": 1.0} for i in range(rows)]
    path.write_text(json.dumps(state, indent=2, sort_keys=True))
    assert completeness(target).whole
    path.write_bytes(path.read_bytes()[:-20])
    found = completeness(target)
    assert found.state is State.UNFINISHED
    assert any("is cut" in text for text in found.why)


def test_marks_of_unfinished_saves_count_whatever_the_files_look_like(tmp_path):
    source = CORPUS / "transformers/trainer_run/checkpoint-40"
    for name in ("a", "b", "tmp-checkpoint-7"):
        shutil.copytree(source, tmp_path / name)
    (tmp_path / "a" / "checkpoint-is-incomplete.txt").touch()
    (tmp_path / "b-unfinished").touch()
    for name, why in (("a", "checkpoint-is-incomplete.txt"), ("b", "b-unfinished"), ("tmp-checkpoint-7", "temporary")):
        found = completeness(tmp_path / name)
        assert found.state is State.UNFINISHED
        assert any(why in text for text in found.why)


def test_an_orbax_save_in_progress_is_unfinished(tmp_path):
    (tmp_path / "30.orbax-checkpoint-tmp-17").mkdir()
    assert completeness(tmp_path / "30.orbax-checkpoint-tmp-17").state is State.UNFINISHED
    (tmp_path / "31.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "31.orbax-checkpoint-tmp" / "state").mkdir()
    assert completeness(tmp_path / "31.orbax-checkpoint-tmp").state is State.UNFINISHED


def test_what_cannot_be_looked_into_is_neither_whole_nor_damaged(tmp_path):
    found = completeness(CORPUS / "torch_save" / "gzipped.pt.gz")
    assert found.state is State.UNKNOWN
    assert not found.whole
    assert completeness(tmp_path / "nothing").state is State.UNKNOWN


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("tmp-checkpoint-5", "checkpoint-5"), ("checkpoint-5.tmp", "checkpoint-5"), (".x.pt.tmp-1a2b", "x.pt"),
        ("30.orbax-checkpoint-tmp-17", "30"), ("step-3-unfinished", "step-3"), ("a.part", "a"),
        ("checkpoint-5", None), ("template.pt", None), ("temp.pt", None), ("temp-model-1.pt", None), ("tmp", None),
    ],
)  # fmt: skip
def test_temporary_names_give_the_name_that_was_meant(name, base):
    assert base_name(name) == base
