"""What a delta needs: the chain is followed to its end, whatever the first of its links lists."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptctl.layouts.deltas import stated_bases


def needs(path, base, *beyond):
    said = {"name": base, "size": 1, "sha256": "0" * 64, "tensors": ["w"], "beyond": list(beyond)}
    save_file({"b": np.zeros(2, np.float32)}, path, metadata={"ckptctl.base": json.dumps(said)} if base else None)


@pytest.mark.parametrize("listed", [(), ("c.safetensors",), ("c.safetensors", "d.safetensors")])
def test_a_chain_is_followed_also_where_it_is_listed_short(tmp_path, listed):
    needs(tmp_path / "a.safetensors", "b.safetensors", *listed)
    needs(tmp_path / "b.safetensors", "c.safetensors")
    needs(tmp_path / "c.safetensors", "d.safetensors")
    needs(tmp_path / "d.safetensors", "")
    assert stated_bases(tmp_path / "a.safetensors") == ("b.safetensors", "c.safetensors", "d.safetensors")


def test_a_chain_in_a_circle_ends(tmp_path):
    needs(tmp_path / "a.safetensors", "b.safetensors")
    needs(tmp_path / "b.safetensors", "a.safetensors")
    assert stated_bases(tmp_path / "a.safetensors") == ("b.safetensors", "a.safetensors")
