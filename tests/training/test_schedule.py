"""When the scheduler has a save made, with a clock that the test turns."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys

import pytest

from ckptctl.training import CheckpointScheduler
from tests.samples import HERE

sys.path.insert(0, str(HERE / "cases"))
import common
import open_cases  # noqa: F401  # registers the cases


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def run(scheduler, clock, events):
    """Go through events, saving whenever it is due; return steps and reasons of the saves."""
    saves = []
    start = clock.now
    for event in events:
        clock.now = start + event["t"]
        reasons = scheduler.due(event["step"], epoch=event.get("epoch"), metric=event.get("loss"))
        if reasons:
            scheduler.saved(event.get("took"))
            saves.append([event["step"], sorted(reasons)])
    return saves


def test_l13_one_save_for_several_reasons(tmp_path, clock):
    common.REG["L13"]["fn"](tmp_path)
    scheduler = CheckpointScheduler(every_steps=100, every_seconds=600, best="min", clock=clock)
    saves = run(scheduler, clock, json.loads((tmp_path / "events.json").read_text()))
    assert saves == [[100, ["steps"]], [150, ["time"]], [200, ["best", "steps"]]]


def test_by_default_half_an_hour_or_five_thousand_steps(clock):
    events = [{"t": 0.5 * step, "step": step} for step in range(1, 12001)]
    scheduler = CheckpointScheduler(clock=clock)
    assert run(scheduler, clock, events) == [
        [3600, ["time"]], [5000, ["steps"]], [8600, ["time"]], [10000, ["steps"]],
    ]  # fmt: skip


def test_a_multiple_that_is_stepped_over_counts(clock):
    scheduler = CheckpointScheduler(every_steps=100, every_seconds=0, clock=clock)
    assert run(scheduler, clock, [{"t": 0, "step": step} for step in (60, 120, 180, 240, 240)]) == [
        [120, ["steps"]], [240, ["steps"]],
    ]  # fmt: skip


def test_a_minimum_delays_a_save_and_does_not_lose_it(clock):
    scheduler = CheckpointScheduler(every_steps=10, every_seconds=0, minimum_seconds=60, clock=clock)
    events = [{"t": 4 * step, "step": step} for step in range(1, 41)]
    assert run(scheduler, clock, events) == [[15, ["steps"]], [30, ["steps"]]]


def test_epochs_and_milestones(clock):
    scheduler = CheckpointScheduler(every_steps=0, every_seconds=0, every_epochs=2, milestones=(7, 9), clock=clock)
    events = [{"t": 0, "step": step, "epoch": step // 5} for step in range(1, 21)]
    assert run(scheduler, clock, events) == [[6, ["milestone"]], [8, ["milestone"]], [10, ["epochs"]], [20, ["epochs"]]]


@pytest.mark.parametrize(
    ("best", "top", "expected"),
    [("min", 1, [1, 3, 7]), ("max", 1, [1, 2, 5]), ("min", 2, [1, 2, 3, 4, 7, 8]), ("", 1, [])],
)
def test_the_best_metrics(best, top, expected, clock):
    losses = [0.5, 0.6, 0.4, 0.45, math.inf if best == "max" else 0.7, math.nan, 0.3, 0.3]
    scheduler = CheckpointScheduler(every_steps=0, every_seconds=0, best=best, top=top, clock=clock)
    events = [{"t": 0, "step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    assert [step for step, _ in run(scheduler, clock, events)] == expected


def test_a_signal_saves_once_at_the_end_of_the_step(clock):
    scheduler = CheckpointScheduler(every_steps=0, every_seconds=0, minimum_seconds=1e6, grace_seconds=30, clock=clock)
    before = signal.getsignal(signal.SIGTERM)
    with scheduler.signals():
        assert scheduler.due(1) == ()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not scheduler.stopping  # before the save the loop must not end
        assert (scheduler.due(2), scheduler.stopping) == (("SIGTERM", "signal"), True)
        scheduler.saved(40)
        os.kill(os.getpid(), signal.SIGTERM)
        assert scheduler.due(3) == ()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert scheduler.due(4) == ("signal",)
    assert signal.getsignal(signal.SIGTERM) is before
    assert scheduler.warning() == "a step and a save take 40 s, 30 s are left after a signal"


def test_on_demand(tmp_path, clock):
    scheduler = CheckpointScheduler(every_steps=0, every_seconds=0, on_demand=tmp_path / "save-now", clock=clock)
    assert scheduler.due(1) == ()
    (tmp_path / "save-now").touch()
    assert scheduler.due(2) == ("on demand",)
    scheduler.saved()
    assert (scheduler.due(3), (tmp_path / "save-now").exists()) == ((), False)


def test_it_goes_on_from_a_save_where_another_process_was(clock):
    """The state is captured before the save is made that it goes into, as a loop does."""
    events = [{"t": 7.0 * step, "step": step, "loss": (step * 37 % 101) / 10} for step in range(1, 300)]

    def fresh():
        return CheckpointScheduler(every_steps=50, every_seconds=300, minimum_seconds=30, best="min", clock=Clock())

    whole = fresh()
    expected = run(whole, whole.clock, events)
    for cut in [step for step, _ in expected[::3]]:
        first = fresh()
        saves = run(first, first.clock, events[: cut - 1])
        first.clock.now = 1000 + events[cut - 1]["t"]
        saves.append([cut, sorted(first.due(cut, metric=events[cut - 1]["loss"]))])
        second = fresh()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        second.clock.now -= events[cut - 1]["t"]  # its clock begins anew
        start = second.clock.now
        for event in events[cut:]:
            second.clock.now = start + event["t"]
            if reasons := second.due(event["step"], metric=event["loss"]):
                second.saved()
                saves.append([event["step"], sorted(reasons)])
        assert saves == expected


def test_what_all_processes_do_is_decided_once(clock):
    scheduler = CheckpointScheduler(every_steps=1, decide=lambda wanted: (*wanted, "told"), clock=clock)
    assert scheduler.due(1) == ("steps", "told")


@pytest.mark.parametrize("wrong", [{"best": "loss"}, {"every_steps": -1}, {"every_seconds": math.nan}, {"top": 0}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="best is|intervals are"):
        CheckpointScheduler(**wrong)


RANK = """
import os, sys, torch.distributed as dist
from ckptctl.training import CheckpointScheduler
rank, port = int(sys.argv[1]), sys.argv[2]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group("gloo")
scheduler = CheckpointScheduler(every_steps=0, every_seconds=10, clock=lambda: 100.0 * (rank == 0) * step[0])
for number in range(1, 4):
    step[0] = number
    reasons = scheduler.due(number)
    if reasons:
        scheduler.saved()
    print(number, *reasons)
dist.destroy_process_group()
"""


def test_rank_0_decides_for_all():
    """The clock of rank 1 stands still; it saves all the same."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    code = RANK.replace("scheduler = Check", "step = [0]\nscheduler = Check", 1)
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), port], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=60)[0].decode() for rank in ranks]
    assert said == ["1 time\n2 time\n3 time\n"] * 2
