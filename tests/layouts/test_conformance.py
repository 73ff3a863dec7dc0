"""What every layout owes, tried on a real sample of each; a layout without a sample fails here."""

from __future__ import annotations

import pytest

from ckptctl.layouts import LAYOUTS, open_checkpoint
from ckptctl.layouts._layout import scan
from ckptctl.model import Component
from ckptctl.storage import address
from tests.samples import CORPUS
from tests.storage.stores import bucket

SAMPLES = {
    "sharded-index": [
        ("transformers/sharded_llama", 21), ("transformers/v4_sharded_bin_llama", 21),
        ("accelerate/save_model_sharded", 10), ("accelerate/save_model_sharded_bin", 10),
        ("dcp/dcp_hf_1ranks/model.safetensors.index.json", 10),
    ],
    "torch-dcp": [
        ("dcp/dcp_fsdp2_4ranks", 37), ("dcp/dcp_metadata_per_rank_2ranks", 37), ("dcp/dcp_two_threads_2ranks", 37),
        ("lightning/fabric_sharded", 37), ("lightning/trainer_sharded/checkpoints/epoch=0-step=5.ckpt", 38),
        ("megatron/iter_0000100", 3), ("accelerate/fsdp2_sharded_2ranks/checkpoint_0/pytorch_model_fsdp_0", 10),
    ],
    "dcp-safetensors": [("dcp/dcp_hf_distributed_2ranks", 10), ("dcp/dcp_hf_consolidated_4ranks/sharded", 9)],
    "deepspeed": [
        ("deepspeed/zero0_fp32_2ranks", 20), ("deepspeed/zero2_bf16_2ranks", 18), ("deepspeed/zero2_bf16_2ranks/global_step10", 18),
        ("deepspeed/zero3_bf16_2ranks", 18),
    ],
    "accelerate": [
        ("accelerate/fsdp1_sharded_2ranks/checkpoint_0", 37), ("accelerate/fsdp2_sharded_2ranks/checkpoint_0", 37),
        ("accelerate/save_state_1ranks/checkpoints/checkpoint_2", 39), ("accelerate/save_state_2ranks/checkpoints/checkpoint_2", 41),
    ],
    "hf-trainer": [
        ("transformers/trainer_run/checkpoint-40", 86), ("transformers/trainer_bf16_save_only_model/checkpoint-20", 28),
        ("transformers/single_llama", 21), ("transformers/peft_lora", 8), ("transformers/v4_trainer_bin/checkpoint-40", 115),
    ],
    "keras": [("keras/files/model_unzipped", 22), ("keras/files/sharded.weights.json", 6)],
    "orbax": [("orbax/manager/30", 0), ("orbax/manager_zarr3/20", 0)],
    "rank-files": [("fsdp/fsdp2_1d_4ranks", 64), ("fsdp/fsdp1_sharded_tensor_2ranks", 37), ("fsdp/tp_fsdp2_4ranks", 37)],
    "saved-ranks": [("ckptctl/ranks_2/step_100", 42), ("ckptctl/ranks_4/step_100", 46)],
    "single-file": [("torch_save/train_dict.pt", 39), ("safetensors/edge/no_metadata.safetensors", 10)],
}  # fmt: skip


@pytest.fixture(scope="module")
def filled():
    store = bucket("layouts")
    store.fill(CORPUS)
    return address("s3://layouts")


@pytest.fixture(params=["disk", "bucket"])
def corpus(request, filled):
    """Where the samples lie."""
    return CORPUS if request.param == "disk" else filled


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_opens_its_samples(layout, corpus):
    for path, count in SAMPLES[layout.name]:
        checkpoint = open_checkpoint(corpus / path)
        assert checkpoint.layout == layout.name
        assert sum(len(part.tensors) for part in checkpoint.parts.values()) == count
        assert count == 0 or checkpoint.parts[Component.MODEL].tensors
        assert checkpoint.files


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_is_the_first_to_accept_its_samples(layout, corpus):
    for path, _ in SAMPLES[layout.name]:
        assert next(other for other in LAYOUTS if other.accepts(scan(corpus / path))) is layout


SHARDED = sorted(path for path in (CORPUS / "transformers").glob("*sharded_*") if path.is_dir())


@pytest.mark.parametrize("path", SHARDED, ids=lambda path: path.name)
def test_shards_hold_what_the_truth_file_holds(path, corpus):
    from safetensors import safe_open

    with safe_open(path.with_name(f"{path.name}.expected.safetensors"), "np") as truth:
        expected = {
            name: (truth.get_slice(name).get_dtype(), tuple(truth.get_slice(name).get_shape())) for name in truth.keys()
        }
    found = open_checkpoint(corpus / path.relative_to(CORPUS)).parts[Component.MODEL].tensors
    # safetensors stores one name of a tied pair; the truth has both.
    assert {name: (t.dtype.name, t.shape) for name, t in found.items()}.items() <= expected.items()
    assert expected.keys() - found.keys() <= {"lm_head.weight"}
