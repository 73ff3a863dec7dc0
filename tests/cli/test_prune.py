"""`ckptctl prune` as its user meets it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from datetime import datetime, timezone

import pytest
import safetensors.torch
import torch

from ckptctl.storage.directory import Directory
from tests.samples import CORPUS

TRAINER = CORPUS / "transformers" / "trainer_run"


@pytest.fixture
def run(tmp_path):
    """A run of five small files."""
    directory = tmp_path / "run"
    directory.mkdir()
    for step in (1000, 2000, 3000, 60000, 61000):
        path = directory / f"step_{step}.safetensors"
        safetensors.torch.save_file({"w": torch.ones(4)}, path)
        os.utime(path, (1e9 + step, 1e9 + step))
    return directory


def names(path):
    return sorted(one.name for one in path.iterdir())


def test_the_plan_comes_first_with_every_reason(ckptctl, run):
    result = ckptctl("prune", run, "--keep-last", 1, "--anchor-every", 50000, "--dry-run")
    assert result.status == 0
    lines = [line.split() for line in result.out.splitlines() if line]
    assert lines[0][1:] == ["·", "5", "checkpoints", "·", "keep", "last", "1,", "anchor", "every", "50,000"]
    assert lines[1] == ["action", "step", "saved", "size", "reasons"]
    assert [line[0] for line in lines[2:7]] == ["delete"] * 3 + ["keep"] * 2
    assert result.out.splitlines()[6].endswith("anchor 50,000")
    assert result.out.splitlines()[7].endswith("last 1 of 1 · newest")
    assert "note: step: no metric is declared" in result.out
    assert "delete 3 of 5, free 12.3 kB, keep 2 · nothing was changed (--dry-run)" in result.out
    assert len(names(run)) == 5


def test_with_a_rule_it_acts_and_says_so(ckptctl, run):
    result = ckptctl("prune", run, "--keep-last", 2)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[-1] == "deleted 3 of 5, freed 12.3 kB"
    assert names(run) == ["step_60000.safetensors", "step_61000.safetensors"]
    again = ckptctl("prune", run, "--keep-last", 2)
    assert again.out.splitlines()[-1] == "delete 0 of 2, free 0 B, keep 2"


def test_without_a_rule_and_nobody_to_ask_it_refuses(ckptctl, run):
    result = ckptctl("prune", run)
    assert result.status == 2
    assert "no rule was given, and nobody can be asked" in result.err
    assert len(names(run)) == 5
    assert ckptctl("prune", run, "--yes", "--quiet").out == ""
    assert len(names(run)) == 3


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--keep-last", "0", "--keep-best", "0", "--anchor-every", "0"], "every rule is off"),
        (["--keep-last", "-1"], "not in the range"),
        (["--keep-last", "x"], "not a valid"),
        (["--keep-within", "yesterday"], "is no time"),
        (["--keep-within", "999999999w"], "too long a time"),
        (["--keep-step", "1,two"], "no list of steps"),
        (["--keep-best", "0", "--metric", "loss"], "that is off"),
        (["--anchor-every", "0", "--anchor-mode", "exact"], "--anchor-every is off"),
        (["--remove-incomplete", "5min", "--keep-last", "1"], "1h at least"),
        (["--keep", ""], "not an empty one"),
        (["--max-delete", "2", "--keep-last", "1"], "--max-delete is 2"),
        (["--metric", "eval_lss", "--keep-last", "1"], "has the metric eval_lss"),
        (["--trash-for", "7", "--keep-last", "1"], "is no time"),
    ],
)
def test_nonsense_is_refused_and_nothing_is_deleted(ckptctl, run, options, word):
    result = ckptctl("prune", run, *options)
    assert result.status == 2
    assert word in result.err
    assert len(names(run)) == 5


def test_every_rule_can_be_given(ckptctl, run):
    options = ["--keep-last", 0, "--keep-best", 0, "--anchor-every", 0, "--keep-step", "1000", "--keep", "*_2000*"]
    result = ckptctl("prune", run, *options, "--keep-within", "1h", "--keep-every", "1d12h", "-n")
    assert "keep within 1 h, one in 1 d 12 h, 1 step, name *_2000*" in result.out
    kept = [line.split()[1] for line in result.out.splitlines() if line.startswith("keep ")]
    assert kept == ["1,000", "2,000", "60,000", "61,000"]


def test_one_document(ckptctl, run):
    document = json.loads(ckptctl("prune", run, "--keep-last", 1, "--keep-within", "1h", "--json").out)
    assert document["schema"] == "ckptctl.prune/1"
    assert document["dry_run"] is False
    (one,) = document["runs"]
    assert document["freed_bytes"] == one["freed"] == one["frees"] > 0
    (group,) = one["groups"]
    assert group["policy"]["last"] == 1
    assert group["policy"]["within"] == 3600
    assert [found["action"] for found in group["checkpoints"]] == ["delete"] * 3 + ["keep"] * 2
    assert group["checkpoints"][4]["reasons"] == ["last 1 of 1", "recent", "newest"]
    assert one["deleted"] == [str(run / f"step_{step}.safetensors") for step in (1000, 2000, 3000)]


def test_several_runs_have_one_summary(ckptctl, run, tmp_path):
    shutil.copytree(TRAINER, tmp_path / "other")
    result = ckptctl("prune", tmp_path, "--keep-last", 1, "--keep-best", 0)
    assert result.out.splitlines()[-2].startswith("2 runs: delete 6 of 9, free ")
    assert result.out.splitlines()[-1].startswith("deleted 6 of 9, freed ")
    assert len(names(run)) == 2


def test_the_directory_may_come_from_the_environment_or_be_this_one(ckptctl, run, monkeypatch):
    monkeypatch.setenv("CKPTCTL_DIR", str(run))
    assert ckptctl("prune", "--keep-last", 1, "-n").status == 0
    monkeypatch.delenv("CKPTCTL_DIR")
    monkeypatch.chdir(run)
    assert ckptctl("prune", "--keep-last", 1, "--quiet").status == 0
    assert len(names(run)) == 2


def test_trash_and_restore(ckptctl, run):
    result = ckptctl("prune", run, "--keep-last", 1, "--trash-for", "7d")
    assert result.out.splitlines()[-1] == (
        "put into the trash for 7 d: 3 of 5, freed 0 B, --restore step_1000.safetensors brings it back"
    )
    back = ckptctl("prune", run, "--restore", "step_2000.safetensors")
    assert (back.status, back.out.splitlines()[0]) == (0, f"restored {run / 'step_2000.safetensors'}")
    assert "pin it (" in back.out
    gone = ckptctl("prune", run, "--restore", "step_2000.safetensors")
    assert gone.status == 2
    assert "hint: there is step_1000.safetensors, step_3000.safetensors" in gone.err
    document = json.loads(ckptctl("prune", run, "--restore", "step_1000.safetensors", "--json").out)
    assert document["restored"] == [str(run / "step_1000.safetensors")]


def test_a_second_one_says_who_is_in_the_way(ckptctl, run):
    with Directory(run) as directory:
        directory.lock()
        result = ckptctl("prune", run, "--keep-last", 1)
        assert result.status == 2
        assert "another prune is at work here\n  hint: --wait waits for it" in result.err
        assert ckptctl("prune", run, "--keep-last", 1, "--dry-run").status == 0
        assert ckptctl("prune", run, "--keep-last", 1, "--no-lock").status == 2  # that is for file systems without any


def test_what_could_not_be_removed_is_a_no(ckptctl, run, monkeypatch):
    real = os.unlink

    def unlink(name, **options):
        if "step_2000" in name:
            raise PermissionError(1, "Operation not permitted")
        real(name, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    result = ckptctl("prune", run, "--keep-last", 2, "--quiet")
    assert (result.status, result.out) == (1, "")
    assert "step_2000.safetensors: Operation not permitted; the rest of it lies in .ckptctl-trash-" in result.err


def test_names_are_escaped(ckptctl, run):
    (run / "best\x1b[31m.pt").symlink_to("step_1000.safetensors")
    result = ckptctl("prune", run, "--keep-last", 1, "-n")
    assert "\x1b" not in result.out
    assert "best\\x1b[31m.pt" in result.out


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, 2), ("n\n", 1, 5), ("\n", 1, 5), ("\x04", 1, 5)])
def test_somebody_at_a_terminal_is_asked(run, answer, status, left):
    main, side = pty.openpty()
    command = [sys.executable, "-m", "ckptctl", "prune", str(run), "--keep-last", "1"]
    with subprocess.Popen(command, stdin=side, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.write(main, answer.encode())
        out, err = process.communicate(timeout=60)
    os.close(main)
    os.close(side)
    assert process.returncode == status
    assert "Delete 3 checkpoints, 12.3 kB? [y/N]" in err
    assert "delete 3 of 5" in out
    assert len(names(run)) == left


def test_a_time_of_today_is_shown_as_an_age(ckptctl, run):
    now = datetime.now(tz=timezone.utc).timestamp()
    os.utime(run / "step_61000.safetensors", (now - 600, now - 600))
    assert "10 min ago" in ckptctl("prune", run, "--keep-last", 1, "-n").out
