"""What a third reader broke of deltas, hooks, uploads and merges."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from unittest import mock

import pytest
import torch

from ckptctl.errors import CorruptError, UnreadableError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.ops.prune import Pruning, restore_from_trash
from ckptctl.runs.pending import STAGING
from ckptctl.training import AfterSave, Uploader, load, save, saving
from tests.samples import CORPUS
from tests.training.test_delta import LAST, chain, frozen, named, over, same
from tests.training.test_delta_review import now, settings


def flipped(path, at=-1):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_what_a_delta_says_of_its_base_counts_when_it_is_converted(tmp_path, ckptctl):
    chain(tmp_path, 1, 2)
    flipped(named(tmp_path, 1))
    named(tmp_path, 1).with_name("step_1.safetensors.sha256").unlink()
    out = tmp_path / "out" / "o.safetensors"
    done = ckptctl("convert", named(tmp_path, 2), "-o", out)
    assert (done.status, out.exists()) == (2, False)
    assert "step_2.safetensors says" in done.err


def test_each_of_several_workers_makes_sure_of_what_it_reads(tmp_path, ckptctl):
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(CORPUS / "transformers" / "sharded_llama", source)
    assert ckptctl("verify", "--write", source).status == 0
    flipped(source / "model-00002-of-00004.safetensors")
    given = ("convert", source, "-o", out)
    said = [ckptctl(*given, "--part", f"{part}/2") for part in (1, 0)]
    assert any("the file was changed after its digest was made" in one.err for one in said)
    assert not list(out.glob("*.index.json"))
    second = out / "model-00002-of-00004.safetensors"
    assert not second.exists()


def test_a_whole_file_is_never_replaced_by_one_that_needs_another(tmp_path):
    chain(tmp_path, 1)
    last = tmp_path / "last.safetensors"
    save(last, frozen(1))
    save(last, frozen(2), base=named(tmp_path, 1))
    assert not open_checkpoint(last).bases


@pytest.mark.parametrize("how", ["gone", "another"])
def test_a_base_that_changes_while_its_delta_is_written_is_not_needed(tmp_path, how):
    chain(tmp_path, 1)
    carry_out, seen = saving.carry_out, []

    def meanwhile(*args):
        if not seen and args[0].needed:
            seen.append(how)
            named(tmp_path, 1).unlink() if how == "gone" else over(named(tmp_path, 1), frozen(7))
        return carry_out(*args)

    with mock.patch.object(saving, "carry_out", meanwhile), pytest.warns(UserWarning, match="the whole state is saved"):
        save(named(tmp_path, 2), frozen(2), base=named(tmp_path, 1))
    assert seen
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_a_base_is_known_by_its_own_name_and_its_own_bytes(tmp_path):
    chain(tmp_path, 1, 3)
    link = tmp_path / "latest.safetensors"
    link.symlink_to("step_1.safetensors")
    save(named(tmp_path, 2), frozen(2), base=link)
    link.unlink()
    link.symlink_to("step_3.safetensors")
    assert same(load(named(tmp_path, 2)), frozen(2))
    (tmp_path / "apart").mkdir()
    save(tmp_path / "apart" / "far.safetensors", frozen(1))
    far = tmp_path / "far.safetensors"
    far.symlink_to("apart/far.safetensors")
    with pytest.raises(UsageError, match="a base lies beside"):
        save(named(tmp_path, 4), frozen(4), base=far)
    from ckptctl.training import delta

    delta._written.clear()  # as in another process
    (tmp_path / "step_1.safetensors.sha256").write_text("0" * 64 + "  step_1.safetensors\n")
    save(named(tmp_path, 6), frozen(6), base=named(tmp_path, 1))
    (tmp_path / "step_1.safetensors.sha256").unlink()
    assert same(load(named(tmp_path, 6)), frozen(6))


def test_what_is_no_file_is_no_delta(tmp_path, ckptctl):
    chain(tmp_path, 1, 2)
    for step in (3, 4):
        save(named(tmp_path, step), frozen(step))
    (tmp_path / "odd.safetensors").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    save(named(tmp_path, 4), frozen(5))
    done = ckptctl("prune", tmp_path, "--keep-last", 1, "--keep-best", 0, "--yes")
    assert done.status == 0, done.err
    assert not named(tmp_path, 3).exists()


def test_a_file_that_vanishes_meanwhile_is_no_delta(tmp_path):
    from ckptctl.layouts import deltas

    chain(tmp_path, 1)
    real = deltas.open_file

    def vanishing(path, **more):
        if path.name == "other.safetensors":
            path.unlink()
        return real(path, **more)

    save(tmp_path / "other.safetensors", frozen(3))
    with mock.patch.object(deltas, "open_file", vanishing):
        save(named(tmp_path, 1), frozen(2))
    assert load(named(tmp_path, 1))["step"] == 2


def test_a_restore_that_was_cut_short_is_finished_by_another(tmp_path):
    chain(tmp_path, 1, 2)
    save(named(tmp_path, 3), frozen(3))
    with Pruning([tmp_path], settings(LAST, trash_for=timedelta(days=1)), now()) as pruning:
        pruning.apply(pruning.plans[0])
    for entry in list(tmp_path.glob(".ckptctl-trash-*step_2.safetensors*")):
        entry.rename(tmp_path / entry.name.split("-", 3)[3])  # as somebody who was killed had done
    back = restore_from_trash(tmp_path, "step_2.safetensors")
    assert {path.name for path in back} >= {"step_1.safetensors"}
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_a_hook_tells_a_later_save_by_more_than_the_clock(tmp_path):
    after, last = AfterSave(strict=True), tmp_path / "last.ckpt"
    for step in range(40):  # within one tick of the clock of a file system, at times
        torch.save({"state_dict": {"w": torch.full((9,), float(step))}, "global_step": step}, last)
        after(last)
    other = tmp_path / "other.ckpt"
    torch.save({"state_dict": {"w": torch.full((9,), 99.0)}, "global_step": 99}, other)
    os.utime(other, (1e9, 1e9))
    shutil.copy2(other, last)  # with the old time
    after(last)
    directory = tmp_path / "latest"
    directory.mkdir()
    for names in (("a.bin", "b.bin"), ("a.bin",)):
        for name in ("a.bin", "b.bin"):
            (directory / name).unlink(missing_ok=True)
        for name in names:
            torch.save({"w": torch.ones(3)}, directory / name)
        after(directory / "a.bin")


@pytest.mark.parametrize(
    "change", [{"name": None}, {"name": "../../x"}, {"files": []}, {"files": [{"name": 5}]}, {"more": 1}]
)
def test_a_ticket_that_makes_no_sense_holds_up_nothing(tmp_path, change):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "to").write_text("no directory")
    save(run / "step_1.safetensors", {"w": torch.ones(2)})
    with pytest.raises(UnreadableError), Uploader(run, tmp_path / "to", drain_seconds=0.0, pause=60.0) as uploader:
        uploader.upload(run / "step_1.safetensors")
    uploader._queue._thread.join(10)
    (ticket,) = run.glob(f"{STAGING}/*/upload.json")
    ticket.write_text(json.dumps({**json.loads(ticket.read_text()), **change}))
    (tmp_path / "to").unlink()
    with pytest.warns(UserWarning, match="kept, and not uploaded"), Uploader(run, tmp_path / "to") as uploader:
        assert uploader.pending == ()
    with pytest.raises(UnreadableError):
        Uploader(run / "step_1.safetensors", tmp_path / "to")


def test_a_delta_that_is_uploaded_without_its_base_is_said_to_be_of_no_use_there(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    chain(run, 1, 2)
    said = pytest.warns(UserWarning, match=r"step_2\.safetensors cannot be read in .* without step_1\.safetensors")
    with said, Uploader(run, tmp_path / "to") as uploader:
        uploader.upload(named(run, 2)).result(20)
    with Uploader(run, tmp_path / "other") as uploader:
        uploader.upload(named(run, 1)).result(20)
        uploader.upload(named(run, 2)).result(20)
    assert same(load(tmp_path / "other" / "step_2.safetensors"), frozen(2))


@pytest.mark.filterwarnings("ignore")
def test_what_a_distributed_save_flattened_is_put_together_as_torch_does(tmp_path):
    from torch.distributed.checkpoint import save as save_distributed
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    one = torch.arange(3.0)
    state = {
        "model": {"w": one}, "mix": [7, one + 1, 8, {"x": one + 2}], "cb": [{"n": 1}, {"n": 2, "t": one + 3}, {"n": 3}],
        "sched": {"100": one + 4, "200": one + 5}, "scale": one + 6, "step": 5,
    }  # fmt: skip
    save_distributed(state, checkpoint_id=tmp_path / "d", no_dist=True)
    dcp_to_torch_save(tmp_path / "d", tmp_path / "d.pt")
    assert same(_sorted(load(tmp_path / "d")), _sorted(torch.load(tmp_path / "d.pt", weights_only=True)))


def _sorted(value):
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def test_damage_is_still_damage(tmp_path):
    after, one = AfterSave(strict=True), tmp_path / "step_1.safetensors"
    save(one, {"w": torch.zeros(100)})
    seen = one.stat()
    digest = tmp_path / "step_1.safetensors.sha256"
    os.utime(digest, ns=(seen.st_mtime_ns + 10_000_000, seen.st_mtime_ns + 10_000_000))
    flipped(one)
    os.utime(one, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    with pytest.raises(CorruptError):
        after(one)
