"""Every hostile generator that concerns `inspect`: right verdict, one line, nothing run, little memory and time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import HERE, load

GENERATOR = load(HERE / "hostile" / "generate.py")
CASES = {
    name: make
    for name, make in GENERATOR.CASES.items()
    if not name.startswith("pr_")  # those of prune are runs
}

# A fault in what inspect does not read, or that it lists as such: it answers, and says so.
LISTED = {
    "dcp_length_past_end": "error: __0_0.distcp is cut at",
    "pt_storage_bit_flip": None,
    "ix_shard_missing": "error: model-00002-of-00002.safetensors is missing",
}
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def idle() -> int:
    """Peak memory of the idle program, in bytes."""
    return run("--version")["peak"]


def run(*arguments: object) -> dict:
    command = [sys.executable, HERE / "measure.py", sys.executable, "-m", "ckptctl", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=60)
    return json.loads(done.stdout)


def tree(directory: Path) -> dict[str, str]:
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file() and not path.is_symlink():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "link or directory"
    return found


@pytest.mark.parametrize("name", CASES)
def test_verdict(name, tmp_path, idle):
    make = CASES[name]
    verdicts = set(make.__doc__.rpartition("Verdict: ")[2].strip().split("|"))
    path = make(tmp_path)
    before = tree(tmp_path)
    result = run("inspect", path)

    errors = result["err"].splitlines()
    assert "Traceback" not in result["err"]
    assert "internal error" not in result["err"]
    assert tree(tmp_path) == before
    assert not GENERATOR.marker(tmp_path, name).exists()
    assert result["cpu"] < 10
    assert result["seconds"] < 60  # it waits for nothing, however busy the machine is
    assert result["peak"] < idle + 256 * MEGABYTE
    assert result["out"].isprintable() or not set(result["out"]) - set(printable(result["out"]))

    allowed = set()
    if verdicts & {"accept", "warn", "unsafe"} or name in LISTED:
        allowed.add(0)
    if "refuse" in verdicts:
        allowed.add(2)
    if name == "fs_unreadable" and os.geteuid() == 0:
        allowed.add(0)
    assert result["status"] in allowed
    if result["status"] == 2:
        assert result["out"] == ""
        assert 1 <= len(errors) <= 2
        assert errors[0].startswith("ckptctl: ")
        assert all(line.startswith("  hint: ") for line in errors[1:])
        return
    assert errors == []
    if LISTED.get(name):
        assert LISTED[name] in result["out"]
    if verdicts == {"unsafe"}:
        assert "\nunsafe: " in result["out"]
    if verdicts == {"warn"}:
        assert "\nwarning: " in result["out"]
    if name.startswith("pk_"):
        assert list_of_tensors(path) == ["w"]


def printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable() or char == "\n")


def list_of_tensors(path: Path) -> list[str]:
    report = json.loads(run("inspect", path, "--json", "--tensors")["out"])
    return [tensor["name"] for tensor in report["checkpoints"][0]["tensor_list"]]


def test_custom_classes_are_named(tmp_path):
    result = run("inspect", CASES["pk_custom_class"](tmp_path))
    assert "my_project.config.TrainConfig (foreign" in result["out"]
    assert "argparse.Namespace (inert" in result["out"]


def test_every_way_to_call_a_function_names_it(tmp_path):
    expected = {
        "pk_global_system": "os.system", "pk_stack_global_memo": "posix.system", "pk_inst": "posix.system",
        "pk_obj": "subprocess.Popen", "pk_newobj_ex": "os.system", "pk_build_setstate": "os.system",
        "pk_extension_code": "copyreg.extension 240", "pk_getattr_chain": "builtins.__import__",
        "pk_nested_loads": "_pickle.loads", "pk_copyreg_nested": "operator.methodcaller",
    }  # fmt: skip
    for name, named in expected.items():
        report = json.loads(run("inspect", CASES[name](tmp_path), "--json")["out"])
        levels = {f"{use['module']}.{use['name']}": use["level"] for use in report["checkpoints"][0]["globals"]}
        assert levels[named] == "dangerous", name
