"""What a training is told goes to a terminal: names of files do nothing there."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptctl.errors import CkptctlError, UnreadableError
from ckptctl.training import load
from ckptctl.training.warned import warned, warned_aside

BAD = "run\x1b[2J\u202e.safetensors"
GOOD = "run\\x1b[2J\\u202e.safetensors"


def test_names_in_warnings_and_errors_are_escaped(tmp_path):
    def asked():
        warned(BAD)

    with pytest.warns(UserWarning, match="run") as seen:
        asked()
    assert str(seen[0].message) == GOOD
    assert seen[0].filename == __file__  # of whoever asked
    error = UnreadableError(f"{BAD}: no such file")
    assert (str(error), error.message) == (f"{GOOD}: no such file", f"{BAD}: no such file")
    save_file({"w": np.ones(2)}, tmp_path / BAD)
    with pytest.warns(UserWarning, match=r"\\x1b\[2J\\u202e"):
        load(tmp_path / BAD)
    with pytest.raises(CkptctlError) as caught:
        load(tmp_path / f"{BAD}x")
    assert "\x1b" not in str(caught.value)


def test_a_thread_lives_on_where_warnings_are_errors(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warned_aside(BAD)
    assert capsys.readouterr().err == f"ckptctl: {GOOD}\n"
