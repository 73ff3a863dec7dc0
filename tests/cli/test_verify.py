"""`ckptctl verify` as its user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from tests.samples import CORPUS

GOOD = CORPUS / "torch_save" / "train_dict.pt"
BAD = CORPUS / "damaged" / "pt_flipped_storage_byte_crc_wrong.pt"


def test_a_good_one_is_one_line(ckptctl):
    result = ckptctl("verify", GOOD)
    assert result.status == 0
    assert result.out == f"✓ {GOOD}   whole · 39 tensors · 44 CRCs verified\n"
    assert result.err == ""


def test_a_bad_one_says_what_where_and_how_much(ckptctl):
    result = ckptctl("verify", BAD)
    assert result.status == 1
    assert result.out.splitlines()[0].startswith("✗ ")
    assert "bytes/bad-crc" in result.out
    assert "damaged: model_state_dict.block.0.weight (1 of 38 tensors)" in result.out


def test_it_goes_on_after_a_bad_one_and_sums_up(ckptctl, tmp_path):
    result = ckptctl("verify", BAD, tmp_path / "nothing", GOOD)
    assert result.status == 2
    assert [line[0] for line in result.out.splitlines() if line and line[0] in "✓✗?"] == ["✗", "?", "✓"]
    assert "1 not looked at, 1 verified, 1 with findings" in result.out.splitlines()[-1]


def test_brief_quiet_and_json(ckptctl):
    assert len(ckptctl("verify", BAD, "-q").out.splitlines()) == 1
    quiet = ckptctl("verify", GOOD, "--quiet")
    assert (quiet.out, quiet.err) == ("", "")
    quiet = ckptctl("verify", BAD, "--quiet")
    assert quiet.out == ""
    assert "bytes/bad-crc" in quiet.err
    document = json.loads(ckptctl("verify", BAD, "--json").out)
    assert document["schema"] == "ckptctl.verify/1"
    (report,) = document["checkpoints"]
    assert report["judgement"] == "wrong"
    assert report["bytes"] == "failed"
    (finding,) = report["findings"]
    assert (finding["aspect"], finding["severity"], finding["slug"]) == ("bytes", "error", "bad-crc")


def test_unverified_is_not_verified(ckptctl, tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"w": torch.ones(3)}, path)
    result = ckptctl("verify", path)
    assert result.status == 0
    assert result.out.startswith("? ")
    assert "unverified: no digest on record (--write makes one)" in result.out
    assert ckptctl("verify", path, "--strict").status == 1
    assert f"wrote {path}.sha256" in ckptctl("verify", path, "--write").out
    assert ckptctl("verify", path, "--strict").out == f"✓ {path}   whole · 1 tensor · digest verified\n"


def test_a_run_gives_a_verdict_for_each(ckptctl):
    result = ckptctl("verify", CORPUS / "damaged" / "trainer_last_save_cut_short")
    assert result.status == 1
    assert "checkpoint-40" in result.out
    assert "trainer_state.json, which is written last, is missing" in result.out
    quick = ckptctl("verify", CORPUS / "damaged" / "trainer_last_save_cut_short", "--quick")
    assert quick.status == 1
    assert "1 whole, 2 with findings" in quick.out


def test_only_the_path_of_the_newest_good_one(ckptctl):
    result = ckptctl("verify", "--latest-good", CORPUS / "damaged" / "trainer_last_save_cut_short")
    assert result.status == 0
    assert result.out == f"{CORPUS / 'damaged' / 'trainer_last_save_cut_short' / 'checkpoint-10'}\n"
    assert result.err.count("ckptctl: skipped ") == 2
    document = json.loads(
        ckptctl("verify", "--latest-good", CORPUS / "damaged" / "trainer_last_save_cut_short", "--json").out
    )
    assert document["latest_good"].endswith("checkpoint-10")


def test_no_good_one_is_a_no(ckptctl, tmp_path):
    shutil.copy(CORPUS / "damaged" / "pt_truncated_half.pt", tmp_path / "checkpoint-10.pt")
    result = ckptctl("verify", "--latest-good", tmp_path)
    assert (result.status, result.out) == (1, "")
    assert "no good checkpoint" in result.err


def test_several_runs_are_not_chosen_among(ckptctl, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(GOOD, tmp_path / name / "checkpoint-10.pt")
    result = ckptctl("verify", "--latest-good", tmp_path)
    assert result.status == 2
    assert "it holds 2 runs" in result.err


def test_a_class_of_ones_own(ckptctl, monkeypatch):
    path = CORPUS / "torch_save" / "custom_class.pt"
    assert ckptctl("verify", path).status == 1
    options = ("--allow-global", "user_model.TrainConfig", "--allow-global", "user_model.Phase")
    assert ckptctl("verify", path, *options).status == 0
    monkeypatch.setenv("CKPTCTL_ALLOW_GLOBAL", "user_model.TrainConfig user_model.Phase")
    assert ckptctl("verify", path).status == 0


def test_a_resume_is_judged(ckptctl):
    result = ckptctl("verify", GOOD, "--resume")
    assert result.status == 0
    assert "resume CONTINUES: without data position" in result.out
    assert ckptctl("verify", GOOD, "--require", "continues").status == 0
    assert ckptctl("verify", GOOD, "--require", "exact").status == 1


def test_names_from_a_file_are_escaped(ckptctl, tmp_path):
    safetensors.torch.save_file({"\x1b[31m\u202e": torch.tensor([float("nan")])}, tmp_path / "m.safetensors")
    out = ckptctl("verify", tmp_path / "m.safetensors", "--values").out
    assert "not-finite" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_marks_have_stand_ins(encoding):
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-m", "ckptctl", "verify", GOOD], capture_output=True, check=True, env=env)
    assert done.stdout.decode(encoding)[0] == ("✓" if encoding == "utf-8" else "+")


def test_an_interruption_is_answered_at_once(tmp_path):
    """Also while threads are in the middle of large files: these 64 GB would take half a minute."""
    for index in range(2):
        path = tmp_path / f"m{index}.safetensors"
        header = json.dumps({"w": {"dtype": "U8", "shape": [32 << 30], "data_offsets": [0, 32 << 30]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + (32 << 30))
        path.with_name(f"{path.name}.sha256").write_text("0" * 64)
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptctl", "verify", *sorted(tmp_path.glob("*.safetensors"))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )  # fmt: skip
    time.sleep(1.5)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == b"ckptctl: interrupted\n"
    assert time.monotonic() - start < 5


def test_memory_does_not_grow_with_the_bytes(tmp_path):
    from tests.hostile.test_inspect import run

    for name, count in (("small", 10), ("large", 100)):
        safetensors.torch.save_file(
            {f"w{i}": torch.ones(1 << 20) for i in range(count)}, tmp_path / f"{name}.safetensors"
        )
    peaks = [
        run("verify", tmp_path / f"{name}.safetensors", "--values", "--write")["peak"] for name in ("small", "large")
    ]
    assert peaks[1] < 120_000_000
    assert peaks[1] - peaks[0] < 30_000_000


def test_whoever_stops_reading_still_gets_the_status(tmp_path):
    (tmp_path / "bad.pt").write_bytes(BAD.read_bytes())
    command = [sys.executable, "-m", "ckptctl", "verify", *[str(tmp_path / "bad.pt")] * 400]
    reader, writer = os.pipe()
    os.close(reader)
    assert subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False).returncode == 1
    os.close(writer)


def test_the_path_of_the_newest_is_printed_as_it_is(tmp_path):
    run = os.fsencode(tmp_path) + b"/r\xff\x1b"
    os.mkdir(run)  # a name of bytes
    torch.save({"model": {"w": torch.ones(2)}, "step": 1}, os.fsdecode(run) + "/step_1.pt")
    command = [sys.executable, "-m", "ckptctl", "verify", "--latest-good", run]
    result = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert result.stdout == run + b"/step_1.pt\n"


def test_a_pattern_may_take_digests_along(ckptctl, tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(2)}, path)
    assert ckptctl("verify", "--write", path).status == 0
    result = ckptctl("verify", *sorted(tmp_path.iterdir()))
    assert (result.status, len(result.out.splitlines())) == (0, 1)
