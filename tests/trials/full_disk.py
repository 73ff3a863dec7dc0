"""A disk that fills: ``python -m tests.trials full_disk``, as root on Linux; each writer on a tmpfs with too little room."""

from __future__ import annotations

import contextlib
import gc
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.trials.errors import contents
from tests.trials.fuzz import CORPUS, said, wrong


@contextlib.contextmanager
def small_disk(kilobytes: int) -> Iterator[Path]:
    """A file system of so many kilobytes."""
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", made], check=True)
        try:
            yield Path(made)
        finally:
            gc.collect()  # what the program had open is closed where it ends; here it goes on
            subprocess.run(["umount", "-l", made], check=True)


def trial(what: str, room: int) -> tuple[int, str]:
    """Run one writer where `room` kilobytes are left; return its status and what is wrong."""
    with small_disk(1024) as disk:
        shutil.copytree(CORPUS / "transformers" / "trainer_run", disk / "run")
        shutil.copy(CORPUS / "torch_save" / "train_dict.pt", disk / "train.pt")
        shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", disk / "dcp")
        given = {
            "convert": (["convert", disk / "train.pt", "-o", disk / "out.safetensors"], [disk / "out.safetensors"]),
            "consolidate": (["consolidate", disk / "dcp", "-o", disk / "out.safetensors"], [disk / "out.safetensors"]),
            "verify --write": (
                ["verify", disk / "run", "--write"],
                list((disk / "run").glob("checkpoint-*/SHA256SUMS")),
            ),
            "prune": (["prune", disk / "run", "--keep-last", "1", "--keep-best", "0", "--yes"], [disk / "run"]),
        }[what]
        free = shutil.disk_usage(disk).free // 1024
        with (disk / "filler").open("wb") as filler, contextlib.suppress(OSError):
            filler.write(bytes(max(free - room, 0) * 1024))
        before = contents(disk, given[1])
        status, out, err = said(*given[0])
        problem = wrong(status, out, err)
        after = {
            path: raw for path, raw in contents(disk, given[1]).items() if not path.endswith((".sha256", "SHA256SUMS"))
        }
        lost = [path for path, raw in before.items() if not path.endswith("SHA256SUMS") and after.get(path) != raw]
        left = list(after.keys() - before.keys())
        if not problem and (lost or left):
            problem = f"lost {lost[:1]}, left {left[:1]}"
        if not problem and (disk / "out.safetensors").exists() and said("verify", disk / "out.safetensors")[0]:
            problem = "half a file under its name"
        if not problem and said("verify", "--latest-good", disk / "run")[0]:
            problem = "no good checkpoint is left"
        return status, problem


def main(*_: str) -> list[str]:
    """From no room at all to enough, kilobyte by kilobyte."""
    lines = ["| writer | attempts | done | refused, nothing left | found |", "| --- | ---: | ---: | ---: | ---: |"]
    found: list[str] = []
    for what in ("convert", "consolidate", "verify --write", "prune"):
        came = [(room, *trial(what, room)) for room in (*range(48), 64, 128, 256)]
        done = sum(status == 0 for _, status, _ in came)
        bad = [f"- {what} with {room} kB: {problem}" for room, _, problem in came if problem]
        lines.append(f"| {what} | {len(came)} | {done} | {len(came) - done - len(bad)} | {len(bad)} |")
        print(lines[-1], flush=True)
        found += bad
    return [*lines, *found]
