"""``inspect --json`` of every torch zip, safetensors and indexed entry of the corpus, against what it said before.

``python -m tests.test_snapshots`` writes the snapshots anew; read the difference before committing it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import pytest

from ckptctl.cli.app import main
from ckptctl.formats import FORMATS
from ckptctl.storage import LocalFile
from tests.samples import CORPUS, HERE

SNAPSHOTS = HERE / "snapshots"


def entries() -> list[Path]:
    """Every file that a format accepts, and every directory with an index; of the many equal ones of a run, one."""
    found = []
    for path in sorted(CORPUS.rglob("*")):
        if path.is_dir():
            if any(path.glob("*.index.json")) and "damaged" not in path.parts:
                found.append(path)
        elif not path.is_symlink() and any(f.accepts(LocalFile(path).range()) for f in FORMATS):
            found.append(path)
    return [path for path in found if not _is_one_of_many(path)]


def _is_one_of_many(path: Path) -> bool:
    twin = "run_" in path.parent.name and path.suffix == ".safetensors" and "1000" not in path.name
    return twin or path.suffix == ".distcp" or path.name.endswith((".expected.safetensors", ".live.safetensors"))


def group_of(path: Path) -> str:
    return path.relative_to(CORPUS).parts[0]


def inspected(path: Path) -> dict:
    """The document, or the error, with paths below the corpus."""
    out, err = io.StringIO(), io.StringIO()
    before = os.getcwd()
    os.chdir(CORPUS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["inspect", "--json", str(path.relative_to(CORPUS))])
    finally:
        os.chdir(before)
    return json.loads(out.getvalue())["checkpoints"][0] if status == 0 else json.loads(err.getvalue())


def written(group: str) -> dict:
    return json.loads((SNAPSHOTS / f"{group}.json").read_text())


@pytest.mark.parametrize("path", entries(), ids=lambda path: str(path.relative_to(CORPUS)))
def test_says_what_it_said_before(path):
    assert inspected(path) == written(group_of(path))[str(path.relative_to(CORPUS))]


def test_no_snapshot_is_left_over():
    names = {str(path.relative_to(CORPUS)) for path in entries()}
    assert {name for file in SNAPSHOTS.glob("*.json") for name in json.loads(file.read_text())} == names


if __name__ == "__main__":
    groups: dict[str, dict] = {}
    for entry in entries():
        groups.setdefault(group_of(entry), {})[str(entry.relative_to(CORPUS))] = inspected(entry)
    SNAPSHOTS.mkdir(exist_ok=True)
    for group, documents in groups.items():
        lines = [f"{json.dumps(name)}: {json.dumps(document)}" for name, document in documents.items()]
        (SNAPSHOTS / f"{group}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{sum(map(len, groups.values()))} snapshots", file=sys.stderr)
