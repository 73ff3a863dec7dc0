"""The page of benchmarks: ``nox -s bench -- table`` measures it anew and writes docs/benchmarks.md.

What a user would do instead, in one run on one machine, at three sizes and at several counts. Inputs lie in the page cache;
what is written is flushed. Rivals in Python are given their imports: they tell the time of their calls alone. Ours is always
that of the whole command. ``CKPTCTL_PEERS`` and ``CKPTCTL_BENCH_RIVALS`` name virtual environments with the tools from PyPI, and with
accelerate and deepspeed; what is not there is said. ``--small`` tries it out at a hundredth of the sizes.
"""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from tests.bench import rivals as by
from tests.bench.common import MB, ckptctl, measured, python

PAGE = Path(__file__).parent.parent.parent / "docs" / "benchmarks.md"
_MARKS = re.compile(r"(<!-- bench -->\n).*?(<!-- end -->)", re.DOTALL)
SIZES = {"100 MB": 3, "1 GB": 30, "4 GB": 120}
TENSORS = (100, 10_000, 100_000)
CHECKPOINTS = (100, 10_000)


@dataclass
class Job:
    """Something to do, by us and by others: commands for the files in a directory."""

    what: str
    ours: Callable[[Path], list[str]]
    rivals: dict[str, Callable[[Path], list[str]]] = field(default_factory=dict)


def peer(*command: str) -> Callable[[Path], list[str]] | None:
    """A program of the environment with the tools from PyPI, if it is there."""
    venv = os.environ.get("CKPTCTL_PEERS")
    program = Path(venv or "/nowhere") / "bin" / command[0]
    if not program.exists():
        return None
    return lambda root: [str(program), *(one.replace("{root}", str(root)) for one in command[1:])]


def code(text: str, *names: str, interpreter: str = sys.executable) -> Callable[[Path], list[str]]:
    """Some Python that tells its own time, with paths in the directory as arguments."""
    return lambda root: [interpreter, "-c", text, *(str(root / name) for name in names)]


def us(*arguments: str) -> Callable[[Path], list[str]]:
    """The program, with names in the directory where they begin with a dot and a slash."""
    return lambda root: ckptctl(*(str(root / one[2:]) if one.startswith("./") else one for one in arguments))


def by_size() -> list[Job]:
    """What grows with bytes."""
    other = Path(os.environ.get("CKPTCTL_BENCH_RIVALS") or "/nowhere") / "bin" / "python"
    return [
        Job("look into safetensors", us("inspect", "./a.safetensors"),
            {"safe_open, listed": code(by.SAFE_OPEN, "a.safetensors"), "sft info": peer("sft", "info", "{root}/a.safetensors"),
             "safetensors-print": peer("safetensors-print", "{root}/a.safetensors")}),
        Job("look into a .pt", us("inspect", "./m.pt"),
            {"torch.load(mmap), listed": code(by.TORCH_LIST, "m.pt"), "ckptkit info": peer("ckptkit", "info", "{root}/m.pt")}),
        Job("compare with a digest on record", us("verify", "./a.safetensors", "--quiet"),
            {"sha256sum -c": lambda root: ["sh", "-c", f"cd {root} && sha256sum --quiet -c a.safetensors.sha256"]}),
        Job("checksums in a .pt", us("verify", "./m.pt", "--quiet"), {"zipfile.testzip": code(by.TESTZIP, "m.pt")}),
        Job("NaN and Inf", us("verify", "./b.safetensors", "--values", "--quiet"),
            {"load_file + isfinite": code(by.FINITE, "b.safetensors"), "sft check": peer("sft", "check", "{root}/b.safetensors")}),
        Job("scan a .pt for code", us("inspect", "./m.pt", "--brief"), {"picklescan": peer("picklescan", "-p", "{root}/m.pt")}),
        Job(".pt to safetensors", us("convert", "./m.pt", "-o", "./out.safetensors", "--quiet"),
            {"torch.load + save_file": code(by.CONVERT, "m.pt", "out.safetensors"), "cp": code(by.COPY, "m.pt", "out.safetensors"),
             "ptloader + save_file": peer("python", "-c", by.PTLOADER, "{root}/m.pt", "{root}/out.safetensors")}),
        Job("merge a torch DCP of 2 ranks", us("consolidate", "./rows", "-o", "./out.safetensors", "--quiet"),
            {"dcp_to_torch_save + save_file": code(by.DCP, "rows", "out.safetensors"),
             "accelerate merge-weights": code(by.MERGE, "rows", "out.d", interpreter=str(other)) if other.exists() else None}),
        Job("merge DeepSpeed ZeRO-2 of 2 ranks", us("consolidate", "./zero", "-o", "./out.safetensors", "--quiet"),
            {"zero_to_fp32": code(by.ZERO_TO_FP32, "zero", "out.d", interpreter=str(other)) if other.exists() else None}),
        Job("merge safetensors shards", us("consolidate", "./shards", "-o", "./out.safetensors", "--quiet"),
            {"load_file each + save_file": code(by.SHARDS, "shards", "out.safetensors")}),
        Job("compare two equal files", us("diff", "./a.safetensors", "./b.safetensors", "--quiet"),
            {"cmp": lambda root: ["cmp", str(root / "a.safetensors"), str(root / "b.safetensors")],
             "load_file + torch.equal": code(by.EQUAL, "a.safetensors", "b.safetensors"),
             "sft diff": peer("sft", "diff", "{root}/a.safetensors", "{root}/b.safetensors"),
             "diffai": peer("python", "-c", by.DIFFAI, "{root}/a.safetensors", "{root}/b.safetensors")}),
        Job("save a state", code(by.OUR_SAVE, "b.safetensors", "out.safetensors"),
            {"torch.save + flush + sha256": code(by.TORCH_SAVE, "b.safetensors", "out.pt")}),
        Job("load a state, verified", code(by.OUR_LOAD, "a.safetensors"), {"load_file, not verified": code(by.LOAD_FILE, "a.safetensors")}),
    ]  # fmt: skip


def by_tensors() -> list[Job]:
    """What grows with the number of tensors."""
    return [
        Job("look into safetensors", us("inspect", "./a.safetensors"), {"safe_open, listed": code(by.SAFE_OPEN, "a.safetensors")}),
        Job("look into a .pt", us("inspect", "./m.pt"), {"torch.load(mmap), listed": code(by.TORCH_LIST, "m.pt")}),
        Job("verify a .pt", us("verify", "./m.pt", "--quiet"), {"zipfile.testzip": code(by.TESTZIP, "m.pt")}),
        Job(".pt to safetensors", us("convert", "./m.pt", "-o", "./out.safetensors", "--quiet"),
            {"torch.load + save_file": code(by.CONVERT, "m.pt", "out.safetensors")}),
        Job("compare two equal files", us("diff", "./a.safetensors", "./b.safetensors", "--quiet"),
            {"load_file + torch.equal": code(by.EQUAL, "a.safetensors", "b.safetensors")}),
    ]  # fmt: skip


def by_checkpoints() -> list[Job]:
    """What grows with the number of checkpoints of a run."""
    return [
        Job("list a run of the Trainer", us("inspect", "./run"), {"safe_open and json of each": code(by.RUN, "run")}),
        Job("plan a prune", us("prune", "./run", "--keep-last", "3", "--dry-run", "--brief")),
        Job("the newest good one", us("verify", "--latest-good", "./run")),
    ]


def measure(jobs: list[Job], root: Path, times: int) -> Iterator[tuple[str, str, float, int]]:
    """Do each job in all ways, in turn; yield job, way, median of the seconds, peak in bytes."""
    for job in jobs:
        ways = {"ckptctl": job.ours(root), **{name: way(root) for name, way in job.rivals.items() if way}}
        found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
        for _ in range(times):
            for way, command in ways.items():
                warm(root, command)
                try:
                    seconds, peak, out = measured(command)
                except SystemExit as error:
                    if way == "ckptctl":
                        raise
                    print(job.what, way, str(error)[-300:], file=sys.stderr)
                    continue
                last = out.strip().rpartition("\n")[2]
                own = re.fullmatch(r"[0-9.]+(e-[0-9]+)?", last) and way != "ckptctl"
                ours = re.fullmatch(r"[0-9.]+", last) and job.ours.__qualname__.startswith("code")
                found[way].append((float(last) if own or ours else seconds, peak))
                subprocess.run(["sh", "-c", f"rm -rf {root}/out*; sync"], check=True)
        for way, runs in found.items():
            print(job.what, way, runs, file=sys.stderr, flush=True)
            if runs:
                yield job.what, way, statistics.median(one for one, _ in runs), max(peak for _, peak in runs)


def warm(root: Path, command: list[str]) -> None:
    """Bring what a command will read into the page cache: what others read and wrote may have pushed it out."""
    given = [one for one in command if one.startswith(f"{root}/") and Path(one).exists()]
    subprocess.run(
        ["sh", "-c", 'find "$@" -type f -exec cat {} + > /dev/null', "sh", *given], check=True
    ) if given else None


def replaced(page: str, title: str, lines: list[str]) -> str:
    """Put the rows of some jobs into the place of their older ones, below a title."""
    before, head, after = page.partition(f"### {title}\n")
    rows = after.splitlines()
    for line in lines[2:]:
        if not re.match(r"\| +\|", line):  # a job begins
            name = line.split("|")[1].strip()
            at = next(index for index, row in enumerate(rows) if row.startswith(f"| {name} |"))
            end = next(index for index in range(at + 1, len(rows)) if not re.match(r"\| +\|", rows[index]))
            own = list(_block(lines, line))
            rows[at:end] = own
    return before + head + "\n".join(rows) + "\n"


def _block(lines: list[str], first: str) -> Iterator[str]:
    rest = lines[lines.index(first) :]
    yield first
    for line in rest[1:]:
        if not re.match(r"\| +\|", line):
            return
        yield line


def table(
    jobs: list[Job], columns: dict[str, float], found: dict[str, dict[tuple[str, str], tuple[float, int]]]
) -> list[str]:
    """Seconds, ratio and memory at each size, and how the time grows from the last but one to the last."""
    heads = " | ".join(f"{one}" for one in columns)
    lines = [f"| | | {heads} | memory | grows |", f"| --- | --- |{' ---: |' * len(columns)} ---: | ---: |"]
    for job in jobs:
        for way in ("ckptctl", *job.rivals):
            cells, times, peaks = [], [], []
            for column in columns:
                here = found[column].get((job.what, way))
                if here is None:
                    continue
                ours = found[column][job.what, "ckptctl"][0]
                ratio = "" if way == "ckptctl" else f" ({here[0] / ours:.2g} ×)"
                cells.append(f"{_seconds(here[0])}{ratio}")
                times.append(here[0])
                peaks.append(here[1])
            if not cells:
                why = "cannot" if job.rivals[way] else "not there"
                lines.append(f"| | {way} | {why} |{' |' * (len(columns) + 1)}")
                continue
            sizes = list(columns.values())
            law = (
                math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2])
                if sizes[-1] > sizes[-2] and len(times) > 1
                else float("nan")
            )
            memory = " / ".join(f"{peak / MB:,.0f}" for peak in peaks)
            name = f"**{way}**" if way == "ckptctl" else way
            lines.append(
                f"| {job.what if way == 'ckptctl' else ''} | {name} | {' | '.join(cells)} | {memory} MB | n^{law:.1f} |"
            )
    return lines


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"


def sizes(root: Path, matrices: int) -> None:
    """Make files of so many matrices of 33.6 MB."""
    (root / "make.py").write_text(by.MAKE)
    subprocess.run([sys.executable, root / "make.py", root, str(matrices)], check=True)
    subprocess.run(python(by.ZERO, root, max(matrices // 4, 1)), check=True)
    _digest(root)


def counts(root: Path, tensors: int) -> None:
    """Make files of so many small tensors."""
    subprocess.run(python(by.MANY, root, tensors), check=True)
    _digest(root)


def _digest(root: Path) -> None:
    subprocess.run(["sh", "-c", f"cd {root} && sha256sum a.safetensors > a.safetensors.sha256; sync"], check=True)
    subprocess.run(["sh", "-c", f"find {root} -type f -exec cat {{}} + > /dev/null"], check=True)


def about() -> list[str]:
    """When, where and with what it was measured."""
    cpu = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ""
    )
    memory = int(re.findall(r"MemTotal: *([0-9]+)", Path("/proc/meminfo").read_text())[0]) * 1024 / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "safetensors", "numpy"))
    return [
        f"Measured on {datetime.now(timezone.utc):%Y-%m-%d} on {os.cpu_count()} cores of {cpu}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}.",
        "",
    ]


def main(*arguments: str) -> None:
    """Measure everything and write the page."""
    given = list(arguments or sys.argv)
    small, only = "--small" in given, given[given.index("--only") + 1] if "--only" in given else ""
    parts: list[tuple[str, list[Job], dict[str, float], Callable[[Path, int], None], int]] = [
        ("By size", by_size(), {name: n if not small else 1 for name, n in SIZES.items()}, sizes, 3),
        ("By the number of tensors", by_tensors(), {f"{n:,}": n // (100 if small else 1) for n in TENSORS}, counts, 3),
        ("By the number of checkpoints", by_checkpoints(), {f"{n:,}": n // (10 if small else 1) for n in CHECKPOINTS}, by.runs, 1),
    ]  # fmt: skip
    lines = about()
    page = PAGE.read_text()
    for title, every, columns, make, times in parts:
        jobs = [job for job in every if only in job.what]
        if not jobs:
            continue
        found: dict[str, dict[tuple[str, str], tuple[float, int]]] = {}
        for name, count in columns.items():
            with tempfile.TemporaryDirectory(dir=os.environ.get("CKPTCTL_BENCH_DIR")) as made:
                make(Path(made), int(count))
                found[name] = {
                    (job, way): (seconds, peak) for job, way, seconds, peak in measure(jobs, Path(made), times)
                }
        made_now = table(jobs, columns, found)
        lines += [f"### {title}", "", *made_now, ""]
        page = replaced(page, title, made_now) if only else page
    print("\n".join(lines))
    if only:
        PAGE.write_text(page)
    elif not small:
        PAGE.write_text(_MARKS.sub(lambda at: at[1] + "\n".join(lines) + at[2], PAGE.read_text()))
