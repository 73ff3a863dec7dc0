"""Distributed checkpoints with safetensors inside: the blocks that are found hold the bytes of the truth."""

from __future__ import annotations

import shutil

import pytest

from ckptctl.checks.completeness import completeness
from ckptctl.errors import CorruptError
from ckptctl.layouts import open_checkpoint
from ckptctl.model.run import State
from tests.samples import CORPUS, safetensors_bytes, values_of

DCP = CORPUS / "dcp"


@pytest.mark.parametrize(
    "name",
    [
        "dcp_safetensors_items_1ranks",
        "dcp_safetensors_items_2ranks",
        "dcp_hf_distributed_2ranks",
        "dcp_hf_distributed_4ranks",
    ],
)
def test_blocks_at_their_offsets_make_the_truth(name):
    from safetensors.numpy import load_file

    truth = load_file(DCP / f"{name}.expected.safetensors")
    checkpoint = open_checkpoint(DCP / name)
    found = {key: tensor for part in checkpoint.parts.values() for key, tensor in part.tensors.items()}
    assert checkpoint.findings == ()
    assert {key: (t.shape, bytes(values_of(t))) for key, t in found.items()} == {
        key: (array.shape, array.tobytes()) for key, array in truth.items()
    }


def test_tensors_in_different_items_are_not_tied(ckptctl):
    assert "share storage" not in ckptctl("inspect", DCP / "dcp_safetensors_items_2ranks").out


@pytest.fixture
def copy(tmp_path):
    def make(name):
        shutil.copytree(DCP / name, tmp_path / name)
        return tmp_path / name

    return make


def test_a_safetensors_item_file_that_is_cut_or_belongs_to_another_save_is_noticed(copy):
    path = copy("dcp_safetensors_items_2ranks")
    data = (path / "__1_0.distcp").read_bytes()
    (path / "__1_0.distcp").write_bytes(data[:-5])
    found = completeness(path)
    assert found.state is State.DAMAGED
    assert "__1_0.distcp: cut at" in found.why[0]
    shutil.copyfile(path / "__0_0.distcp", path / "__1_0.distcp")
    assert "__1_0.distcp does not hold a block of model.embed.weight of the shape [3, 6]" in completeness(path).why


@pytest.mark.parametrize(
    "lost", ["shard-00001-model-00002-of-00002.safetensors", "shard-00002-model-00001-of-00002.safetensors"]
)
def test_a_missing_shard_of_any_rank_is_named(copy, lost):
    path = copy("dcp_hf_distributed_4ranks")
    (path / lost).unlink()
    found = completeness(path)
    assert found.state is State.DAMAGED
    assert found.why[0] == f"{lost} is missing"
    assert any("elements" in why for why in found.why)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "no DCP_SHARDING_INFO"), ({"DCP_SHARDING_INFO": "[" * 99_999}, "no DCP_SHARDING_INFO"),
        ({"DCP_SHARDING_INFO": "{}"}, "does not say where a begins"),
        ({"DCP_SHARDING_INFO": '{"a": {"saved_offsets": [-1]}}'}, "does not say where a begins"),
        ({"DCP_SHARDING_INFO": '{"a": {"saved_offsets": [0, 0]}}'}, "does not say where a begins"),
    ],
)  # fmt: skip
def test_shards_that_do_not_say_where_they_belong_are_refused(tmp_path, metadata, words):
    header = {"__metadata__": metadata, "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    (tmp_path / "shard-00001-model-00001-of-00001.safetensors").write_bytes(safetensors_bytes(header, b"ab"))
    with pytest.raises(CorruptError, match=words):
        open_checkpoint(tmp_path)


def test_names_that_promise_millions_of_shards_are_refused(tmp_path):
    shutil.copyfile(
        DCP / "dcp_hf_distributed_2ranks" / "shard-00001-model-00001-of-00002.safetensors",
        tmp_path / "shard-999999-model-00001-of-999999.safetensors",
    )
    with pytest.raises(CorruptError, match="promise"):
        open_checkpoint(tmp_path)
