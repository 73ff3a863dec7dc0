"""Keras models in several files."""

from __future__ import annotations

import json
import shutil

import pytest

from ckptctl.checks.completeness import completeness
from ckptctl.errors import CorruptError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Component
from tests.samples import CORPUS

FILES = CORPUS / "keras" / "files"


@pytest.fixture
def sharded(tmp_path):
    for path in FILES.glob("sharded*.weights.*"):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path


def test_shards_are_joined_from_the_directory_too(sharded):
    found = open_checkpoint(sharded)
    assert found.layout == "keras"
    assert [found.parts[Component.MODEL].tensors[f"layers.dense{i}.vars.0"].shape for i in ("", "_1", "_2")] == [
        (40, 160), (160, 160), (160, 160),
    ]  # fmt: skip
    assert completeness(sharded).whole


def test_a_missing_shard_is_named(sharded):
    (sharded / "sharded_00001.weights.h5").unlink()
    assert completeness(sharded).why == ("sharded_00001.weights.h5 is missing",)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({}, "no weight_map"), ({"weight_map": {"/a": ["../x.weights.h5"]}}, "no name of a file beside it"),
        ({"weight_map": {"/a": [3]}}, "no name of a file beside it"), ({"weight_map": {"/a": "x.h5"}}, "none of the 1 shards"),
    ],
)  # fmt: skip
def test_an_index_that_leads_nowhere_is_refused(tmp_path, index, words):
    (tmp_path / "m.weights.json").write_text(json.dumps(index))
    with pytest.raises(CorruptError, match=words):
        open_checkpoint(tmp_path)


def test_an_unzipped_model_has_its_configuration_and_step():
    found = open_checkpoint(FILES / "model_unzipped")
    assert found.parts[Component.TRAINER].values["metadata"]["keras_version"]
    assert found.step.value == 2
