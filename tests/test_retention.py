"""Which checkpoints are kept: by example, and for any history however odd."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model import Found
from ckptctl.model.run import CheckpointInfo, Completeness, State
from ckptctl.retention import Action, AnchorMode, Mode, Policy, decide

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
OFF = Policy(last=0, best=0, anchor_every=0)


def info(step, *, at=None, loss=None, state=State.WHOLE, epoch=None, pinned=False, pointers=(), name=None):
    path = Path(name or f"checkpoint-{step}")
    return CheckpointInfo(
        path=path,
        paths=(path,),
        family="checkpoint",
        step=Found(name="step", value=step, where="test") if step is not None else None,
        epoch=Found(name="epoch", value=epoch, where="test") if epoch is not None else None,
        saved_at=START + timedelta(minutes=step if at is None and step is not None else at or 0),
        nbytes=10,
        metrics={} if loss is None else {"loss": loss},
        completeness=Completeness(state=state),
        pinned=pinned,
        pointers=pointers,
    )


def kept(checkpoints, policy, now=START + timedelta(days=365), **options):
    found = decide(checkpoints, policy, now, **options)
    return [
        d.checkpoint.step.value if d.checkpoint.step else d.checkpoint.path.name
        for d in found
        if d.action is not Action.DELETE
    ]


def reasons(checkpoints, policy, **options):
    return {d.checkpoint.path.name: d.reasons for d in decide(checkpoints, policy, START, **options)}


def run(*steps):
    return [info(step) for step in steps]


def test_the_last_are_those_of_the_highest_steps():
    assert kept(run(9000, 500, 10000, 2500), replace(OFF, last=2)) == [9000, 10000]


def test_anchors_are_the_first_at_or_after_each_multiple():
    steps = run(0, 40, 90, 110, 190, 210, 260, 320)
    policy = replace(OFF, anchor_every=100)
    assert kept(steps, policy) == [0, 110, 210, 320]
    assert kept(steps, replace(policy, anchor_mode=AnchorMode.EXACT)) == [0, 320]
    assert kept(steps, replace(policy, anchor_mode=AnchorMode.CLOSEST)) == [0, 110, 210, 320]
    assert kept(run(95, 105, 100), replace(policy, anchor_mode=AnchorMode.EXACT)) == [105, 100]


def test_an_incomplete_one_is_no_anchor_and_takes_no_place():
    steps = [info(100, state=State.UNFINISHED), info(110), info(120), info(130)]
    decisions = decide(steps, replace(OFF, anchor_every=100, last=1), START)
    assert [d.action for d in decisions] == [Action.SKIP, Action.KEEP, Action.DELETE, Action.KEEP]


def test_the_best_by_either_mode_ties_go_to_the_later_and_nan_is_never_best():
    steps = [info(1, loss=math.nan), info(2, loss=0.5), info(3, loss=0.5), info(4, loss=0.9), info(5, loss=0.7)]
    policy = replace(OFF, best=1, metric="loss")
    assert kept(steps, replace(policy, mode=Mode.MIN)) == [3, 5]
    assert kept(steps, replace(policy, mode=Mode.MAX)) == [4, 5]
    assert kept(steps, policy) == [3, 4, 5]


def test_nothing_newer_than_the_last_measured_goes_while_a_rule_waits():
    steps = [info(1, loss=0.5), info(2, loss=0.4), info(3), info(4), info(5)]
    assert kept(steps, replace(OFF, best=1, metric="loss", mode=Mode.MIN)) == [2, 3, 4, 5]


def test_times_count_from_the_newest_not_from_now():
    steps = [info(1, at=0), info(2, at=50), info(3, at=90), info(4, at=100)]
    assert kept(steps, replace(OFF, within=timedelta(minutes=20))) == [3, 4]
    assert kept(steps, replace(OFF, every=timedelta(minutes=50))) == [1, 2, 4]


def test_steps_names_and_pins():
    steps = [info(1), info(2, pinned=True), info(3, pointers=("latest",)), info(4), info(5)]
    policy = replace(OFF, steps=frozenset({1}), globs=("*-4",))
    assert kept(steps, policy) == [1, 2, 3, 4, 5]
    assert reasons(steps, policy) == {
        "checkpoint-1": ("step 1",), "checkpoint-2": ("pinned",), "checkpoint-3": ("latest",),
        "checkpoint-4": ("name *-4",), "checkpoint-5": ("newest",),
    }  # fmt: skip


def test_every_reason_is_given():
    found = reasons(
        [info(100, loss=1.0), info(200, loss=0.5)],
        Policy(last=1, best=1, metric="loss", mode=Mode.MIN, anchor_every=200),
    )
    assert found["checkpoint-200"] == ("last 1 of 1", "anchor 200", "best 1 of 1 by loss", "newest")


def test_the_newest_by_time_and_the_newest_that_verifies_stay():
    steps = [info(10, at=99), info(20, at=5), info(30, at=1)]
    assert kept(steps, replace(OFF, last=1)) == [10, 30]
    assert kept(steps, replace(OFF, last=1), verified=lambda one: one.step.value < 25) == [10, 20, 30]


def test_of_equal_times_only_the_latest_step_counts_as_saved_last():
    steps = [info(10, at=0), info(20, at=0), info(30, at=0)]
    assert kept(steps, replace(OFF, last=1)) == [30]


def test_epochs_order_where_there_are_no_steps_and_anchors_are_inert():
    steps = [info(None, epoch=e, at=e, name=f"e{e}") for e in (1, 2, 3)]
    assert kept(steps, replace(OFF, last=1, anchor_every=1)) == ["e3"]


def test_what_has_neither_step_nor_epoch_is_kept():
    assert kept([info(None, name="last.ckpt"), info(1), info(2)], replace(OFF, last=1)) == ["last.ckpt", 2]


def test_incomplete_ones_go_only_when_asked_for_and_old_and_passed_by():
    steps = [info(1, state=State.DAMAGED), info(2), info(3, state=State.UNFINISHED)]
    policy = replace(OFF, last=1)
    assert kept(steps, policy) == [1, 2, 3]
    assert kept(steps, replace(policy, remove_incomplete=timedelta(hours=1))) == [2, 3]
    assert kept(steps, replace(policy, remove_incomplete=timedelta(hours=1)), now=START + timedelta(minutes=30)) == [
        1,
        2,
        3,
    ]
    assert kept([info(1, state=State.DAMAGED)], replace(policy, remove_incomplete=timedelta(hours=1))) == [1]


def test_all_off_is_known():
    assert OFF.keeps_nothing
    assert not Policy().keeps_nothing


LOSSES = st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.1, 0.2, 0.2, 0.5, 1.0]))
POLICIES = st.builds(
    Policy,
    last=st.integers(0, 3),
    best=st.integers(0, 2),
    metric=st.sampled_from(["", "loss"]),
    mode=st.sampled_from([None, Mode.MIN, Mode.MAX]),
    anchor_every=st.sampled_from([0, 7, 10, 25]),
    anchor_mode=st.sampled_from(list(AnchorMode)),
    within=st.sampled_from([None, timedelta(minutes=9)]),
    every=st.sampled_from([None, timedelta(minutes=13)]),
    steps=st.frozensets(st.integers(0, 60), max_size=2),
)


@st.composite
def histories(draw, *, odd):
    """Saves one after another; odd ones are incomplete, out of order, without a step, pinned."""
    found, step, minute = [], 0, 0
    for number in range(draw(st.integers(1, 12))):
        step = draw(st.integers(0, 60)) if odd else step + draw(st.integers(0 if not number else 1, 9))
        minute = draw(st.integers(0, 60)) if odd else minute + draw(st.integers(0, 9))
        state = draw(st.sampled_from(list(State))) if odd else State.WHOLE
        none = odd and draw(st.booleans()) and draw(st.booleans())
        one = info(None if none else step, at=minute, loss=draw(LOSSES), state=state, name=f"c{number}",
                   pinned=odd and draw(st.integers(0, 9)) == 0)  # fmt: skip
        found.append(one)
    return found


def prune(checkpoints, policy):
    decisions = decide(checkpoints, policy, START + timedelta(days=9))
    return [d.checkpoint for d in decisions if d.action is not Action.DELETE]


@pytest.mark.hypothesis
@given(histories(odd=True), POLICIES)
def test_pruning_twice_equals_once(checkpoints, policy):
    once = prune(checkpoints, policy)
    assert prune(once, policy) == once


@pytest.mark.hypothesis
@given(histories(odd=False), POLICIES)
def test_pruning_after_every_save_equals_pruning_at_the_end(checkpoints, policy):
    there = []
    for one in checkpoints:
        there = prune([*there, one], policy)
    assert there == prune(checkpoints, policy)


@pytest.mark.hypothesis
@given(histories(odd=True), POLICIES, st.integers(0, 3), st.sampled_from([0, 7, 10]))
def test_more_rules_never_keep_less(checkpoints, policy, last, anchor):
    more = replace(policy, last=max(policy.last, last), anchor_every=policy.anchor_every or anchor,
                   steps=policy.steps | {5}, globs=("c3",))  # fmt: skip
    names = {one.path for one in prune(checkpoints, policy)}
    assert names <= {one.path for one in prune(checkpoints, more)}


@pytest.mark.hypothesis
@given(histories(odd=True), POLICIES, st.sampled_from([None, timedelta(hours=1)]))
def test_no_history_ends_without_its_newest_complete_checkpoint(checkpoints, policy, age):
    complete = [one for one in checkpoints if one.complete]
    there = prune(checkpoints, replace(policy, remove_incomplete=age))
    if complete:
        placed = [one for one in complete if one.step]
        newest = max(placed, key=lambda one: (one.step.value, one.saved_at)) if placed else None
        assert newest is None or any(o.step == newest.step for o in there if o.complete)
        assert max(one.saved_at for one in complete) in {one.saved_at for one in there if one.complete}
    else:
        assert there == checkpoints
