"""What comes back is what was there in every respect that a training can notice, or it is refused."""

from __future__ import annotations

import collections
import signal
import threading

import numpy as np
import pytest
import torch

from ckptctl.errors import CorruptError, UnsupportedError, UsageError
from ckptctl.training import AsyncSaver, CheckpointScheduler, ResumableSampler, TrainingState, load, save
from ckptctl.training.together import put_together
from ckptctl.values import Described


@pytest.fixture
def again(tmp_path):
    def saved(state, **options):
        save(tmp_path / "s.safetensors", state)
        return load(tmp_path / "s.safetensors", **options)

    return saved


def test_a_flat_state_dict_keeps_its_class_order_and_versions(again):
    state = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict()
    state.move_to_end("0.weight")
    found = again(state)
    assert type(found) is collections.OrderedDict
    assert list(found) == list(state)
    assert found._metadata == state._metadata


def test_the_schedule_of_milestones_goes_on(again):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])
    found = again(schedule.state_dict())
    assert type(found["milestones"]) is collections.Counter
    assert found["milestones"] == collections.Counter({4: 2, 2: 1})


def test_views_of_one_array_are_each_what_they_were(again):
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    state = {"whole": base, "turned": base.T, "part": base[1:, ::2], "back": base[::-1], "big": base.astype(">f8")}
    found = again(state)
    for name, array in state.items():
        assert type(found[name]) is np.ndarray
        np.testing.assert_array_equal(found[name], array)
    assert found["whole"].dtype == np.float32


def test_arrays_stay_on_the_cpu(again):
    found = again({"w": torch.ones(2), "rng": np.random.default_rng(0).bit_generator.state}, device="meta")
    assert found["w"].device.type == "meta"
    assert found["rng"] == np.random.default_rng(0).bit_generator.state


def test_what_is_trained_does_not_spread_to_what_is_tied(again):
    parameter = torch.nn.Parameter(torch.ones(2))
    found = again({"a": parameter, "b": parameter.detach()})
    assert found["a"].requires_grad
    assert not found["b"].requires_grad
    assert found["a"].data_ptr() == found["b"].data_ptr()


@pytest.mark.parametrize(
    ("value", "why"),
    [(1 << 20_000, "20001 bits"), ({b"x" * 2000: 1}, "very long"), (np.zeros(2, np.longdouble), "float128"),
     (np.ma.array([1.0], mask=[True]), "MaskedArray"), (np.zeros(2, np.complex128), "complex128"),
     (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "nested")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_would_come_back_as_something_else_is_refused(value, why, tmp_path):
    with pytest.raises(UnsupportedError, match=rf"a\.b.*{why}"):
        save(tmp_path / "s.safetensors", {"a": {"b": value}})
    assert list(tmp_path.iterdir()) == []


def test_what_is_nested_too_deeply_is_refused(tmp_path):
    state: object = 1
    for _ in range(1000):
        state = [state]
    with pytest.raises(UnsupportedError, match="nested too deeply"):
        save(tmp_path / "s.safetensors", {"a": state})


def test_a_file_names_nothing_of_torch_but_dtypes():
    assert put_together(Described(type="type", args=("torch.bfloat16",)), {}) is torch.bfloat16
    for name in ("torch.load", "torch.hub", "torch.Tensor"):
        made = put_together(Described(type="type", args=(name,)), {})
        assert isinstance(made, Described)


def test_arguments_that_nobody_would_write_are_a_damaged_file(tmp_path):
    torch.save({"d": torch.device("cpu")}, tmp_path / "s.pt")
    raw = (tmp_path / "s.pt").read_bytes()
    assert raw.count(b"cpu") == 1
    (tmp_path / "s.pt").write_bytes(raw.replace(b"cpu", b"xyz"))
    with pytest.raises(CorruptError, match=r"s\.pt"):
        load(tmp_path / "s.pt", verify=False)


def test_memory_is_not_reused_while_it_is_written_from(tmp_path, monkeypatch, begin):
    """Ctrl-C while waiting: the save goes on, and the next one waits for it again."""
    saver = AsyncSaver()
    saving = saver.save(tmp_path / "a.safetensors", {"w": torch.ones(100)})
    with monkeypatch.context() as inside, pytest.raises(KeyboardInterrupt):
        inside.setattr(saving, "result", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        saver.wait()
    threading.Timer(0.2, begin.set).start()
    saver.save(tmp_path / "b.safetensors", {"w": torch.zeros(100)})
    saver.close()
    assert torch.equal(load(tmp_path / "a.safetensors")["w"], torch.ones(100))
    assert torch.equal(load(tmp_path / "b.safetensors")["w"], torch.zeros(100))
    with pytest.raises(UsageError, match="closed"):
        saver.save(tmp_path / "c.safetensors", {})


def test_a_signal_that_came_after_the_decision_ends_the_loop_only_with_the_next():
    scheduler = CheckpointScheduler(every_steps=1)
    with scheduler.signals():
        assert scheduler.due(1) == ("steps",)
        signal.raise_signal(signal.SIGTERM)
        assert not scheduler.stopping
        assert "SIGTERM" in scheduler.due(2)
    assert scheduler.stopping


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "signal")])
def test_a_signal_that_comes_while_it_is_saved_is_not_lost(number, reason):
    scheduler = CheckpointScheduler(every_steps=1)
    with scheduler.signals():
        signal.raise_signal(signal.SIGUSR1)
        assert scheduler.due(1) == ("signal", "steps")
        signal.raise_signal(number)
        scheduler.saved()
        assert reason in scheduler.due(2)
        scheduler.saved()
        assert scheduler.due(3) == ("steps",)


def test_a_part_that_nobody_takes_is_named():
    model = torch.nn.Linear(2, 2)
    whole = TrainingState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0)).capture()
    with pytest.raises(UnsupportedError, match="a place for its optimizer"):
        TrainingState(model=model).restore(whole)
    del whole["step"]
    with pytest.raises(UnsupportedError, match="missing: step"):
        TrainingState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0)).restore(whole)


def test_nothing_changes_when_the_optimizer_does_not_fit():
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    whole = TrainingState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0)).capture()
    before = other.weight.detach().clone()
    with pytest.raises(UnsupportedError, match="bias"):
        TrainingState(model=other, optimizer=torch.optim.SGD([other.weight], lr=1.0)).restore(whole)
    assert torch.equal(other.weight, before)


def test_the_order_of_samples_is_part_of_the_position():
    with pytest.raises(ValueError, match="shuffle"):
        ResumableSampler(10, shuffle=False).load_state_dict(ResumableSampler(10).state_dict())
    with pytest.raises(ValueError, match="not used less"):
        ResumableSampler(10).advance(-1)
