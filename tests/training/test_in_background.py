"""Saves in the background hold what was there at the call, and fail out loud."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ckptctl.errors import UnsupportedError
from ckptctl.training.in_background import AsyncSaver
from ckptctl.training.loading import load
from ckptctl.training.saving import save
from tests.training.test_loading import same
from tests.training.test_saving import training


def test_l05_what_is_written_is_what_was_there_at_the_call(tmp_path, begin):
    state = {"w": torch.ones(4), "step": torch.tensor(1.0), "n": 1, "l": [1]}
    with AsyncSaver() as saver:
        saver.save(tmp_path / "s.safetensors", state)
        state["w"].add_(1)
        state["step"].add_(1)
        state["n"] = 2
        state["l"].append(2)
        begin.set()
    found = load(tmp_path / "s.safetensors")
    assert same(found, {"w": torch.ones(4), "step": torch.tensor(1.0), "n": 1, "l": [1]})


def test_it_writes_what_save_writes(tmp_path):
    state = training()
    digest = save(tmp_path / "a.safetensors", state)
    with AsyncSaver() as saver:
        for number in range(3):
            saving = saver.save(tmp_path / f"{number}.safetensors", state)
        assert saving.result() == digest
    assert {path.read_bytes() for path in tmp_path.glob("*.safetensors")} == {(tmp_path / "a.safetensors").read_bytes()}


def test_the_memory_of_a_copy_is_used_again(tmp_path):
    with AsyncSaver() as saver:
        saver.save(tmp_path / "a.safetensors", {"w": torch.ones(100)})
        first = [id(one) for one in saver._copies]
        saver.save(tmp_path / "b.safetensors", {"w": torch.ones(100)})
        assert [id(one) for one in saver._copies] == first


def test_an_error_is_raised_by_the_next_call_once(tmp_path):
    saver = AsyncSaver()
    (tmp_path / "file").write_text("")
    saver.save(tmp_path / "file" / "s.safetensors", {"w": torch.ones(4)})
    with pytest.raises(Exception, match="file"):
        saver.save(tmp_path / "t.safetensors", {"w": torch.ones(4)})
    saver.save(tmp_path / "t.safetensors", {"w": torch.ones(4)})
    saver.close()
    assert same(load(tmp_path / "t.safetensors"), {"w": torch.ones(4)})


def test_what_cannot_be_kept_is_refused_at_once(tmp_path):
    with AsyncSaver() as saver, pytest.raises(UnsupportedError, match="the state has at x"):
        saver.save(tmp_path / "s.safetensors", {"x": object()})


@pytest.mark.parametrize(("target", "status", "word"), [("s", 0, ""), ("file/s", 0, "the last save failed")])
def test_the_end_of_the_program_waits(target, status, word, tmp_path):
    (tmp_path / "file").write_text("")
    code = f"""
import torch
from ckptctl.training.in_background import AsyncSaver
AsyncSaver().save({str(tmp_path / f"{target}.safetensors")!r}, {{"w": torch.ones(1 << 22)}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert word in done.stderr
    assert (tmp_path / "s.safetensors.sha256").exists() == (not word)
