"""What a reading of saving, capturing and the hooks found."""

from __future__ import annotations

import os
import signal
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ckptctl.errors import UnsupportedError, UsageError
from ckptctl.storage.claims import sweep_dead
from ckptctl.training import CheckpointScheduler, TrainingState, Uploader, latest_good, load, prune, save
from ckptctl.training.by_name import optimizer_by_name, optimizer_from_names
from ckptctl.training.live import Live


def test_a_text_that_would_read_as_a_tie_is_refused(tmp_path):
    state = {"w": torch.ones(3), "optimizer": {"lr": 0.1}, "step": 7}
    with pytest.raises(UsageError, match="would be read as a tie"):
        save(tmp_path / "x.safetensors", state, metadata={"author": "w"})
    assert not list(tmp_path.iterdir())
    save(tmp_path / "x.safetensors", state, metadata={"author": "me"})
    assert load(tmp_path / "x.safetensors")["step"] == 7


@pytest.mark.parametrize("metadata", [{1: "x"}, {"x": 1}, {"x": None}])
def test_metadata_is_of_texts(metadata, tmp_path):
    with pytest.raises(UsageError, match="is no text"):
        save(tmp_path / "x.safetensors", {"w": torch.ones(3)}, metadata=metadata)


def test_a_signal_before_a_restore_is_not_lost():
    before, schedule = CheckpointScheduler(every_steps=10), CheckpointScheduler(every_steps=10)
    with schedule.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        schedule.load_state_dict(before.state_dict())
        assert "SIGTERM" in schedule.due(1)
    assert schedule.stopping


def test_storages_of_a_device_stay_until_they_are_written(tmp_path):
    kept = []

    class OnDevice:
        """A storage as an accelerator has one."""

        device = SimpleNamespace(type="other")

        def __init__(self, size):
            self.inner = torch.arange(size, dtype=torch.uint8).untyped_storage()

        def data_ptr(self):
            return self.inner.data_ptr()

        def nbytes(self):
            return self.inner.nbytes()

        def cpu(self):
            return self.inner.clone()

        def __del__(self):
            kept.append("gone")

    live = Live(tmp_path)
    live._memory(OnDevice(8), ())
    assert not kept
    del live
    assert kept == ["gone"]


def test_what_a_killed_save_left_goes_with_the_next(tmp_path):
    old, new, held = (tmp_path / f".step_{number}.safetensors.ckptctl-tmp" for number in (1, 2, 3))
    for path in (old, new, held):
        path.write_bytes(b"x" * 100)
    for path in (old, held):
        os.utime(path, (time.time() - 7200,) * 2)
    import fcntl

    with held.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        save(tmp_path / "step_4.safetensors", {"w": torch.ones(3)})
        assert not old.exists()
        assert new.exists()
        assert held.exists()
    sweep_dead(tmp_path / "nowhere")


class Groups(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3, bias=False)


def made(kind=torch.optim.AdamW):
    model = Groups()
    optimizer = kind(
        [{"params": [model.layer.weight], "weight_decay": 0.1}, {"params": [], "weight_decay": 0.0}], lr=0.1
    )
    model.layer(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_an_empty_group_keeps_its_settings():
    model, optimizer = made()
    state = TrainingState(model=model, optimizer=optimizer).capture()
    other, stepping = made()
    TrainingState(model=other, optimizer=stepping).restore(state, strict=False)
    assert stepping.param_groups[1]["betas"] == (0.9, 0.999)
    stepping.step()


def test_state_of_an_optimizer_that_is_of_no_parameter_is_kept():
    model, optimizer = made()
    optimizer.state["global"] = {"count": 3}
    named = optimizer_by_name(model, optimizer)
    assert named["state"]["global"] == {"count": 3}
    other, fresh = made()
    fresh.load_state_dict(optimizer_from_names(other, fresh, named))
    assert fresh.state["global"] == {"count": 3}


def test_nothing_is_taken_of_a_state_that_has_nothing():
    model, _ = made()
    before = model.layer.weight.clone()
    TrainingState(model=model).restore({}, strict=False)
    assert torch.equal(model.layer.weight, before)


def test_states_of_more_devices_than_there_are_do_no_harm(monkeypatch):
    from ckptctl.training import capture

    put = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: put.append((index, int(state[0]))))
    capture._put_back({"cuda": [torch.tensor([number], dtype=torch.uint8) for number in range(8)]})
    assert put == [(0, 0), (1, 1)]


def test_warnings_as_errors_do_not_end_a_save(tmp_path):
    array = np.arange(5.0)
    array.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path / "x.safetensors", {"a": array})
        save(tmp_path / "y.safetensors", {"w": torch.ones(3)}, base=tmp_path / "gone.safetensors")
    assert np.array_equal(load(tmp_path / "x.safetensors")["a"], array)
    assert load(tmp_path / "y.safetensors")["w"].tolist() == [1, 1, 1]


def freed():
    tensor = torch.ones(5)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({10**5000: 1}, "a very long one"),
        ({"w": torch.nn.LazyLinear(3).weight}, "no shape yet"),
        ({"w": freed()}, "memory was let go of"),
    ],
)
def test_what_cannot_be_saved_is_said_in_a_line(value, why, tmp_path):
    with pytest.raises(UnsupportedError, match=why):
        save(tmp_path / "x.safetensors", value)


def test_a_run_of_the_loop_is_no_address(tmp_path):
    with pytest.raises(UsageError, match="on a disk"):
        Uploader("s3://bucket/run", tmp_path / "to")
    with pytest.raises(UsageError, match="on a disk"):
        prune("s3://bucket/run")


def test_a_run_is_not_made_below_nothing(tmp_path, monkeypatch):
    from ckptctl.errors import CkptctlError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(CkptctlError):
        Uploader(tmp_path / "mistyped" / "run", tmp_path / "to")
    assert not (tmp_path / "mistyped").exists()


def test_a_path_behind_a_link_is_where_the_system_says(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    save(tmp_path / "link" / ".." / "x.safetensors", {"w": torch.ones(3)})
    assert (tmp_path / "a" / "x.safetensors").is_file()
    assert load(tmp_path / "link" / ".." / "x.safetensors")["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["x.PT", "x.npy", "x.gguf", "x.safetensor", "x.SAFETENSORS", "x.pth.tar", "x.pt"])
def test_other_kinds_of_files_are_no_directories(name, tmp_path):
    with pytest.raises(UsageError, match="ends in .safetensors"):
        save(tmp_path / name, {"w": torch.ones(3)})


def test_a_run_whose_names_have_no_steps_is_told_so(tmp_path):
    (tmp_path / "run").mkdir()
    save(tmp_path / "run" / "best", {"w": torch.ones(3)})
    with pytest.raises(UsageError, match="a step in their names"):
        latest_good(tmp_path / "run")


def test_hints_are_not_options_of_a_command(tmp_path, monkeypatch):
    from ckptctl.errors import LimitError, LockedError

    with pytest.raises(UnsupportedError) as foreign:
        save(tmp_path / "x.safetensors", {"w": torch.ones(3, dtype=torch.complex128)})
    assert "view_as_real" in foreign.value.hint
    monkeypatch.setattr("ckptctl.values.encode.MAX_NODES", 20)
    with pytest.raises(LimitError) as limit:
        save(tmp_path / "y.safetensors", {"w": torch.ones(3), "many": {str(number): None for number in range(50)}})
    assert not limit.value.hint
    (tmp_path / "run").mkdir()
    with Uploader(tmp_path / "run", tmp_path / "to"), pytest.raises(LockedError) as second:
        Uploader(tmp_path / "run", tmp_path / "to")
    assert not second.value.hint
