"""`ckptctl convert` as its user meets it: in a terminal, in a pipe, with several sources, interrupted."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ckptctl.cli._convert_options import parse_size
from ckptctl.errors import UsageError
from tests.samples import CORPUS, read

TRAIN = CORPUS / "torch_save" / "train_dict.pt"


def test_says_what_it_wrote(ckptctl, tmp_path):
    result = ckptctl("convert", TRAIN, "-o", tmp_path / "x.safetensors")
    assert result.status == 0
    assert result.err == ""
    assert "x.safetensors   39 tensors · 23.0 kB" in result.out
    assert "bytes checked against 39 recorded CRCs · sha256 " in result.out
    assert "56 plain values kept" in result.out


def test_brief_and_quiet(ckptctl, tmp_path):
    assert len(ckptctl("convert", TRAIN, "-o", tmp_path / "a.safetensors", "-q").out.splitlines()) == 1
    result = ckptctl("convert", TRAIN, "-o", tmp_path / "b.safetensors", "--quiet")
    assert (result.status, result.out, result.err) == (0, "", "")


def test_one_document(ckptctl, tmp_path):
    document = json.loads(ckptctl("convert", TRAIN, "-o", tmp_path / "x.safetensors", "--json").out)
    assert document["schema"] == "ckptctl.convert/1"
    (made,) = document["conversions"]
    assert made["bytes_checked"] == "verified"
    assert made["written"] is True
    assert len(made["files"][0]["tensors"]) == 40
    assert len(made["files"][0]["sha256"]) == 64


def test_dry_run_shows_the_plan_and_writes_nothing(ckptctl, tmp_path):
    target = tmp_path / "new" / "x.safetensors"
    result = ckptctl("convert", TRAIN, "-o", target, "--dry-run", "--only", "model", "--dtype", "f16")
    assert result.status == 0
    assert "cast from F32" in result.out
    assert "from model_state_dict.embed.weight" in result.out
    assert result.out.endswith("nothing was written, and no tensor was read (--dry-run)\n")
    document = json.loads(ckptctl("convert", TRAIN, "-o", target, "-n", "--json").out)
    assert document["dry_run"] is True
    assert document["conversions"][0]["written"] is False
    assert list(tmp_path.iterdir()) == []


def test_several_sources_go_on_after_a_bad_one(ckptctl, tmp_path):
    bad = CORPUS / "damaged" / "pt_truncated_half.pt"
    result = ckptctl("convert", bad, TRAIN, CORPUS / "torch_save" / "tied.pt", "-o", tmp_path / "out")
    assert result.status == 2
    assert "cut at 13594 bytes" in result.err
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == {
        "train_dict.safetensors",
        "tied.safetensors",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-shard-size", "lots"), "lots: not a size"),
        (("--max-shard-size", "0"), "0: not a size"),
        (("--rename", "x"), "not of the form REGEX=REPL"),
        (("--dtype", "int8"), "int8"),
        (("--only", "everything"), "everything"),
        (("--only", "data"), "it has no data"),
    ],
)
def test_options_that_make_no_sense(options, words, ckptctl, tmp_path):
    result = ckptctl("convert", TRAIN, "-o", tmp_path / "x.safetensors", *options)
    assert result.status == 2
    assert words in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500 MB", 5 * 10**8), ("2GiB", 2 << 30), ("1.5k", 1500), ("7", 7), ("7b", 7)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5XB", "1e9", "0.1"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError):
        parse_size(text)


def test_names_from_a_file_are_escaped(ckptctl, tmp_path):
    torch.save({"\x1b[31mred\u202e": torch.ones(2), "[/]": torch.ones(1)}, tmp_path / "m.pt")
    for options in ((), ("--dry-run", "--force"), ("--force", "--rename", ".=x[red]")):
        out = ckptctl("convert", tmp_path / "m.pt", *options).out
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_an_error_in_json(ckptctl, tmp_path):
    result = ckptctl(
        "convert", CORPUS / "torch_save" / "calls_print_on_load.pt", "-o", tmp_path / "x.safetensors", "--json"
    )
    assert result.status == 2
    assert json.loads(result.err)["error"]["slug"] == "unsafe-pickle"
    assert json.loads(result.out)["conversions"] == []


def large(path: Path, megabytes: int) -> Path:
    torch.save({f"w{i}": torch.ones(1 << 20, dtype=torch.float32) for i in range(megabytes // 4)}, path)
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] * 3)
def test_interrupted_it_leaves_nothing(number, tmp_path):
    source = large(tmp_path / "m.pt", 400)
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptctl", "convert", source], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )  # fmt: skip
    until = time.monotonic() + 20
    while not (tmp_path / ".m.safetensors.ckptctl-tmp").exists() and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "ckptctl: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_a_terminal_sees_a_bar_and_a_pipe_does_not(tmp_path):
    source = large(tmp_path / "m.pt", 400)
    main, other = pty.openpty()
    command = [sys.executable, "-m", "ckptctl", "convert", str(source), "--force"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=other, env=env)
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    out, _ = process.communicate()
    os.close(main)
    assert process.returncode == 0
    assert b"MB" in shown
    assert b"\x1b" not in out
    done = subprocess.run(command, capture_output=True, check=True, env=env)
    assert done.stderr == b""
    assert read(tmp_path / "m.safetensors").tensors


def test_memory_does_not_grow_with_the_bytes(tmp_path):
    from tests.hostile.test_inspect import run

    peaks = {}
    for megabytes in (40, 400):
        source = large(tmp_path / f"m{megabytes}.pt", megabytes)
        result = run("convert", source, "--dtype", "bf16", "--quiet")
        assert result["status"] == 0
        peaks[megabytes] = result["peak"]
    assert peaks[400] < 120_000_000
    assert peaks[400] - peaks[40] < 30_000_000
