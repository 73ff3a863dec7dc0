"""Several workers make what one makes; one that dies leaves no result, and its finished files for the next attempt."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptctl.cli.app import main
from ckptctl.errors import UsageError
from ckptctl.storage.share import Share, parse_share
from tests.console import ROOT
from tests.samples import CORPUS
from tests.storage.stores import bucket

PAGE = (ROOT / "docs" / "how-to" / "many-workers.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
SHARDED = CORPUS / "ckptctl" / "ranks_4" / "step_100"
BIN = Path(sys.executable).parent


def tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def source(path: Path, count: int = 12, size: int = 50_000) -> Path:
    rng = np.random.default_rng(1)
    save_file({f"w{i}": rng.random(size, np.float32) for i in range(count)}, path)
    return path


def start(*words: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "ckptctl", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_page(tmp_path):
    (tmp_path / "sharded").symlink_to(SHARDED)
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    said = [
        subprocess.run(["sh", "-ec", block], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        for block in (BLOCKS[0], BLOCKS[2])
    ]
    assert [done.returncode for done in said] == [0, 0], said
    assert "whole" in said[0].stdout
    assert said[0].stderr.count("is done") == 4
    lines = [shlex.split(line)[1:] for line in BLOCKS[1].splitlines()]
    os.chdir(tmp_path)
    try:
        assert [main(line) for line in lines] == [0, 0]
        assert (
            main(
                ["consolidate", "sharded/", "--only", "all", "--max-shard-size", "2KB", "-o", "alone/model.safetensors"]
            )
            == 0
        )
    finally:
        os.chdir(ROOT)
    alone = tree(tmp_path / "alone")
    assert len(alone) > 9
    for name in ("merged", "by-hand", "broken-off"):
        assert tree(tmp_path / name) == alone


@pytest.mark.parametrize("count", [2, 4, 7])
def test_any_number_of_workers_makes_the_same(count, tmp_path, ckptctl):
    path = source(tmp_path / "x.safetensors")
    sizes = ("--max-shard-size", "500KB")
    assert ckptctl("convert", path, "-o", tmp_path / "one" / "m.safetensors", *sizes).status == 0
    for index in [*range(1, count), 0]:
        done = ckptctl("convert", path, "-o", tmp_path / "many" / "m.safetensors", *sizes, "--part", f"{index}/{count}")
        assert done.status == 0, done.err
        assert (done.out == "") == (index > 0)
    assert tree(tmp_path / "many") == tree(tmp_path / "one")


def test_killed_at_any_moment_there_is_no_index_and_continue_finishes(tmp_path, ckptctl):
    path = source(tmp_path / "x.safetensors", count=24, size=400_000)
    target = tmp_path / "many" / "m.safetensors"
    words = ("convert", path, "-o", target, "--max-shard-size", "4MB", "--quiet")
    assert ckptctl("convert", path, "-o", tmp_path / "one" / "m.safetensors", "--max-shard-size", "4MB").status == 0
    chosen, broken = random.Random(4), 0
    for turn in range(6):
        shutil.rmtree(tmp_path / "many", ignore_errors=True)
        workers = [start(*words, "--part", f"{index}/4") for index in range(4)]
        time.sleep(chosen.uniform(0.2, 0.7))
        for worker in workers if turn % 2 else workers[:2]:
            worker.send_signal(signal.SIGKILL)
        time.sleep(0.3)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            worker.communicate()
        if (tmp_path / "many" / "m.safetensors.index.json").exists():
            assert tree(tmp_path / "many") == tree(tmp_path / "one")
            continue
        broken += 1
        assert main(["inspect", str(tmp_path / "many")]) == 2
        again = [start(*words, "--continue", "--part", f"{index}/3") for index in range(3)]
        for worker in again:
            _, said = worker.communicate(timeout=60)
            assert worker.returncode == 0, said
        assert tree(tmp_path / "many") == tree(tmp_path / "one")
    assert broken


def test_a_worker_that_fails_ends_the_first_one_with_its_reason(tmp_path, ckptctl, monkeypatch):
    path = source(tmp_path / "x.safetensors")
    words = ("convert", path, "-o", tmp_path / "m" / "m.safetensors", "--max-shard-size", "500KB", "--part")
    with monkeypatch.context() as patch:
        patch.setattr(
            "ckptctl.rewrite.carry_out.read_back", lambda *_: (_ for _ in ()).throw(UsageError("no such luck"))
        )
        assert ckptctl(*words, "1/2").status == 2
    monkeypatch.setattr("ckptctl.rewrite.markers._GRACE", 0.1)
    done = ckptctl(*words, "0/2")
    assert done.status == 2
    assert "part 1: no such luck" in done.err
    assert "--continue" in done.err
    assert not (tmp_path / "m" / "m.safetensors.index.json").exists()
    assert ckptctl(*words, "1/2").status == 0
    assert ckptctl(*words, "0/2", "--continue").status == 0


def test_another_source_is_another_plan(tmp_path, ckptctl):
    path = source(tmp_path / "x.safetensors")
    words = ("convert", path, "-o", tmp_path / "m" / "m.safetensors", "--max-shard-size", "500KB")
    assert ckptctl(*words, "--part", "1/2").status == 0
    save_file({f"w{i}": np.zeros(50_000, np.float32) for i in range(12)}, path)
    assert ckptctl(*words, "--continue").status == 0
    assert ckptctl("diff", path, tmp_path / "m").status == 0


def test_what_was_there_is_not_replaced_without_force(tmp_path, ckptctl):
    path = source(tmp_path / "x.safetensors")
    words = ("convert", path, "-o", tmp_path / "m" / "m.safetensors", "--max-shard-size", "500KB")
    assert ckptctl(*words).status == 0
    before = tree(tmp_path / "m")
    for index in (0, 1):
        done = ckptctl(*words, "--part", f"{index}/2")
        assert (done.status, "exists already" in done.err) == (2, True)
    forced = ckptctl(*words, "--part", "0/2", "--force")
    assert (forced.status, "--force" in forced.err) == (2, True)
    assert {name: data for name, data in tree(tmp_path / "m").items() if not name.startswith(".")} == before


def test_many_sources_are_divided(tmp_path, ckptctl):
    for number in range(5):
        source(tmp_path / f"x{number}.safetensors", count=2, size=100)
    for index in range(2):
        done = ckptctl(
            "convert", *sorted(tmp_path.glob("x*")), "-o", tmp_path / "out", "--dtype", "bf16", "--part", f"{index}/2"
        )
        assert done.status == 0, done.err
        assert len(list((tmp_path / "out").glob("*.safetensors"))) == (3, 5)[index]


def test_in_a_bucket(ckptctl, tmp_path):
    store = bucket("many")
    path = source(tmp_path / "x.safetensors")
    words = ("convert", path, "-o", "s3://many/m/m.safetensors", "--max-shard-size", "500KB")
    assert ckptctl(*words, "--part", "1/3").status == 0
    assert "m/m.safetensors.index.json" not in store.keys
    assert ckptctl(*words, "--continue").status == 0
    assert not [key for key in store.keys if "ckptctl-parts" in key]
    assert ckptctl("diff", "s3://many/m", path).status == 0
    for index in (1, 0):
        done = ckptctl("verify", "s3://many/m", "--part", f"{index}/2")
        assert done.status == 0, done.err
    assert "digest verified" in done.out
    assert not [key for key in store.keys if "ckptctl-verify" in key]


def test_verify_gathers_what_all_have_found(tmp_path, ckptctl):
    path = source(tmp_path / "x.safetensors")
    assert ckptctl("convert", path, "-o", tmp_path / "m" / "m.safetensors", "--max-shard-size", "500KB").status == 0
    for index in (1, 2, 0):
        done = ckptctl("verify", tmp_path / "m", "--part", f"{index}/3", "--json")
        assert done.status == 0
    alone = json.loads(ckptctl("verify", tmp_path / "m", "--json").out)
    assert json.loads(done.out) == alone
    for shard in sorted((tmp_path / "m").glob("*.safetensors")):
        raw = bytearray(shard.read_bytes())
        raw[-1] ^= 1
        shard.write_bytes(raw)
    said = [ckptctl("verify", tmp_path / "m", "--part", f"{index}/3") for index in (1, 2, 0)]
    assert [done.status for done in said] == [0, 0, 1]
    assert said[-1].out == ckptctl("verify", tmp_path / "m").out
    assert said[-1].out.count("digest-mismatch") == len(list((tmp_path / "m").glob("*.safetensors")))
    assert not list(tmp_path.glob(".*"))


def test_what_an_old_attempt_said_does_not_count(tmp_path, monkeypatch, ckptctl):
    path = source(tmp_path / "x.safetensors")
    assert ckptctl("convert", path, "-o", tmp_path / "m" / "m.safetensors", "--max-shard-size", "500KB").status == 0
    assert ckptctl("verify", tmp_path / "m", "--part", "1/2").status == 0
    monkeypatch.setattr("ckptctl.checks.gather._OLDEST", -60.0)
    monkeypatch.setattr("ckptctl.checks.gather._PATIENCE", 0.5)
    done = ckptctl("verify", tmp_path / "m", "--part", "0/2")
    assert done.status == 2
    assert "no worker has said anything" in done.err


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, Share(2, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Share(0, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Share(1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Share(1, 2)),
        ({"JOB_COMPLETION_INDEX": "5", "JOB_COMPLETIONS": "6"}, Share(5, 6)),
    ],
)
def test_launchers(environment, share):
    assert parse_share("auto", environment) == share


@pytest.mark.parametrize("text", ["auto", "4/4", "1", "-1/4", "a/b", "1/0", ""])
def test_no_part_of_anything(text):
    with pytest.raises(UsageError, match="--part"):
        parse_share(text, {"RANK": "1"})


def test_without_the_option_the_environment_is_ignored(tmp_path, ckptctl, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = source(tmp_path / "x.safetensors")
    assert ckptctl("convert", path, "-o", tmp_path / "m" / "m.safetensors", "--max-shard-size", "500KB").status == 0
    assert "whole" in ckptctl("verify", tmp_path / "m").out


def test_owners_are_even():
    sizes = [random.Random(5).randint(1, 100) for _ in range(200)]
    owners = Share(0, 7).owners(sizes, [str(number) for number in range(200)])
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == one) for one in range(7)]
    assert max(loads) - min(loads) <= max(sizes)
    assert Share(0, 3).owners([0, 0, 0], ["a", "b", "c"]) == [0, 1, 2]


def shards_of(tmp_path, ckptctl):
    """Return a source, the words that cut it, and what one worker makes of it."""
    path = source(tmp_path / "x.safetensors")
    words = ("convert", path, "-o", tmp_path / "m" / "m.safetensors", "--max-shard-size", "500KB")
    assert ckptctl(*words[:3], tmp_path / "one" / "m.safetensors", *words[4:]).status == 0
    return path, words, tree(tmp_path / "one")


@pytest.mark.parametrize("part", [(), ("--part", "0/2"), ("--part", "1/2")])
def test_continue_replaces_nothing_that_no_attempt_has_written(part, tmp_path, ckptctl):
    _, words, whole = shards_of(tmp_path, ckptctl)
    (tmp_path / "m").mkdir()
    for name in whole:
        if name.endswith(".safetensors"):
            (tmp_path / "m" / name).write_bytes(b"of somebody else")
    done = ckptctl(*words, "--continue", *part)
    assert (done.status, "no unfinished attempt at this result has written it" in done.err) == (2, True), done.err
    left = {name: data for name, data in tree(tmp_path / "m").items() if "ckptctl-parts" not in name}
    assert set(left.values()) == {b"of somebody else"}


@pytest.mark.parametrize("target", ["m.safetensors", "m.pt"])
def test_continue_replaces_no_single_file_of_somebody_else(target, tmp_path, ckptctl):
    path = source(tmp_path / "x.safetensors", count=2, size=10)
    (tmp_path / target).write_bytes(b"of somebody else")
    done = ckptctl("convert", path, "-o", tmp_path / target, "--continue")
    assert (done.status, (tmp_path / target).read_bytes()) == (2, b"of somebody else")


def test_continue_takes_up_a_file_that_was_begun(tmp_path, ckptctl, monkeypatch):
    """Killed between the name of a file and its marker."""
    _, words, whole = shards_of(tmp_path, ckptctl)
    with monkeypatch.context() as patch:
        patch.setattr("ckptctl.rewrite.markers.Markers.finish", lambda *_: os._exit(9))
        if not (child := os.fork()):
            main([str(word) for word in (*words, "--part", "0/2")])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list((tmp_path / "m").glob("*.safetensors"))
    assert ckptctl(*words, "--continue").status == 0
    assert tree(tmp_path / "m") == whole


def damaged_in_place(path: Path, count: int, *, seen: bool = False) -> None:
    """Write zeros over the last bytes; unless it is to be `seen`, with the time that it had."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-count, 2)
        file.write(bytes(count))
    if not seen:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_finished_file_that_was_changed_is_written_again(tmp_path, ckptctl):
    _, words, whole = shards_of(tmp_path, ckptctl)
    for seen in (True, False):
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        assert ckptctl(*words, "--part", "1/2").status == 0
        damaged_in_place(min((tmp_path / "m").glob("*.safetensors")), 900, seen=seen)
        assert ckptctl(*words, "--continue").status == 0
        assert tree(tmp_path / "m") == whole


def test_whoever_comes_late_to_a_result_writes_nothing_and_the_first_worker_refuses_it(tmp_path, ckptctl):
    """What it was made of nobody can tell any more: of another source it may have the same index."""
    path, words, whole = shards_of(tmp_path, ckptctl)
    assert ckptctl(*words, "--part", "1/2").status == 0
    assert ckptctl(*words, "--part", "0/2").status == 0
    times = {one: one.stat().st_mtime_ns for one in (tmp_path / "m").iterdir()}
    for _ in range(2):
        for part in (("--part", "1/2"), ("--part", "2/3")):
            assert ckptctl(*words, "--continue", *part).status == 0
        for part in (("--part", "0/2"), ()):
            done = ckptctl(*words, "--continue", *part)
            assert (done.status, "a result is complete" in done.err) == (2, True), done.err
        assert tree(tmp_path / "m") == whole
        assert {one: one.stat().st_mtime_ns for one in (tmp_path / "m").iterdir()} == times
        save_file({f"w{i}": np.zeros(50_000, np.float32) for i in range(12)}, path)


@pytest.mark.parametrize("check", [True, False])
def test_what_others_had_finished_is_looked_at_before_it_is_committed(check, tmp_path, ckptctl, monkeypatch):
    monkeypatch.setattr("ckptctl.rewrite.markers._GRACE", 0.1)
    _, words, whole = shards_of(tmp_path, ckptctl)
    assert ckptctl(*words, "--part", "1/2").status == 0
    damaged_in_place(min((tmp_path / "m").glob("*.safetensors")), 9)
    done = ckptctl(*words, "--continue", "--part", "0/2", *(() if check else ("--no-check",)))
    assert done.status == (2 if check else 0), done.err
    if check:
        assert "is not what was finished" in done.err
        both = [start(*words, "--continue", "--quiet", "--part", f"{index}/2") for index in (0, 1)]
        for one in both:
            _, said = one.communicate(timeout=60)
            assert one.returncode == 0, said
        assert tree(tmp_path / "m") == whole


def test_a_failing_plan_leaves_nothing_and_a_dry_run_tells_nobody(tmp_path, ckptctl):
    _, words, _ = shards_of(tmp_path, ckptctl)
    missing = ("convert", tmp_path / "nosuch", "-o", tmp_path / "new" / "m.safetensors", "--part")
    for part in ("1/2", "0/2"):
        assert ckptctl(*missing, part).status == 2
    assert not (tmp_path / "new").exists()
    assert ckptctl(*words, "--part", "1/2").status == 0
    there = set((tmp_path / "m").rglob("*"))
    assert ckptctl("convert", tmp_path / "nosuch", *words[2:], "--part", "1/2", "--dry-run").status == 2
    assert set((tmp_path / "m").rglob("*")) == there
    assert ckptctl(*words, "--part", "0/2").status == 0
    late = ckptctl(*words, "--part", "1/2")
    assert (late.status, list((tmp_path / "m").glob(".*"))) == (2, [])


def test_markers_that_a_kill_left_beside_a_committed_result_go(tmp_path, ckptctl, monkeypatch):
    _, words, whole = shards_of(tmp_path, ckptctl)
    with monkeypatch.context() as patch:
        patch.setattr("ckptctl.rewrite.markers.Markers.clear", lambda _: None)
        assert ckptctl(*words, "--part", "0/1").status == 0
    assert list((tmp_path / "m").glob(".*"))
    assert ckptctl(*words, "--continue").status == 0
    assert tree(tmp_path / "m") == whole


def test_workers_that_take_up_what_is_finished_all_end_well(tmp_path, ckptctl):
    _, words, whole = shards_of(tmp_path, ckptctl)
    for turn in range(4):
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        for index in (1, 2, 3):
            assert ckptctl(*words, "--part", f"{index}/4").status == 0
        late = [start(*words, "--continue", "--quiet", "--part", f"{index}/4") for index in (0, 1, 2)]
        time.sleep(0.1 * turn)
        late.append(start(*words, "--continue", "--quiet", "--part", "3/4"))
        for one in late:
            _, said = one.communicate(timeout=60)
            assert one.returncode == 0, said
        assert tree(tmp_path / "m") == whole


def test_a_worker_that_cannot_open_the_source_tells_the_first_one(tmp_path, ckptctl, monkeypatch):
    monkeypatch.setattr("ckptctl.rewrite.markers._GRACE", 0.1)
    path, words, _ = shards_of(tmp_path, ckptctl)
    path.rename(tmp_path / "away")
    assert ckptctl(*words, "--part", "1/2").status == 2
    (tmp_path / "away").rename(path)
    done = ckptctl(*words, "--part", "0/2")
    assert (done.status, "part 1: " in done.err, "no such file" in done.err) == (2, True, True), done.err
    run = tmp_path / "sharded"
    shutil.copytree(SHARDED, run)
    words = ("consolidate", run, "--only", "all", "--max-shard-size", "2KB", "-o", tmp_path / "c" / "m.safetensors")
    run.rename(tmp_path / "gone")
    assert ckptctl(*words, "--part", "1/2").status == 2
    (tmp_path / "gone").rename(run)
    done = ckptctl(*words, "--part", "0/2")
    assert (done.status, "part 1: " in done.err) == (2, True), done.err


def test_a_worker_that_cannot_look_tells_the_first_one(tmp_path, ckptctl, monkeypatch):
    monkeypatch.setattr("ckptctl.checks.gather._GRACE", 0.1)
    _, words, _ = shards_of(tmp_path, ckptctl)
    assert ckptctl(*words).status == 0
    (tmp_path / "m").rename(tmp_path / "away")
    assert ckptctl("verify", tmp_path / "m", "--part", "1/2").status == 2
    (tmp_path / "away").rename(tmp_path / "m")
    done = ckptctl("verify", tmp_path / "m", "--part", "0/2")
    assert (done.status, "part 1: " in done.err) == (2, True), done.err
    assert ckptctl("verify", tmp_path / "m", "--part", "1/2").status == 0
    assert ckptctl("verify", tmp_path / "m", "--part", "0/2").status == 0
    assert not list(tmp_path.glob(".*"))


def test_two_attempts_of_one_launcher_each_do_not_meet(tmp_path, ckptctl, monkeypatch):
    _, words, _ = shards_of(tmp_path, ckptctl)
    assert ckptctl(*words).status == 0
    attempts = [
        {"TORCHELASTIC_RUN_ID": name, "MASTER_ADDR": "here", "MASTER_PORT": "1", "WORLD_SIZE": "2"} for name in "ab"
    ]
    shares = {parse_share("auto", {**one, "RANK": rank}).attempt for one in attempts for rank in "01"}
    assert (len(shares), parse_share("0/2", attempts[0] | {"RANK": "0"}).attempt) == (2, "")

    def worker(attempt, rank):
        with monkeypatch.context() as patch:
            for name, value in {**attempts[attempt], "RANK": str(rank)}.items():
                patch.setenv(name, value)
            return ckptctl("verify", tmp_path / "m", "--part", "auto")

    said = [worker(0, 1), worker(1, 1), worker(0, 0), worker(1, 0)]
    assert [one.status for one in said] == [0, 0, 0, 0]
    assert not list(tmp_path.glob(".*"))


def test_verifications_at_once_all_end(tmp_path, ckptctl):
    """By hand, with nothing to tell the attempts apart."""
    _, words, _ = shards_of(tmp_path, ckptctl)
    assert ckptctl(*words).status == 0
    workers = [start("verify", tmp_path / "m", "--part", f"{index}/3") for _ in range(2) for index in (1, 2)]
    for one in workers:
        _, said = one.communicate(timeout=60)
        assert one.returncode == 0, said
    assert ckptctl("verify", tmp_path / "m", "--part", "0/3").status == 0


def test_what_broke_off_long_ago_is_swept(tmp_path, ckptctl, monkeypatch):
    _, words, _ = shards_of(tmp_path, ckptctl)
    assert ckptctl(*words).status == 0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ckptctl("verify", tmp_path / "m", "--part", "auto").status == 0
    (left,) = tmp_path.glob(".m.ckptctl-verify-*")
    os.utime(left, (1, 1))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "y")
    assert ckptctl("verify", tmp_path / "m", "--part", "auto").status == 0
    assert not list(tmp_path.glob(".*"))


def test_a_worker_that_cannot_read_tells_the_first_one_and_is_not_done(tmp_path, ckptctl, monkeypatch):
    monkeypatch.setattr("ckptctl.checks.gather._GRACE", 0.1)
    _, words, _ = shards_of(tmp_path, ckptctl)
    assert ckptctl(*words).status == 0
    with monkeypatch.context() as patch:
        patch.setattr(
            "ckptctl.checks.intact._read", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "Input/output error"))
        )
        said = ckptctl("verify", tmp_path / "m", "--part", "1/2")
    assert (said.status, "is done" in said.err) == (2, False), said.err
    done = ckptctl("verify", tmp_path / "m", "--part", "0/2")
    assert (done.status, "part 1: " in done.err) == (2, True), done.err
