"""Which damage other tools find: ``python -m tests.peers --write`` puts the table into docs/comparison.md.

``CKPTCTL_PEERS`` names a virtual environment that has them (torch, safetensors, sft-cli, ckptkit[cli],
safetensors-print, modelvet, hayward, picklescan); what is not there has no column.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.docs_pages import DOCS
from tests.matrix import KINDS, Make, corpus

PAGE = DOCS / "comparison.md"
_MARKS = re.compile(r"(<!-- peers -->\n).*?(<!-- end -->)", re.DOTALL)
_SAFE_OPEN = "import sys; from safetensors import safe_open; f = safe_open(sys.argv[1], 'pt'); [f.get_tensor(n) for n in f.keys()]"
_TORCH = "import sys, torch; torch.load(sys.argv[1], map_location='cpu', weights_only={})"
_MODELVET = "import sys, modelvet; sys.exit(modelvet.verify_path(sys.argv[1]).verdict != modelvet.Verdict.ACCEPT)"
GOOD: dict[str, Make] = {
    "a good safetensors file": corpus("safetensors/edge/with_metadata.safetensors"),
    "good, of many tensors": corpus("safetensors/edge/many_tensors.safetensors"),
    "a good .pt": corpus("torch_save/train_dict.pt"),
    "good shards": corpus("transformers/sharded_llama"),
}
_SAFETENSORS, _TORCH_FILES, _ANY = (".safetensors",), (".pt", ".pth", ".bin", ".ckpt", ".pkl"), ("",)

Tool = tuple[str, Callable[[Path], list[str]], tuple[str, ...]]


def tools(venv: Path) -> list[Tool]:
    """Each tool: what it is called, its command for a file, and the ends of the names that it takes."""
    inside = venv / "bin"

    def python(code: str) -> Callable[[Path], list[str]]:
        return lambda path: [str(inside / "python"), "-c", code, str(path)]

    def program(name: str, *options: str) -> Callable[[Path], list[str]]:
        return lambda path: [str(inside / name), *options, str(path)]

    return [
        ("safetensors", python(_SAFE_OPEN), _SAFETENSORS),
        ("torch.load", python(_TORCH.format(True)), _TORCH_FILES),
        ("sft check", program("sft", "check"), _SAFETENSORS),
        ("ckptkit validate", program("ckptkit", "validate"), (*_SAFETENSORS, *_TORCH_FILES)),
        ("safetensors-print", program("safetensors-print", "--issues"), _SAFETENSORS),
        ("modelvet", python(_MODELVET), _SAFETENSORS),
        ("hayward scan", program("hayward", "scan"), _ANY),
        ("picklescan", program("picklescan", "-p"), _TORCH_FILES),
    ]


def verdict(command: list[str]) -> str:
    """Run a tool on one file: an exit status of 0 is a yes."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode == 0:
        return "ok"
    return "no (tb)" if "Traceback" in done.stdout + done.stderr and command[1] != "-c" else "no"


def row(make: Make, every: list[Tool]) -> list[str]:
    """What each tool says of one kind of file."""
    with tempfile.TemporaryDirectory() as directory:
        path = make(Path(directory))
        cells = [verdict([sys.executable, "-m", "ckptctl", "verify", "--values", "--quiet", str(path)])]
        for _, command, ends in every:
            taken = ends == _ANY or (path.is_file() and path.suffix in ends)
            cells.append(verdict(command(path)) if taken else "–")
    return cells


def table(venv: Path | None) -> list[str]:
    """Every kind of damage, and of good files, against every tool that is there."""
    every = [tool for tool in tools(venv) if Path(tool[1](Path())[0]).exists()] if venv else []
    names = ["ckptctl verify --values", *(name for name, *_ in every)]
    lines = [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    good = {name: row(make, every) for name, make in GOOD.items()}
    bad = {name: row(make, every) for name, make in KINDS.items()}
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in {**good, **bad}.items()]
    found = [sum(cells[i].startswith("no") for cells in bad.values()) for i in range(len(names))]
    taken = [sum(cells[i] != "–" for cells in bad.values()) for i in range(len(names))]
    return [
        *lines,
        f"| **found, of those it takes** | {' | '.join(f'{n} of {m}' for n, m in zip(found, taken, strict=True))} |",
    ]


def main() -> None:
    """Print the table, or put it into the page."""
    given = os.environ.get("CKPTCTL_PEERS")
    lines = table(Path(given) if given else None)
    if "--write" in sys.argv:
        PAGE.write_text(_MARKS.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], PAGE.read_text()))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
