"""What is undocumented fails here: pages generated from the code, examples run, every name mentioned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from ckptctl.checks.resumable import ResumeItem, ResumeReport
from ckptctl.cli.app import COMMANDS
from ckptctl.formats import FORMATS
from ckptctl.layouts import LAYOUTS
from ckptctl.model.causes import CAUSES
from ckptctl.ops.diff import DiffReport, ModuleDiff, Renaming, Side, TensorDiff, TensorLine, TieDiff, ValueDiff
from ckptctl.ops.inspect import InspectReport, TensorRow
from ckptctl.ops.verify import Level, VerifyReport
from ckptctl.rewrite.report import RewriteReport, WrittenFile, WrittenTensor
from ckptctl.tensors.measure import Measures
from tests.console import PAGES as EXAMPLES
from tests.console import ROOT, rendered
from tests.docs_pages import DOCS, PAGES, error_classes
from tests.matrix import KINDS, found
from tests.peers import GOOD
from tests.pictures import PICTURES, SHOWN, picture


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name):
    assert (DOCS / name).read_text() == PAGES[name]()


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_examples_print_what_the_page_shows(page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert page.read_text() == rendered(page.read_text())
    assert "internal error" not in page.read_text()


def test_every_format_layout_command_and_error_is_in_the_reference():
    formats = (DOCS / "reference/formats.md").read_text()
    assert all(f"`{item.name}`" in formats for item in (*FORMATS, *LAYOUTS))
    commands = (DOCS / "reference/commands.md").read_text()
    assert all(f"## ckptctl {command}\n" in commands for command in COMMANDS)
    errors = (DOCS / "reference/errors.md").read_text()
    assert all(f"`{kind.slug}`" in errors for kind in error_classes())


def test_every_field_of_the_json_is_described():
    text = (DOCS / "reference/json.md").read_text()
    kinds = (
        InspectReport,
        TensorRow,
        RewriteReport,
        WrittenFile,
        WrittenTensor,
        VerifyReport,
        ResumeReport,
        ResumeItem,
        DiffReport, Side, TensorDiff, TensorLine, Renaming, TieDiff, ValueDiff, ModuleDiff, Measures,
    )  # fmt: skip
    assert [f.name for kind in kinds for f in fields(kind) if f"`{f.name}`" not in text] == []


def test_every_cause_is_one_that_the_code_finds():
    code = [path.read_text() for path in (ROOT / "ckptctl").rglob("*.py") if path.name != "causes.py"]
    errors = {kind.slug for kind in error_classes()}
    made = {slug for slug in CAUSES if any(f'"{slug}"' in text for text in code)} | errors
    assert set(CAUSES) - made == {"foreign-global", "dangerous-global"}  # of the level, see `checks.safety`


def test_every_error_class_has_a_test_of_its_own():
    """Each slug is provoked by name or class somewhere in the tests."""
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [kind for kind in error_classes() if kind.__name__ not in source and f'"{kind.slug}"' not in source] == []


def test_the_continuous_integration_runs_the_test_command_of_the_readme():
    command = "pip install -e '.[dev]' && nox --no-venv"
    assert command in (ROOT / "README.md").read_text()
    assert command in (ROOT / ".ci/run").read_text()


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


@pytest.mark.parametrize("name", SHOWN)
def test_pictures_show_what_the_commands_print(name):
    assert (PICTURES / f"{name}.svg").read_text() == picture(name)


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "reference" / "python.md"], ids=lambda page: page.name)
def test_python_examples_run(page):
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    assert code
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_has_examples_and_exit_statuses(command):
    env = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl", command, "-h"], capture_output=True, text=True, env=env, check=True
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.count(f"ckptctl {command}") >= 4  # the usage, and three examples
    assert "Exit status" in done.stdout


def test_our_column_of_the_comparison_is_what_the_program_says():
    rows = re.findall(r"^\| ([^|*]+) \| ([a-z]+) \|", (DOCS / "comparison.md").read_text(), re.MULTILINE)
    shown = {name: said for name, said in rows if name in {**GOOD, **KINDS}}
    assert shown == {
        **dict.fromkeys(GOOD, "ok"),
        **{name: "no" if any(found(make, Level(values=True))) else "ok" for name, make in KINDS.items()},
    }
