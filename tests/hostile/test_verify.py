"""The verdict of `verify` on every hostile generator is the documented one."""

from __future__ import annotations

import os

import pytest

from tests.hostile.test_inspect import GENERATOR, MEGABYTE, idle, run, tree

__all__ = ["idle"]


@pytest.mark.parametrize("name", GENERATOR.CASES)
def test_verdict(name, tmp_path, idle):
    make = GENERATOR.CASES[name]
    verdicts = set(make.__doc__.rpartition("Verdict: ")[2].strip().split("|"))
    path = make(tmp_path)
    before = tree(tmp_path)
    result = run("verify", path)

    wanted = {"refuse": 2 if name.startswith("fs_") else 1, "unsafe": 1, "accept": 0, "warn": 1}
    allowed = {wanted[verdict] for verdict in verdicts}
    if name == "fs_unreadable" and os.geteuid() == 0:
        allowed.add(0)
    assert result["status"] in allowed
    assert result["err"] == ""
    assert result["out"]
    assert tree(tmp_path) == before
    assert not GENERATOR.marker(tmp_path, name).exists()
    assert result["cpu"] < 10
    assert result["seconds"] < 60  # it waits for nothing, however busy the machine is
    assert result["peak"] < idle + 256 * MEGABYTE
