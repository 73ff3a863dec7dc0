"""What an independent reader broke of deltas: bases replaced, pruned in between, away, tied."""

from __future__ import annotations

import os
import shutil
import warnings
from datetime import datetime, timedelta, timezone
from unittest import mock

import pytest
import torch

from ckptctl.errors import ExistsError, MissingBaseError, UnreadableError, UsageError
from ckptctl.ops.prune import Pruning, Settings, restore_from_trash
from ckptctl.ops.prune.carry_out import CarryOut
from ckptctl.retention import Policy
from ckptctl.storage import local_file
from ckptctl.training import AsyncSaver, Uploader, load, prune, save
from tests.training.test_delta import LAST, chain, frozen, named, same


def settings(policy=LAST, **more):
    return Settings(policy=policy, **more)


def now():
    return datetime.now(timezone.utc)


def test_what_others_need_is_not_replaced(tmp_path, ckptctl):
    chain(tmp_path, 1, 2, 3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for step, base in ((2, 3), (1, 3), (1, 2), (1, None), (2, 1)):
        with pytest.raises(ExistsError, match=r"step_[23]\.safetensors is a delta on it"):
            save(named(tmp_path, step), frozen(step), base=base and named(tmp_path, base))
    with AsyncSaver() as saver, pytest.raises(ExistsError, match="is a delta on it"):
        saver.save(named(tmp_path, 2), frozen(2), base=named(tmp_path, 3))
        saver.wait()
    plain = tmp_path / "apart" / "plain.safetensors"
    plain.parent.mkdir()
    save(plain, frozen(5))
    done = ckptctl("convert", plain, "-o", named(tmp_path, 1), "--force")
    assert (done.status, "step_2.safetensors is a delta on it" in done.err) == (2, True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    save(named(tmp_path, 3), frozen(4))  # nothing needs this one
    named(tmp_path, 2).unlink()
    save(named(tmp_path, 1), frozen(9))  # nor this, of what is still here
    assert load(named(tmp_path, 1))["step"] == 9


def test_a_base_behind_a_link_is_what_the_link_leads_to(tmp_path):
    chain(tmp_path, 1)
    link = tmp_path / "base.safetensors"
    link.symlink_to("step_1.safetensors")
    with pytest.raises(UsageError, match="cannot be its own base"):
        save(named(tmp_path, 1), frozen(1), base=link)
    save(named(tmp_path, 2), frozen(2), base=link)
    with pytest.raises(ExistsError, match="step_2.safetensors is a delta on it"):
        save(named(tmp_path, 1), frozen(1))
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_a_delta_on_something_else_holds_up_nothing(tmp_path):
    chain(tmp_path, 1, 2)
    named(tmp_path, 1).write_bytes(b"other")
    save(named(tmp_path, 1), frozen(1))  # the delta was lost before
    (tmp_path / "lost.safetensors").symlink_to("nowhere.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 20)
    save(tmp_path / "free.safetensors", frozen(1))
    save(tmp_path / "free.safetensors", frozen(2))


def test_names_that_were_tied_in_the_base_and_are_not_any_more(tmp_path):
    shared = torch.arange(1000.0)
    save(named(tmp_path, 1), {"model": {"a": shared, "b": shared, "c": shared[:0]}})
    now_apart = {"model": {"a": shared, "b": shared.clone(), "c": torch.zeros(0)}}
    save(named(tmp_path, 2), now_apart, base=named(tmp_path, 1))
    back = load(named(tmp_path, 2))["model"]
    assert back["a"].equal(shared)
    assert back["b"].equal(shared)
    back["a"][0] = 7.0
    assert back["b"][0] == 0.0
    save(named(tmp_path, 3), {"model": {"a": shared, "b": shared}}, base=named(tmp_path, 2))
    tied = load(named(tmp_path, 3))["model"]
    tied["a"][0] = 7.0
    assert tied["b"][0] == 7.0


@pytest.mark.parametrize("trash", [timedelta(), timedelta(days=1)])
def test_a_delta_that_is_saved_while_a_prune_goes_on_keeps_its_base(tmp_path, trash):
    """Whether it comes after the plan, or after the base was renamed."""
    for moment in ("planned", "looked"):
        run = tmp_path / moment
        run.mkdir()
        for step in (1, 2, 3):
            save(named(run, step), frozen(step))
        with Pruning([run], settings(trash_for=trash), now()) as pruning:
            assert len(pruning.plans[0].victims) == 2
            if moment == "planned":
                save(named(run, 4), frozen(4), base=named(run, 1))
                report = pruning.apply(pruning.plans[0])
            else:
                discard = CarryOut._discard

                def late(self, info, discard=discard, run=run):
                    if info.path == named(run, 1):  # it was looked at, and is about to be renamed
                        save(named(run, 4), frozen(4), base=named(run, 1))
                    discard(self, info)

                with (
                    mock.patch.object(CarryOut, "_discard", late),
                    mock.patch.object(CarryOut, "_is_time_to_look", property(lambda self: self._looked < 0)),
                ):
                    report = pruning.apply(pruning.plans[0])
        assert [path.name for path in report.deleted] == ["step_2.safetensors"], (moment, report)
        assert "it is the base of step_4.safetensors, which was saved meanwhile" in report.errors[0]
        assert same(load(named(run, 4)), frozen(4))
        assert load(named(run, 1))["step"] == 1


def test_a_base_that_goes_while_its_delta_is_saved_is_not_needed_any_more(tmp_path):
    chain(tmp_path, 1)
    from ckptctl.training import saving

    carry_out = saving.carry_out

    def pruned_before(*args):
        named(tmp_path, 1).unlink(missing_ok=True)
        return carry_out(*args)

    with mock.patch.object(saving, "carry_out", pruned_before), pytest.warns(UserWarning, match="the whole state"):
        save(named(tmp_path, 2), frozen(2), base=named(tmp_path, 1))
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_what_a_killed_prune_had_renamed_comes_back_if_it_is_needed(tmp_path, ckptctl):
    chain(tmp_path, 1, 2, 3)
    gone = tmp_path / ".ckptctl-trash-20200101T000000Z-step_1.safetensors"
    named(tmp_path, 1).rename(gone)
    done = ckptctl("prune", tmp_path, "--keep-last", 3, "--keep-best", 0, "--yes")
    assert "it is the base of step_2.safetensors; brought back from the trash" in done.err
    assert same(load(named(tmp_path, 3)), frozen(3))
    assert not gone.exists()


def test_a_file_that_cannot_be_read_may_be_a_delta(tmp_path, monkeypatch, ckptctl):
    chain(tmp_path, 1, 2)
    for step in (3, 4):
        save(named(tmp_path, step), frozen(step))
    real = os.open

    def refused(path, *args, **more):
        if os.fspath(path).endswith("step_2.safetensors"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path, *args, **more)

    monkeypatch.setattr(local_file.os, "open", refused)
    done = ckptctl("prune", tmp_path, "--keep-last", 1, "--keep-best", 0, "--yes", "--trash-for", 0)
    assert done.status == 2
    assert "step_2.safetensors: permission denied; it may be a delta on what would go: nothing is deleted" in done.err
    monkeypatch.undo()
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_bases_beyond_one_that_is_away_are_kept(tmp_path):
    chain(tmp_path, 1, 2, 3)
    for step in (4, 5):
        save(named(tmp_path, step), frozen(step))
    away = tmp_path / "away"
    away.mkdir()
    shutil.move(named(tmp_path, 2), away)
    with pytest.raises(MissingBaseError, match="its base step_2.safetensors is missing"):
        load(named(tmp_path, 3))
    prune(tmp_path, LAST)
    assert {path.name for path in tmp_path.glob("*.safetensors")} >= {
        "step_1.safetensors",
        "step_3.safetensors",
        "step_5.safetensors",
    }
    shutil.move(away / named(tmp_path, 2).name, named(tmp_path, 2))
    assert same(load(named(tmp_path, 3)), frozen(3))


def test_a_delta_whose_base_is_only_away_is_not_incomplete(tmp_path, ckptctl):
    chain(tmp_path, 1, 2)
    save(named(tmp_path, 3), frozen(3))
    named(tmp_path, 1).rename(tmp_path / "elsewhere")
    done = ckptctl("prune", tmp_path, "--keep-last", 1, "--keep-best", 0, "--remove-incomplete", "--yes")
    assert named(tmp_path, 2).exists(), done.out
    (tmp_path / "elsewhere").rename(named(tmp_path, 1))
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_the_base_of_what_is_in_the_trash_stays_as_long(tmp_path, ckptctl):
    chain(tmp_path, 1, 2)
    save(named(tmp_path, 3), frozen(3))
    kept = Policy(last=1, best=0, anchor_every=0, globs=("step_1.*",))
    with Pruning([tmp_path], settings(kept, trash_for=timedelta(days=2)), now()) as pruning:
        pruning.apply(pruning.plans[0])
    assert not named(tmp_path, 2).exists()
    with Pruning([tmp_path], settings(LAST, trash_for=timedelta()), now()) as pruning:
        pruning.apply(pruning.plans[0])
    assert not named(tmp_path, 1).exists()
    back = restore_from_trash(tmp_path, "step_2.safetensors")
    assert {path.name for path in back} >= {"step_1.safetensors", "step_2.safetensors"}
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_a_base_that_is_nowhere_is_said_on_the_way_back(tmp_path, ckptctl):
    chain(tmp_path, 1, 2)
    save(named(tmp_path, 3), frozen(3))
    with Pruning([tmp_path], settings(trash_for=timedelta(days=2)), now()) as pruning:
        pruning.apply(pruning.plans[0])
    for path in tmp_path.glob(".ckptctl-trash-*step_1.safetensors*"):
        path.unlink()
    done = ckptctl("prune", tmp_path, "--restore", "step_2.safetensors")
    assert "step_1.safetensors, which step_2.safetensors cannot be read without, is neither here" in done.err


def test_an_upload_that_is_asked_for_while_a_prune_goes_on(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for step in (1, 2, 3):
        save(named(run, step), frozen(step))
    with warnings.catch_warnings(), Pruning([run], settings(), now()) as pruning:
        warnings.simplefilter("ignore")
        uploader = Uploader(run, tmp_path / "blocked" / "to", pause=60.0, drain_seconds=0.0)
        (tmp_path / "blocked").write_text("no directory")
        uploader.upload(named(run, 1))
        report = pruning.apply(pruning.plans[0])
        with pytest.raises(UnreadableError):
            uploader.close()
    assert [path.name for path in report.deleted] == ["step_2.safetensors"]
    assert "its upload is not confirmed" in report.errors[0]


def test_a_delta_that_is_given_back_brings_its_bases(tmp_path):
    """Something points at it after it was renamed, in one batch with its base."""
    chain(tmp_path, 1, 2)
    save(named(tmp_path, 3), frozen(3))
    real = CarryOut._settle

    def settle(self):
        self._held["step_2.safetensors"] = "something points at it by now"
        real(self)

    with mock.patch.object(CarryOut, "_settle", settle), Pruning([tmp_path], settings(), now()) as pruning:
        report = pruning.apply(pruning.plans[0])
    assert report.deleted == ()
    assert same(load(named(tmp_path, 2)), frozen(2))
