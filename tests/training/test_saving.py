"""What `save` writes, `load` brings back, exactly; and what goes wrong leaves the old file."""

from __future__ import annotations

import collections
import errno
import hashlib
import os
import stat

import numpy as np
import pytest
import torch

from ckptctl.errors import NoSpaceError, UnreadableError, UnsupportedError, UsageError
from ckptctl.training import AsyncSaver
from ckptctl.training.saving import save


def training(step=3):
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(step):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        schedule.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "numpy": np.random.default_rng(1).bit_generator.state,
        "step": step,
    }


def test_the_file_is_what_the_digest_says(tmp_path):
    digest = save(tmp_path / "s.safetensors", training())
    assert digest == hashlib.sha256((tmp_path / "s.safetensors").read_bytes()).hexdigest()
    assert (tmp_path / "s.safetensors.sha256").read_text() == f"{digest}  s.safetensors\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.safetensors", "s.safetensors.sha256"]


def test_it_is_a_checkpoint_like_any_other(tmp_path, ckptctl):
    save(tmp_path / "s.safetensors", training(), metadata={"run": "x"})
    out = ckptctl("inspect", tmp_path / "s.safetensors").out
    assert "step 3 (inside: step)" in out
    assert "AdamW" in out
    assert ckptctl("verify", tmp_path / "s.safetensors").status == 0
    torch.save(training(), tmp_path / "s.pt")
    report = ckptctl("diff", tmp_path / "s.pt", tmp_path / "s.safetensors")
    assert report.status == 0, report.out


@pytest.mark.parametrize(
    ("value", "where"),
    [(object(), r"a\.b"), ({"c": lambda: 1}, r"a\.b\.c"), ([1, {object(): 2}], r"a\.b\.1"),
     (torch.zeros(2).to_sparse(), r"a\.b"), (np.array(["x"]), r"a\.b"), (torch.zeros(2, device="meta"), r"a\.b")],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_its_place(value, where, tmp_path):
    """Case L01: an object that cannot be saved; the old file and its digest are as they were."""
    save(tmp_path / "last.safetensors", {"step": 1, "w": torch.ones(4)})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UnsupportedError, match=rf"the state has at {where} a "):
        save(tmp_path / "last.safetensors", {"w": torch.ones(4), "a": {"b": value}})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_holds_itself_is_refused(tmp_path):
    state = {"a": []}
    state["a"].append(state)
    with pytest.raises(UnsupportedError, match="it holds itself"):
        save(tmp_path / "s.safetensors", state)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    save(tmp_path / "s.safetensors", {"step": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(NoSpaceError):
        save(tmp_path / "s.safetensors", {"w": torch.ones(1000)})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["step_1.safetensors", "step_1"])
def test_a_directory_that_vanished_is_not_made_anew(name, tmp_path):
    with pytest.raises(UnreadableError, match="its directory does not exist"):
        save(tmp_path / "gone" / name, {"w": torch.ones(3)})
    assert not (tmp_path / "gone").exists()
    with AsyncSaver() as saver:
        saver.save(tmp_path / "gone" / name, {"w": torch.ones(3)})
        with pytest.raises(UnreadableError, match="its directory does not exist"):
            saver.wait()
    (tmp_path / "gone").write_text("a file has its name now")
    with pytest.raises(UnreadableError, match="gone"):
        save(tmp_path / "gone" / name, {"w": torch.ones(3)})


@pytest.mark.parametrize("name", ["step_1.safetensors", "step_1"])
def test_what_the_file_system_refuses_is_said_plainly(name, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("ckptctl.storage.atomic.claimed", refused)
    with pytest.raises(UnreadableError, match=f"{name}.*[Rr]ead-only file system"):
        save(tmp_path / name, {"w": torch.ones(3)})
    assert not list(tmp_path.iterdir())


def test_l03_the_mode_is_that_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        save(tmp_path / "s.safetensors", {"w": torch.ones(4)})
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


def test_tensors_that_share_memory_are_written_once(tmp_path):
    w = torch.randn(1000)
    save(tmp_path / "s.safetensors", {"model": {"a": w, "b": w, "c": w[:10]}})
    assert (tmp_path / "s.safetensors").stat().st_size < 4000 + 1500


def test_names_and_texts(tmp_path):
    with pytest.raises(UsageError, match="ends in .safetensors"):
        save(tmp_path / "s.pt", {})
    for metadata in ({"format": "x"}, {"a": 1}):
        with pytest.raises(UsageError, match="metadata"):
            save(tmp_path / "s.safetensors", {"step": 1}, metadata=metadata)


def test_every_kind_of_value_is_described(tmp_path, ckptctl):
    state = {
        "od": collections.OrderedDict(a=1), "t": (1, [2.5, None]), "s": {1, 2}, "b": b"x", "c": 1 + 2j,
        "size": torch.Size([2, 3]), "dtype": torch.float32, "device": torch.device("cuda:1"), "path": tmp_path,
        "np": np.float64(0.5), "hist": np.arange(3.0), 5: "int key", ("a", 1): True,
    }  # fmt: skip
    save(tmp_path / "s.safetensors", state)
    assert ckptctl("verify", tmp_path / "s.safetensors").status == 0
