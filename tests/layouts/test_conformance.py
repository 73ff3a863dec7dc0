"""What every layout owes, tried on a real sample of each; a layout without a sample fails here."""

from __future__ import annotations

import pytest

from ckptctl.layouts import LAYOUTS, open_checkpoint
from ckptctl.layouts._layout import scan
from ckptctl.model import Component
from tests.samples import CORPUS

SAMPLES = {
    "sharded-index": [
        ("transformers/sharded_llama", 21), ("transformers/v4_sharded_bin_llama", 21),
        ("accelerate/save_model_sharded", 10), ("accelerate/save_model_sharded_bin", 10),
        ("dcp/dcp_hf_1ranks/model.safetensors.index.json", 10),
    ],
    "single-file": [("torch_save/train_dict.pt", 39), ("safetensors/edge/no_metadata.safetensors", 10)],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_opens_its_samples(layout):
    for path, count in SAMPLES[layout.name]:
        checkpoint = open_checkpoint(CORPUS / path)
        assert checkpoint.layout == layout.name
        assert sum(len(part.tensors) for part in checkpoint.parts.values()) == count
        assert checkpoint.parts[Component.MODEL].tensors
        assert checkpoint.files


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_is_the_first_to_accept_its_samples(layout):
    for path, _ in SAMPLES[layout.name]:
        assert next(other for other in LAYOUTS if other.accepts(scan(CORPUS / path))) is layout


SHARDED = sorted(path for path in (CORPUS / "transformers").glob("*sharded_*") if path.is_dir())


@pytest.mark.parametrize("path", SHARDED, ids=lambda path: path.name)
def test_shards_hold_what_the_truth_file_holds(path):
    from safetensors import safe_open

    with safe_open(path.with_name(f"{path.name}.expected.safetensors"), "np") as truth:
        expected = {
            name: (truth.get_slice(name).get_dtype(), tuple(truth.get_slice(name).get_shape())) for name in truth.keys()
        }
    found = open_checkpoint(path).parts[Component.MODEL].tensors
    # safetensors stores one name of a tied pair; the truth has both.
    assert {name: (t.dtype.name, t.shape) for name, t in found.items()}.items() <= expected.items()
    assert expected.keys() - found.keys() <= {"lm_head.weight"}
