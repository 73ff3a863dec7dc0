"""What a file system may say at any moment: ``python -m tests.trials errors``.

Each command runs over real files while one call of the system fails: the first, the second, and so on, with each of the errors that
disks and network file systems give. Whatever fails, the program must say so in a line, exit with 1 or 2, leave its sources as
they were, and leave a whole result or none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.trials.fuzz import CORPUS, said, wrong

_ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT)
_CALLS = ("open", "pread", "preadv", "write", "pwrite", "fsync", "rename", "replace", "link", "unlink", "scandir", "listdir", "stat", "fstat",
          "lstat", "mkdir", "rmdir", "posix_fallocate", "ftruncate")  # fmt: skip
_MOST = 400
"""So many calls of one kind are let fail, one in each run."""


class Failing:
    """A call of the system that fails when its turn has come; it counts only what is about the files of the trial."""

    def __init__(self, name: str, turn: int, number: int, root: str) -> None:
        self.real, self.turn, self.number, self.root = getattr(os, name), turn, number, root
        self.seen = 0

    def __call__(self, *args: object, **more: object) -> object:
        if self._is_ours(args, more):
            self.seen += 1
            if self.seen == self.turn:
                raise OSError(self.number, os.strerror(self.number))
        return self.real(*args, **more)

    def _is_ours(self, args: tuple[object, ...], more: dict[str, object]) -> bool:
        what = args[0] if args else ""
        if isinstance(what, int):
            try:
                what = os.readlink(f"/proc/self/fd/{what}")
            except OSError:
                return False
        elif any(isinstance(one, int) for one in (more.get("dir_fd"), more.get("src_dir_fd"))):
            return True
        return (
            os.fsdecode(os.fspath(what)).startswith(self.root) if isinstance(what, (str, bytes, os.PathLike)) else False
        )  # type: ignore[arg-type]


def commands(root: Path) -> dict[str, tuple[list[object], list[Path]]]:
    """Each command with what it writes."""
    run, one = root / "run", root / "train.pt"
    return {
        "inspect a run": (["inspect", run], []),
        "inspect a .pt": (["inspect", one, "--tensors", "--values"], []),
        "verify": (["verify", one, root / "sharded", "--values"], []),
        "verify --write": (["verify", root / "sharded", "--write"], [root / "sharded" / "SHA256SUMS"]),
        "verify --latest-good": (["verify", "--latest-good", run], []),
        "convert": (["convert", one, "-o", root / "out.safetensors"], [root / "out.safetensors"]),
        "consolidate": (["consolidate", root / "dcp", "-o", root / "one.safetensors"], [root / "one.safetensors"]),
        "diff": (["diff", run / "checkpoint-30", run / "checkpoint-40"], []),
        "prune": (["prune", run, "--keep-last", "1", "--keep-best", "0", "--yes"], [run]),
    }


def prepared(root: Path) -> None:
    """The files of one trial."""
    shutil.copytree(CORPUS / "transformers" / "trainer_run", root / "run")
    shutil.copytree(CORPUS / "transformers" / "sharded_llama", root / "sharded")
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", root / "dcp")
    shutil.copy(CORPUS / "torch_save" / "train_dict.pt", root / "train.pt")


def contents(root: Path, without: list[Path]) -> dict[str, bytes]:
    """All files but those that are written."""
    every = (
        path for path in root.rglob("*") if path.is_file() and not any(path.is_relative_to(one) for one in without)
    )
    return {str(path): path.read_bytes() for path in every}


@contextlib.contextmanager
def failing(name: str, turn: int, number: int, root: Path) -> Iterator[Failing]:
    """Let one call fail."""
    call = Failing(name, turn, number, str(root))
    with mock.patch.object(os, name, call):
        yield call


def trial(what: str, name: str, turn: int, number: int) -> tuple[bool, str]:
    """Run one command with one failure; say whether its turn came, and what is wrong then."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as made:
        root = Path(made).resolve()
        prepared(root)
        arguments, written = commands(root)[what]
        before = contents(root, written)
        with failing(name, turn, number, root) as call:
            status, out, err = said(*arguments)
        if call.seen < turn:
            return False, ""
        problem = wrong(status, out, err) or _after(root, what, written, before, status)
        return True, problem


def _after(root: Path, what: str, written: list[Path], before: dict[str, bytes], status: int) -> str:
    """Say what is wrong with what was left."""
    after = contents(root, written)
    changed = [path for path, raw in before.items() if after.get(path) != raw]
    if changed:
        return f"changed or lost {changed[0]}"
    more = [path for path in after.keys() - before.keys() if not path.endswith((".sha256", ".ckptctl-tmp"))]
    if more:
        return f"left {min(more)}"
    if what == "prune":
        state, _, _ = said("verify", "--latest-good", root / "run")
        return "" if state == 0 else "no good checkpoint is left"
    for path in written:
        if path.suffix == ".safetensors" and path.exists() and said("verify", path)[0]:
            return f"half a file under its name ({status})"
    return ""


def main(*arguments: str) -> list[str]:
    """Let every call fail once, with one error after another, or with ``all`` of them; return what came of it."""
    lines = ["| command | failures | said so (exit 1 or 2, nothing lost) | found |", "| --- | ---: | ---: | ---: |"]
    found: list[str] = []
    for what in commands(Path("/")):
        if len(arguments) == 1 and arguments[0] not in ("all", what):
            continue
        tried, problems = 0, 0
        ended: set[str] = set()
        for name, turn in ((name, turn) for name in _CALLS for turn in range(1, _MOST)):
            if name in ended:
                continue
            numbers = _ERRORS if "all" in arguments else (_ERRORS[turn % len(_ERRORS)],)
            came = [(number, *trial(what, name, turn, number)) for number in numbers]
            tried += sum(reached for _, reached, _ in came)
            if not any(reached for _, reached, _ in came):
                ended.add(name)
            bad = [
                f"- {what}: {name} number {turn}, {errno.errorcode[number]}: {said}" for number, _, said in came if said
            ]
            problems += len(bad)
            found += bad
            for one in bad:
                print(one, flush=True)
        lines.append(f"| {what} | {tried:,} | {tried - problems:,} | {problems} |")
        print(lines[-1], flush=True)
    return [*lines, *found]
