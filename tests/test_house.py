"""House rules that a script can hold: what must not be called, how large things may grow."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from statistics import median, quantiles

import pytest

import ckptctl

PACKAGE = Path(ckptctl.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
BANNED_ATTRIBUTES = {("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("torch", "load"), ("numpy", "load"),
                     ("np", "load"), ("marshal", "loads"), ("yaml", "load"), ("os", "system")}  # fmt: skip
BANNED_WORDS = re.compile(
    r"allow_pickle|\bmmap\b|import (pickle|shelve|zipfile|tarfile|click|joblib|dill|cloudpickle)\b"
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_unpickles_or_evaluates(path):
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in BANNED_CALLS, node.lineno
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in BANNED_ATTRIBUTES, node.lineno
    code = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
    assert not BANNED_WORDS.search(code)


def lengths_of_functions() -> list[int]:
    return [
        node.end_lineno - node.lineno + 1
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def test_modules_and_functions_stay_small(capsys):
    modules = [path.read_text().count("\n") for path in SOURCES if path.name != "__init__.py"]
    functions = lengths_of_functions()
    tenth = quantiles(functions, n=10)[-1]
    with capsys.disabled():
        print(f"\nmodules: median {median(modules)}, longest {max(modules)} lines; functions: median {median(functions)}, "
              f"nine in ten below {tenth:.0f}, longest {max(functions)}")  # fmt: skip
    assert max(modules) <= 300
    assert max(functions) <= 45
    assert median(modules) <= 110
    assert median(functions) <= 9
    assert tenth <= 28


def test_command_line_files_stay_small():
    commands = [path for path in (PACKAGE / "cli").glob("*.py") if not path.name.startswith("_")]
    assert max(path.read_text().count("\n") for path in commands) <= 120


def test_no_path_of_a_machine_stands_in_the_project():
    root = PACKAGE.parent
    text = "\n".join(
        path.read_text() for path in [*SOURCES, *(root / "docs").rglob("*.md"), root / "README.md", root / ".ci/run"]
    )
    assert not re.search(r"/(root|home|Users)/\w", text)


def test_the_contract_of_the_formats_names_every_one_of_them():
    from ckptctl.formats import FORMATS

    contracts = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    modules = [one.accepts.__module__ for one in FORMATS]
    assert [module for module in modules if f'"{module}"' not in contracts] == []
