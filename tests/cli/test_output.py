"""Lines for a terminal: aligned, cut and broken so that they fit; escaped so that they do nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.cli._output import columns, to_json, wrapped
from ckptctl.cli._text import count, escape, number, plural, size
from ckptctl.model import Level
from ckptctl.values import State
from tests.samples import CORPUS, HERE


def flat(rows, align, width=None):
    return [line for lines in columns(rows, align, width=width) for line in lines]


def test_columns_align_and_empty_ones_vanish():
    assert flat([("a", "1", "", "x"), ("bbb", "22", "", "y")], "<><<") == ["a      1   x", "bbb   22   y"]
    assert flat([], "<>") == []
    assert flat([("", "")], "<>") == [""]


def test_the_last_column_breaks_between_words():
    assert flat([("name", "one two three four five")], "<<", width=24) == ["name   one two three", "       four five"]


def test_the_first_column_is_cut_in_its_middle_where_nothing_else_gives():
    (line,) = flat([("model.layers.0.self_attn.q_proj.weight", "1,024")], ">>".replace(">", "<", 1), width=40)
    assert len(line) <= 40
    assert line.startswith("model.layers.0.s")
    assert "…" in line
    assert "proj.weight" in line


def test_wide_characters_count_as_two_cells():
    assert flat([("日本", "1"), ("abcd", "2")], "<<") == ["日本   1", "abcd   2"]


def test_sentences_break_between_words():
    assert wrapped("note: one two three four", 12) == ["note: one", "  two three", "  four"]
    assert wrapped("a" * 200, None) == ["a" * 200]
    assert wrapped("x " + "a" * 20, 10) == ["x", "  " + "a" * 20]


@given(st.text())
def test_escaped_text_is_printable_and_tells_apart(text):
    shown = escape(text, limit=10**6)
    assert shown.isprintable()
    if text.isprintable() and "\\" not in text:
        assert shown == text
    restored = re.sub(
        r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})",
        lambda m: "\\" if m[1] == "\\" else chr(int(m[1][1:], 16)),
        shown,
    )
    assert restored == text


@given(st.characters())
def test_no_control_format_or_private_character_is_shown(char):
    if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        assert char not in escape(char)


def test_long_names_are_cut():
    assert escape("a" * 1000) == "a" * 199 + "…"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (27189, "27.2 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
     (497_800_000, "497.8 MB"), (1_493_000_000, "1.49 GB"), (16_100_000_000, "16.1 GB"), (999_990_000_000, "1.00 TB"),
     (10**21, "1,000.0 EB")],
)  # fmt: skip
def test_sizes_are_decimal(nbytes, text):
    assert size(nbytes) == text


def test_counts_and_numbers():
    assert [count(n) for n in (0, 999, 1500, 124_400_000, 7_000_000_000)] == ["0", "999", "1.5 k", "124.4 M", "7.00 G"]
    assert [number(n) for n in (12000, 2.31449, 1e-9, float("nan"))] == ["12,000", "2.314", "1e-09", "nan"]
    assert [plural(n, "tensor") for n in (0, 1, 1234)] == ["0 tensors", "1 tensor", "1,234 tensors"]


def test_json_knows_every_kind_of_value():
    loop: list[object] = []
    loop.append(loop)
    state = State({"a": (1, b"\xff", float("inf"), None), 1: {1: "int", "1": "text"}, "deep": loop})
    document = json.dumps(to_json({"values": state, "path": Path("x"), "level": Level.KNOWN}))
    assert json.loads(document)["level"] == "known"
    values = json.loads(document)["values"]
    assert values["a"] == [1, {"$bytes": 1, "hex": "ff"}, {"$float": "inf"}, None]
    assert values["1"] == {"1": "int", "1#2": "text"}
    assert '{"$elided": "nested too deeply"}' in document


def on_a_terminal(width: int, *arguments: object) -> str:
    """What a terminal of this width receives."""
    import fcntl
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {
        "TERM": "xterm",
        "PYTHONUTF8": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptctl", *map(str, arguments)], stdout=follower, stderr=follower, stdin=follower,
        cwd=HERE.parent, env=env,
    )  # fmt: skip
    os.close(follower)
    received = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        received += part
    process.wait()
    os.close(leader)
    return received.decode()


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_gets_lines_that_fit(width):
    paths = [
        "torch_save/train_dict.pt",
        "torch_save/python_objects.pt",
        "transformers/sharded_llama",
        "torch_save/tied.pt",
    ]
    shown = on_a_terminal(width, "inspect", "--tensors", *(CORPUS / path for path in paths))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "").splitlines()
    own = [line for line in lines if not line.startswith(str(CORPUS))]
    assert len(own) > 60
    assert max(map(len, own)) <= width
    assert "\x1b[33m" in shown


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl", "inspect", CORPUS / "torch_save/train_dict.pt"],
        capture_output=True, text=True, check=True, cwd=HERE.parent,
    )  # fmt: skip
    assert "\x1b" not in done.stdout
