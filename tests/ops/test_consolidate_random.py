"""Whatever torch cuts, by whatever mesh and placements, comes back bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ckptctl.ops.consolidate import consolidate
from tests.ops.test_consolidate import load, same
from tests.samples import HERE


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_random_tensors_on_random_meshes(ranks, tmp_path):
    command = [sys.executable, HERE / "ops" / "write_dcp.py", tmp_path / "d", str(ranks), str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    consolidate(tmp_path / "d", tmp_path / "m.safetensors")
    made, whole = load(tmp_path / "m.safetensors"), torch.load(tmp_path / "d.whole.pt")
    assert made.keys() == whole.keys()
    assert [name for name, tensor in whole.items() if not same(made[name], tensor)] == []
