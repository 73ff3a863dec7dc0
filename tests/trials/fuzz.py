"""Fuzz every reader with damaged copies of real files: ``python -m tests.trials fuzz --minutes 60``.

Each input goes through `inspect`, `verify --values`, and at times `convert` and `diff`, in a process of little memory.
What counts as found: a traceback or an internal error, an exit status of its own, a control character in the output,
JSON that does not parse, longer than ten seconds, memory beyond the limit; and what `verify` calls whole although the
safetensors library refuses it, or although its content is another than before and its checksums cover all of it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ckptctl.cli.app import main as ckptctl
from tests.trials.mutate import mutated

CORPUS = Path(__file__).parent.parent / "corpus" / "data"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SLOW, _MEMORY, _LARGEST, _HANGS = 10.0, 3 << 30, 300_000, 1200.0
_COVERED = (".pt", ".pth", ".bin", ".ckpt")
"""Names of torch's files: a zip has a checksum of every byte that is content."""


@dataclass(slots=True)
class Tally:
    """What came of the inputs of one kind: how many, what they were called, the slowest, and what was found."""

    tried: int = 0
    said: collections.Counter[str] = field(default_factory=collections.Counter)
    slowest: float = 0.0
    found: list[str] = field(default_factory=list)


def seeds() -> dict[str, list[Path]]:
    """The files and directories to damage, by the kind of reader."""
    found: dict[str, list[Path]] = {}
    for path in sorted(CORPUS.rglob("*")):
        top = path.relative_to(CORPUS).parts[0]
        if top == "damaged" or not path.is_file() or path.stat().st_size > _LARGEST or path.suffix in (".py", ".md"):
            continue
        found.setdefault(f"{top}: {path.suffix or path.name}", []).append(path)
    return found


def said(*arguments: object) -> tuple[int, str, str]:
    """Run the program in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = ckptctl([str(one) for one in arguments])
    return status, out.getvalue(), err.getvalue()


def wrong(status: int, out: str, err: str) -> str:
    """Say what is wrong with what the program did, whatever the input was."""
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if "Traceback" in err or "internal error" in err:
        return err.strip().splitlines()[-1][:200]
    found = _CONTROL.search(out + err)
    return f"control character {found[0]!r}" if found else ""


def tried(path: Path, place: Path, target: Path, chosen: random.Random) -> tuple[str, str]:
    """Put one input through the commands; return what `verify` said of it, and what is wrong."""
    status, out, err = said("inspect", target, "--tensors", "--values")
    if problem := wrong(status, out, err):
        return "", f"inspect: {problem}"
    status, out, err = said("verify", "--values", "--json", target)
    problem = wrong(status, out, err)
    if problem:
        return "", f"verify: {problem}"
    verdict = json.loads(out)["checkpoints"][0] if out else {}
    slugs = sorted({one["slug"] for one in verdict.get("findings", ())})
    if not slugs and status == 0 and target == place:
        problem = called_whole(path, place)
        if problem:
            return "whole", problem
    if chosen.random() < 0.2:
        problem = more(path, target, place.parent / "out.safetensors")
    return ",".join(slugs[:2]) or "whole", problem


def called_whole(path: Path, place: Path) -> str:
    """Say what is wrong if a damaged file is called whole."""
    if place.suffix == ".safetensors":
        return "" if accepted(place) else "verify: whole, and the safetensors library refuses it"
    if place.suffix in _COVERED and path.read_bytes()[:2] == b"PK":
        status, out, err = said("diff", path, place, "--quiet")
        return "" if status == 0 else f"verify: whole, and it is another than before ({status}: {(out + err)[:160]})"
    return ""


def accepted(path: Path) -> bool:
    """Whether the reference implementation opens a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as opened:
            return opened.keys() is not None
    except SafetensorError as error:
        return "invalid dtype" in str(error).lower() or "unknown variant" in str(error)  # a type that it is too old for
    except Exception:  # noqa: BLE001  # it is not ours
        return False


def more(path: Path, target: Path, out: Path) -> str:
    """Convert it and compare it with what it was."""
    for arguments in (("convert", target, "-o", out, "--force"), ("diff", path, target), ("inspect", "--json", target)):
        status, text, err = said(*arguments)
        if problem := wrong(status, text, err):
            return f"{arguments[0]}: {problem}"
        if "--json" in arguments and text:
            json.loads(text)
    out.unlink(missing_ok=True)
    return ""


def work(seconds: float, seed: int, keep: Path) -> dict[str, Tally]:
    """Damage files in turn until time is up; what goes wrong is kept."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    chosen, kinds, until = random.Random(seed), seeds(), time.monotonic() + seconds
    tallies = {kind.partition(":")[0]: Tally() for kind in kinds}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as made:
        while time.monotonic() < until:
            top = chosen.choice(list(tallies))
            path = chosen.choice(kinds[chosen.choice([kind for kind in kinds if kind.startswith(f"{top}:")])])
            raw, how = mutated(path.read_bytes(), chosen)
            place, target = placed(path, Path(made), raw, chosen)
            began = time.process_time()  # others may be at work
            try:
                verdict, problem = tried(path, place, target, chosen)
            except BaseException as error:  # noqa: BLE001  # this is what is looked for
                verdict, problem = "", f"{type(error).__name__}: {error}"
            taken, tally = time.process_time() - began, tallies[top]
            problem = problem or (f"{taken:.1f} s" if taken > _SLOW else "")
            tally.tried += 1
            tally.said[verdict] += 1
            tally.slowest = max(tally.slowest, taken)
            if problem:
                name = f"{seed}-{tally.tried}-{path.name}"
                (keep / name).write_bytes(raw)
                tally.found.append(f"{path.relative_to(CORPUS)} ({how}), kept as {name}: {problem}")
                print(tally.found[-1], file=sys.stderr, flush=True)
    return tallies


def placed(path: Path, made: Path, raw: bytes, chosen: random.Random) -> tuple[Path, Path]:
    """Write an input, alone or, where it is one of several files, among the others; return it and what to look at."""
    shutil.rmtree(made / "in", ignore_errors=True)
    whole = path.parent
    if chosen.random() < 0.5 and sum(one.stat().st_size for one in whole.rglob("*") if one.is_file()) < _LARGEST:
        shutil.copytree(whole, made / "in")
        place = made / "in" / path.name
        place.write_bytes(raw)
        return place, made / "in" if chosen.random() < 0.7 else place
    (made / "in").mkdir()
    place = made / "in" / path.name
    place.write_bytes(raw)
    return place, place


def summed(parts: list[dict[str, Tally]]) -> dict[str, Tally]:
    """Add up what several processes did."""
    every: dict[str, Tally] = {}
    for part in parts:
        for kind, one in part.items():
            tally = every.setdefault(kind, Tally())
            tally.tried += one.tried
            tally.said += one.said
            tally.slowest = max(tally.slowest, one.slowest)
            tally.found += one.found
    return every


def table(every: dict[str, Tally]) -> list[str]:
    """What was tried, as a table in Markdown."""
    lines = [
        "| file of the corpus | inputs | called whole | named most often | slowest | found |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for kind, one in sorted(every.items()):
        often = ", ".join(f"{slug} {count:,}" for slug, count in one.said.most_common(4) if slug not in ("", "whole"))
        lines.append(
            f"| {kind} | {one.tried:,} | {one.said['whole']:,} | {often} | {one.slowest:.1f} s | {len(one.found)} |"
        )
    total, found = sum(one.tried for one in every.values()), sum(len(one.found) for one in every.values())
    return [*lines, f"| all | {total:,} | {sum(one.said['whole'] for one in every.values()):,} | | | {found} |"]


def child(seconds: float, seed: int, keep: Path, answer: Path) -> None:
    """Work for a while, and write down what came of it."""
    made = {kind: [one.tried, one.said, one.slowest, one.found] for kind, one in work(seconds, seed, keep).items()}
    answer.write_text(json.dumps(made))


def main(*arguments: str) -> list[str]:
    """Fuzz for so many minutes, a fresh process every other; return the table and what was found."""
    options = argparse.ArgumentParser(prog="fuzz")
    options.add_argument("--minutes", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "ckptctl-fuzz")
    options.add_argument("--child", type=float, default=0.0)
    chosen = options.parse_args(arguments)
    chosen.keep.mkdir(parents=True, exist_ok=True)
    if chosen.child:
        child(chosen.child, chosen.seed, chosen.keep, chosen.keep / f"{chosen.seed}.json")
        return []
    until, seed, parts, lost = time.monotonic() + 60 * chosen.minutes, chosen.seed, [], []
    while (left := until - time.monotonic()) > 1:
        seed += 1
        given = ["--child", str(min(left, 120.0)), "--seed", str(seed), "--keep", str(chosen.keep)]
        words = [sys.executable, "-m", "tests.trials", "fuzz", *given]
        try:
            done = subprocess.run(words, check=False, env=os.environ, timeout=_HANGS)
        except subprocess.TimeoutExpired:
            lost.append(f"- process {seed} hangs: {' '.join(words[1:])} says on what")
            continue
        answer = chosen.keep / f"{seed}.json"
        if done.returncode or not answer.exists():
            lost.append(f"- process {seed} ended with {done.returncode}")
            continue
        said = json.loads(answer.read_text())
        parts.append({kind: Tally(one[0], collections.Counter(one[1]), one[2], one[3]) for kind, one in said.items()})
        answer.unlink()
    every = summed(parts)
    return [*table(every), *lost, *(f"- {found}" for one in every.values() for found in one.found)]
