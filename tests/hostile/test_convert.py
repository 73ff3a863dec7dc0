"""Every hostile generator that concerns `convert`: what is refused leaves nothing behind, nothing runs, nothing grows."""

from __future__ import annotations

import os

import pytest

from tests.hostile.test_inspect import CASES, GENERATOR, MEGABYTE, idle, run, tree
from tests.samples import read

__all__ = ["idle"]

# What `inspect` may list, a copy must not carry on.
REFUSED = {"dcp_length_past_end", "pt_storage_bit_flip", "ix_shard_missing", "st_name_twice"}


@pytest.mark.parametrize("name", CASES)
def test_verdict(name, tmp_path, idle):
    make = CASES[name]
    verdicts = set(make.__doc__.rpartition("Verdict: ")[2].strip().split("|"))
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = make(tmp_path / "in")
    before = tree(tmp_path / "in")
    target = tmp_path / "out" / "x.safetensors"
    result = run("convert", path, "-o", target)

    errors = result["err"].splitlines()
    assert "Traceback" not in result["err"]
    assert "internal error" not in result["err"]
    assert tree(tmp_path / "in") == before
    assert not GENERATOR.marker(tmp_path / "in", name).exists()
    assert result["cpu"] < 10
    assert result["seconds"] < 60  # it waits for nothing, however busy the machine is
    assert result["peak"] < idle + 256 * MEGABYTE
    left = sorted(found.name for found in (tmp_path / "out").iterdir())
    if result["status"] == 0:
        assert left == ["x.safetensors", "x.safetensors.sha256"]
        assert read(target).tensors.keys() <= read(path).tensors.keys()
    else:
        assert result["status"] == 2
        assert left == []
        assert result["out"] == ""
        assert 1 <= len(errors) <= 2
        assert errors[0].startswith("ckptctl: ")
        assert all(line.startswith("  hint: ") for line in errors[1:])
    if verdicts == {"accept"} and path.is_file():
        assert result["status"] == 0
    if (verdicts <= {"refuse", "unsafe"} or name in REFUSED) and not (name == "fs_unreadable" and os.geteuid() == 0):
        assert result["status"] == 2


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("pk_")])
@pytest.mark.parametrize("options", [("--only", "model"), ("--drop-foreign",), ("--plain", "--no-check")])
def test_no_option_lets_danger_through(name, options, tmp_path):
    verdicts = set(CASES[name].__doc__.rpartition("Verdict: ")[2].strip().split("|"))
    if verdicts != {"unsafe"} or name == "pk_custom_class":
        return
    path = CASES[name](tmp_path)
    result = run("convert", path, "-o", tmp_path / "x.safetensors", *options)
    assert result["status"] == 2
    assert not (tmp_path / "x.safetensors").exists()
    assert not GENERATOR.marker(tmp_path, name).exists()
