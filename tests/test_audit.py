"""Nothing is imported, executed, started or written on behalf of a file: Python's own audit events say so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.samples import CORPUS, HERE, load

GENERATOR = load(HERE / "hostile" / "generate.py")

AUDITOR = """
import json, os, sys
from pathlib import Path
from ckptctl.cli.inspect import run

def inspect(paths):  # past Typer, which evaluates the annotations of our own functions
    return run([Path(path) for path in paths], values=True, tensors=True, header=True)

paths = json.loads(sys.argv[1])
inspect([*paths[:1], *[p for p in paths if os.path.isdir(p)][:1]])  # loads all that the command itself needs
seen = []
WATCHED = {"import", "exec", "compile", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork",
           "subprocess.Popen", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree",
           "ctypes.dlopen", "socket.connect", "marshal.loads", "code.__new__"}

def hook(event, args):
    if event in WATCHED:
        seen.append([event, repr(args)[:200]])
    elif event == "open" and (args[1] not in (None, "r", "rb") or (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        seen.append([event, repr(args)[:200]])

sys.addaudithook(hook)
status = inspect(paths)
sys.stderr.write(json.dumps({"status": status, "seen": seen}))
"""

DANGEROUS = [name for name in GENERATOR.CASES if name.startswith("pk_")]


def audited(paths) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", AUDITOR, json.dumps([str(path) for path in paths])],
        capture_output=True, text=True, check=False, cwd=HERE.parent,
    )  # fmt: skip
    return json.loads(done.stderr[done.stderr.rindex('{"status"') :])


def test_the_hook_sees_what_it_should():
    """The check can fail: the same hook around a real unpickling does see imports and calls."""
    code = AUDITOR.replace("status = ", "import pickle; pickle.loads(b'cos\\nsystem\\n(Vtrue\\ntR.'); status = ")
    path = CORPUS / "torch_save" / "tied.pt"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([str(path)])],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parent,
    )
    events = {event for event, _ in json.loads(done.stderr[done.stderr.rindex('{"status"') :])["seen"]}
    assert {"pickle.find_class", "os.system"} <= events


def test_the_corpus_causes_nothing():
    paths = sorted((CORPUS / "torch_save").glob("*.pt")) + sorted((CORPUS / "safetensors" / "edge").iterdir())
    report = audited([CORPUS / "torch_save" / "train_dict.pt", *paths, CORPUS / "transformers" / "sharded_llama"])
    assert report["seen"] == []


@pytest.mark.parametrize("name", DANGEROUS)
def test_hostile_pickles_cause_nothing(name, tmp_path):
    report = audited([CORPUS / "torch_save" / "train_dict.pt", GENERATOR.CASES[name](tmp_path)])
    assert report["seen"] == []
    assert not GENERATOR.marker(tmp_path, name).exists()
