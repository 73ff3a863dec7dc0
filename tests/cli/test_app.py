"""The program as a whole: usage, exit statuses, start-up, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ckptctl import __version__
from ckptctl.cli import app
from ckptctl.cli._errors import guarded
from ckptctl.errors import CkptctlError
from tests.samples import CORPUS, HERE

VERBS = {"inspect", "verify", "convert", "prune", "consolidate", "diff"}


def test_the_version(ckptctl):
    result = ckptctl("--version")
    assert (result.status, result.out) == (0, f"ckptctl {__version__}\n")


def test_only_the_six_commands_exist():
    assert set(app.COMMANDS) <= VERBS


@pytest.mark.parametrize("command", app.COMMANDS)
def test_help_has_examples_and_exit_statuses(ckptctl, command):
    result = ckptctl(command, "--help")
    assert result.status == 0
    assert result.out.count(f"ckptctl {command} ") >= 4  # usage and three examples
    assert "Exit status" in result.out


@pytest.mark.parametrize(
    "arguments", [("inspect",), ("nonsense",), ("inspect", "--nonsense", "x"), ("inspect", "x", "--only", "nothing"),
                  ("inspect", "x", "--sort", "colour"), ("inspect", "x", "--depth", "deep")]
)  # fmt: skip
def test_usage_errors_are_one_line_and_a_hint(ckptctl, arguments):
    result = ckptctl(*arguments)
    assert (result.status, result.out) == (2, "")
    error, hint = result.err.splitlines()
    assert error.startswith("ckptctl: ")
    assert hint.startswith("  hint: ckptctl")
    assert hint.endswith("--help")


def test_usage_errors_are_json_when_asked(ckptctl):
    result = ckptctl("inspect", "--json")
    assert json.loads(result.err)["error"]["slug"] == "usage"


def raising(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (CkptctlError("x: broken", hint="mend it"), 2, "ckptctl: x: broken\n  hint: mend it\n"),
        (KeyboardInterrupt(), 130, "ckptctl: interrupted\n"),
        (MemoryError(), 2, "ckptctl: out of memory\n"),
        (OSError(28, "No space left on device", "out"), 2, "ckptctl: out: No space left on device\n"),
        (ZeroDivisionError("oh"), 2, "ckptctl: internal error: ZeroDivisionError: oh\n  hint: please report it, with what CKPTCTL_DEBUG=1 prints\n"),
        (RecursionError("deep"), 2, "ckptctl: internal error: RecursionError: deep\n  hint: please report it, with what CKPTCTL_DEBUG=1 prints\n"),
        (CkptctlError("x\x1b[2J: a\nb"), 2, "ckptctl: x\\x1b[2J: a b\n"),
    ],
)  # fmt: skip
def test_every_exception_ends_as_a_line_and_a_status(capsys, error, status, words):
    assert guarded(raising(error), as_json=False) == status
    assert capsys.readouterr().err == words


def test_a_traceback_only_for_those_who_ask(capsys, monkeypatch):
    monkeypatch.setenv("CKPTCTL_DEBUG", "1")
    assert guarded(raising(ZeroDivisionError("oh")), as_json=False) == 2
    assert "Traceback" in capsys.readouterr().err


def python(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, cwd=HERE.parent, env={**os.environ, **env},
    )  # fmt: skip


def test_importing_the_program_loads_nothing_heavy():
    done = python(
        "import sys, ckptctl.cli.app\n"
        "print([n for n in ('torch', 'numpy', 'safetensors', 'rich', 'h5py', 'pickle') if n in sys.modules])"
    )
    assert done.stdout == "[]\n"


def test_inspect_works_without_torch_numpy_and_safetensors():
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'safetensors', 'h5py'): sys.modules[name] = None\n"
        "from ckptctl.cli.app import main\n"
        "sys.exit(main(['inspect', *sys.argv[1:], '--tensors', '--values', '--header']))"
    )
    paths = ["torch_save/train_dict.pt", "safetensors/edge/all_dtypes.safetensors", "transformers/sharded_llama"]
    done = python(code, *(str(CORPUS / path) for path in paths))
    assert done.returncode == 0, done.stderr


def test_public_names_are_loaded_on_first_use():
    done = python("import sys, ckptctl; print([m for m in sys.modules if m.startswith('ckptctl.')])")
    assert done.stdout == "[]\n"
    import ckptctl

    for name in ckptctl.__all__:
        assert getattr(ckptctl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ckptctl.nothing


@pytest.mark.parametrize(
    ("words", "expected"),
    [("ckptctl ins", "inspect"), ("ckptctl inspect --on", "--only"), ("ckptctl inspect --only sch", "scheduler")],
)
def test_the_shell_completes(words, expected):
    done = python(
        "from ckptctl.cli.app import main; main()",
        _CKPTCTL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1),
    )  # fmt: skip
    assert expected in done.stdout.split()


def test_runs_as_a_module_and_as_a_command():
    path = str(CORPUS / "torch_save" / "tied.pt")
    module = subprocess.run(
        [sys.executable, "-m", "ckptctl", "inspect", path], capture_output=True, text=True, check=True
    )
    script = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "ckptctl"), "inspect", path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert module.stdout == script.stdout


def test_an_interrupt_says_so_and_ends_with_130(tmp_path):
    done = python(
        "import sys, signal; from ckptctl.ops import inspect as ops\n"
        "def slow(*args, **kwargs): signal.raise_signal(signal.SIGINT)\n"
        "ops.inspect = slow\n"
        "from ckptctl.cli.app import main; sys.exit(main(['inspect', 'x', 'y']))"
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "ckptctl: interrupted\n"


def test_a_full_disk_under_stdout_is_one_line():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m ckptctl inspect {CORPUS}/torch_save/tied.pt > /dev/full"],
        capture_output=True, text=True, check=False, cwd=HERE.parent,
    )  # fmt: skip
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
