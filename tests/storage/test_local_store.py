"""obstore's store of local files: what a command finds through it, and leaves in it, is what it finds and leaves on disk."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from obstore.store import LocalStore

from ckptctl.ops.consolidate import Options as Merging
from ckptctl.ops.consolidate import consolidate
from ckptctl.ops.convert import Options, convert
from ckptctl.ops.diff import diff
from ckptctl.ops.inspect import inspect
from ckptctl.ops.prune import Pruning, Settings
from ckptctl.ops.verify import verify
from ckptctl.retention import Policy
from ckptctl.storage import address
from ckptctl.storage.stores import use
from tests.samples import CORPUS
from tests.storage.stores import start
from tests.storage.test_prune_buckets import NOW, made

SAMPLES = (
    "torch_save/train_dict.pt",
    "dcp/dcp_fsdp2_2ranks",
    "deepspeed/zero2_bf16_2ranks",
    "fsdp/fsdp2_1d_2ranks",
    "transformers/sharded_llama",
    "keras/files/model.keras",
)


@pytest.fixture
def disk(tmp_path):
    """A directory, and the bucket that a store makes of it."""
    root = tmp_path / "disk"
    root.mkdir()
    use("s3", "disk", LocalStore(root))
    start()
    return root


def bytes_below(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_is_there_is_found(sample, disk):
    source = CORPUS / sample
    shutil.copytree(source, disk / "x") if source.is_dir() else shutil.copy(source, disk / "x")
    for run, seen in (
        (inspect, lambda found: (found.tensors, found.parameters, found.title, found.layout)),
        (verify, lambda found: (found.judgement, sorted((one.slug, one.severity.value) for one in found.findings))),
    ):
        start()
        here, there = run(disk / "x"), run(address("s3://disk/x"))
        assert seen(here) == seen(there)


def test_what_is_written_is_the_same_and_nothing_else_is_left(disk, tmp_path):
    torch.save({f"w{i}": torch.randn(50_000) for i in range(20)}, disk / "x.pt")
    for place in (tmp_path / "here", address("s3://disk/there")):
        start()
        convert(disk / "x.pt", place / "one.safetensors")
        convert(address("s3://disk/x.pt"), place / "m.safetensors", options=Options(max_shard_size=1 << 20))
        consolidate(place / "m.safetensors.index.json", place / "merged.safetensors", options=Merging())
        assert diff(disk / "x.pt", place / "merged.safetensors").equal
        assert verify(place / "merged.safetensors").judgement.value == "good"
    assert bytes_below(tmp_path / "here") == bytes_below(disk / "there")
    assert not [path for path in disk.rglob("*") if path.is_dir() and path.name != "there"]


def test_a_run_is_pruned(disk):
    made(disk / "run", 100, 200, 300)
    for path in (disk / "run").rglob("*"):
        os.utime(path, (NOW.timestamp() - 86400,) * 2)
    start()
    with Pruning([address("s3://disk/run")], Settings(policy=Policy(last=1, best=0, anchor_every=0)), NOW) as pruning:
        assert not pruning.errors
        for plan in pruning.plans:
            pruning.apply(plan)
    left = set(bytes_below(disk / "run"))
    assert {name for name in left if "300" in name} == left
    assert "checkpoint-300/optimizer.pt" in left
