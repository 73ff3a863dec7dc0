"""`diff` with every hostile file on either side: an answer, or one line; nothing runs, nothing grows.

A flipped bit equals the same flipped bit: checksums are for `verify`.
"""

from __future__ import annotations

import os

import pytest

from tests.hostile.test_inspect import CASES, GENERATOR, MEGABYTE, idle, run, tree
from tests.samples import CORPUS

__all__ = ["idle"]
GOOD = CORPUS / "transformers" / "single_llama" / "model.safetensors"


@pytest.mark.parametrize("name", CASES)
def test_verdict(name, tmp_path, idle):
    make = CASES[name]
    verdicts = set(make.__doc__.rpartition("Verdict: ")[2].strip().split("|"))
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    path, again = make(tmp_path / "one"), make(tmp_path / "other")
    before = tree(tmp_path)
    refused = 0
    for sides in ((path, GOOD), (path, again)):
        result = run("diff", *sides)
        errors = result["err"].splitlines()
        assert "Traceback" not in result["err"]
        assert "internal error" not in result["err"]
        assert tree(tmp_path) == before
        assert not any(GENERATOR.marker(tmp_path / side, name).exists() for side in ("one", "other"))
        assert result["cpu"] < 10
        assert result["seconds"] < 60  # it waits for nothing, however busy the machine is
        assert result["peak"] < idle + 2 * 256 * MEGABYTE  # one for each side
        if result["status"] == 2 and not result["out"]:
            refused += 1
            assert 1 <= len(errors) <= 2
            assert errors[0].startswith("ckptctl: ")
        else:
            assert result["status"] in (0, 1, 2)
            assert result["out"]
            assert errors == []
    if verdicts == {"refuse"} and name != "pt_storage_bit_flip" and not (name == "fs_unreadable" and os.geteuid() == 0):
        assert refused == 2
