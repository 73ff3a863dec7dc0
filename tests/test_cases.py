"""Faults that people reported, as far as `inspect` answers them."""

from __future__ import annotations

import sys

import pytest

from tests.samples import HERE

sys.path.insert(0, str(HERE / "cases"))
import common
import open_cases  # noqa: F401  # registers the cases


@pytest.fixture
def case(tmp_path):
    """Make a reported case and return its directory."""

    def make(name):
        common.REG[name]["fn"](tmp_path)
        return tmp_path

    return make


def test_i01_a_pointer_of_git_lfs_is_named_with_oid_and_size(case, ckptctl):
    result = ckptctl("inspect", case("I01") / "model.safetensors")
    assert result.status == 2
    assert "a Git LFS pointer, not the file" in result.err
    assert "4976698672 bytes" in result.err
    assert "sha256 4d7a" in result.err
    assert "hint: git lfs pull" in result.err


def test_i02_a_web_page_is_named_with_its_title(case, ckptctl):
    result = ckptctl("inspect", case("I02") / "weights.pth")
    assert result.status == 2
    assert "a web page, not a checkpoint (its title: Quota exceeded)" in result.err


def test_i10_options_beside_the_weights_do_not_hide_them(case, ckptctl):
    result = ckptctl("inspect", case("I10") / "ckpt.pth", "--tensors", "--values")
    assert result.status == 0
    assert "state_dict.fc.weight   F32     [3, 4]" in result.out
    assert "state_dict.fc.bias     F32     [3]" in result.out
    assert "not built: argparse.Namespace (inert, called 1×)" in result.out
    assert 'name: "run"' in result.out


def test_i11_a_call_is_named_and_not_made(case, ckptctl, monkeypatch):
    directory = case("I11")
    monkeypatch.chdir(directory)
    result = ckptctl("inspect", "model.bin", "--tensors")
    assert result.status == 0
    assert "unsafe: a loader would run posix.mkdir (dangerous, called 1×)" in result.out
    assert "state_dict.w" in result.out
    assert [path.name for path in directory.iterdir()] == ["model.bin"]


def test_i06_a_slice_of_a_large_table_shows_both_sizes(case, ckptctl):
    out = ckptctl("inspect", case("I06") / "slice.pt", "--tensors").out
    assert "rows   F32     [10, 8]     320" in out
    assert "320 of 320000 bytes are used, 99.9 % are dead" in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("V01", "cut at"), ("V02", "cut at"), ("V09", "belong to none"), ("V11", "needs"),
    ],
)  # fmt: skip
def test_files_that_verify_will_fail_are_refused_by_inspect_with_the_cause(case, ckptctl, name, words):
    (path,) = [p for p in case(name).iterdir() if p.is_file()]
    result = ckptctl("inspect", path)
    assert result.status == 2
    assert words in result.err


def test_v05_a_missing_shard_is_named(case, ckptctl):
    directory = case("V05")
    index = next(directory.rglob("*.index.json"))
    result = ckptctl("inspect", index.parent)
    assert result.status == 0
    assert "error: " in result.out
    assert "is missing" in result.out
