"""An index against its shards: what must be refused, and what is only worth saying."""

from __future__ import annotations

import json

import pytest
import torch

from ckptctl.errors import CkptctlError, CorruptError, LimitError
from ckptctl.layouts import open_checkpoint
from ckptctl.layouts._index import _MAX_INDEX
from ckptctl.model import Component, Severity
from ckptctl.values import TensorRef
from tests.samples import entry, safetensors_bytes

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shard(*names: str) -> bytes:
    header = {name: entry(begin=8 * i, end=8 * i + 8) for i, name in enumerate(names)}
    return safetensors_bytes(header, bytes(8 * len(names)))


@pytest.fixture
def directory(tmp_path):
    (tmp_path / ONE).write_bytes(shard("a", "b"))
    (tmp_path / TWO).write_bytes(shard("c"))
    return tmp_path


def write(directory, weight_map, **extra):
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map, **extra}))
    return index


GOOD = {"a": ONE, "b": ONE, "c": TWO}


def test_a_directory_and_its_index_open_alike(directory):
    index = write(directory, GOOD)
    for path in (directory, index):
        checkpoint = open_checkpoint(path)
        assert list(checkpoint.parts[Component.MODEL].tensors) == ["a", "b", "c"]
        assert checkpoint.findings == ()
        assert len(checkpoint.files) == 2


def slugs(path):
    return [(finding.severity, finding.slug) for finding in open_checkpoint(path).findings]


def test_a_missing_shard_is_an_error_that_names_what_is_lost(directory):
    write(directory, GOOD)
    (directory / ONE).unlink()
    (finding,) = open_checkpoint(directory).findings
    assert (finding.severity, finding.slug) == (Severity.ERROR, "missing-shard")
    assert "2 tensors lost (the first is a)" in finding.message


def test_no_shard_at_all_is_refused(directory):
    write(directory, GOOD)
    (directory / ONE).unlink()
    (directory / TWO).unlink()
    with pytest.raises(CorruptError, match="none of the 2 shards"):
        open_checkpoint(directory)


def test_tensors_that_the_index_leaves_out_are_said(directory):
    write(directory, {"a": ONE, "c": TWO})
    assert slugs(directory) == [(Severity.WARNING, "unlisted-tensor"), (Severity.WARNING, "total-size")]


def test_a_tensor_in_two_shards_is_an_error(directory):
    (directory / TWO).write_bytes(shard("c", "a"))
    write(directory, GOOD)
    assert slugs(directory) == [(Severity.ERROR, "duplicate-tensor")]


@pytest.mark.parametrize("size", [0, 23, 25, "24", None])
def test_a_wrong_total_is_said(directory, size):
    write(directory, GOOD, metadata={"total_size": size})
    assert slugs(directory) == ([] if size is None else [(Severity.WARNING, "total-size")])


def test_an_index_without_metadata_is_read(directory):
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": GOOD}))
    assert slugs(directory) == []


def test_the_safetensors_index_is_preferred_and_the_other_mentioned(directory):
    write(directory, GOOD)
    (directory / "pytorch_model.bin.index.json").write_text("{}")
    assert slugs(directory) == [(Severity.WARNING, "several-indexes")]


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        ".",
        "",
        "a\\b",
        "a\0b",
        "a\nb",
        "x" * 256,
        "a\u202eb",
    ],
)
def test_names_that_are_no_plain_file_names_are_refused(directory, name):
    write(directory, {**GOOD, "d": name})
    with pytest.raises(CorruptError, match="no name of a file beside it"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": null}}',
     '{"weight_map": {"a": {"b": "c"}}}', '{"weight_map": NaN}', "{'a': 1}", '{"weight_map": {"\\ud800": "x"}}', "[" * 100_000],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_a_malformed_index_is_refused(directory, text):
    (directory / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CkptctlError):
        open_checkpoint(directory)


def test_a_name_placed_twice_is_refused(directory):
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "%s", "a": "%s"}}' % (ONE, TWO))
    with pytest.raises(CorruptError, match="places a in two shards"):
        open_checkpoint(directory)


def test_an_index_of_another_save_is_refused(directory):
    write(directory, {**GOOD, "d": ONE, "e": TWO})
    with pytest.raises(CorruptError, match=r"places 2 tensors in a shard .*\(the first is d, in model-00001"):
        open_checkpoint(directory)


def test_a_huge_index_is_refused(directory):
    index = write(directory, GOOD)
    with index.open("r+b") as f:
        f.truncate(_MAX_INDEX + 1)
    with pytest.raises(LimitError, match="an index of"):
        open_checkpoint(directory)


def test_a_directory_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(CkptctlError, match="an empty directory"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CkptctlError, match="no checkpoint in a layout"):
        open_checkpoint(tmp_path)


def test_plain_values_in_pickled_shards_are_part_of_the_whole(ckptctl, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    torch.save({"a": torch.ones(2), "step": 5, "opt": {"lr": 0.1}}, run / names[0])
    torch.save({"b": torch.ones(3), "step": 6}, run / names[1])
    index = {"metadata": {"total_size": 20}, "weight_map": {"a": names[0], "b": names[1]}}
    (run / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    found = open_checkpoint(run)
    plain = {key: value for key, value in found.values.items() if not isinstance(value, TensorRef)}
    assert plain == {"step": 5, "opt": {"lr": 0.1}, f"step ({names[1]})": 6}
    assert {part.value: list(one.tensors) for part, one in found.parts.items()} == {"model": ["a", "b"]}
    assert ckptctl("consolidate", run, "-o", tmp_path / "c.safetensors").status == 0
    assert ckptctl("convert", run, "-o", tmp_path / "m.safetensors").status == 0
    whole = open_checkpoint(tmp_path / "m.safetensors").files[0].values
    assert (whole["opt"], whole["step"]) == ({"lr": 0.1}, 5)
