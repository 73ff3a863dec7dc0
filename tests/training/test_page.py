"""The page on saving in the loop does what it says, also when it is run again."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ckptctl.training.loading import load
from tests.console import ROOT

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "save-in-the-loop.md").read_text(), re.DOTALL)


def test_the_examples_run_and_go_on(tmp_path):
    for _ in range(2):
        subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(BLOCKS)], cwd=tmp_path, check=True)
    found = sorted(path.name for path in (tmp_path / "runs" / "x").glob("*.safetensors"))
    assert found == ["step_100.safetensors", "step_130.safetensors", "step_140.safetensors", "step_50.safetensors"]
    assert load(tmp_path / "runs" / "x" / "step_100.safetensors")["step"] == 100


@pytest.mark.parametrize("call", ["save('x.safetensors', {})", "load('x.safetensors')", "AsyncSaver()"])
def test_without_torch_one_line_names_the_extra(call, tmp_path):
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "torch":
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from ckptctl.training import AsyncSaver, load, optimal_interval, save
from ckptctl.errors import MissingExtraError
try:
    {call}
except MissingExtraError as error:
    print(error.message, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "torch is not installed pip install 'ckptctl[torch]'\n"
