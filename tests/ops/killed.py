"""Kill a conversion before and after every call that changes the disk, and say what lies there each time.

``python killed.py DIRECTORY SCENARIO`` prints a JSON list, an entry for each kill: the call, and what was found wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from ckptctl.ops.convert import Options, convert

CALLS = ("open", "write", "fsync", "link", "replace", "rename", "unlink", "mkdir", "rmdir", "fchmod", "close")


def killed_at(number: int, *, after: bool) -> None:
    """Have this process killed at the given call, counted over all of `CALLS`."""
    left = [number]

    def watched(call):
        def made(*arguments, **options):
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **options)
            if left[0] == 0 and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return made

    for name in CALLS:
        setattr(os, name, watched(getattr(os, name)))


def run(work: Path, options: Options) -> None:
    convert(work / "m.pt", work / "m.safetensors", options=options)


def digests(work: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(work.iterdir())}


def wrong(work: Path, old: dict[str, str], new: dict[str, str]) -> list[str]:
    """What lies in a directory that is neither the old state, nor the new one, nor a leftover that says so."""
    found, problems = digests(work), []
    for name, digest in found.items():
        if name.startswith("."):
            if not name.endswith(".ckptctl-tmp"):
                problems.append(f"{name} is no recognisable leftover")
        elif not name.endswith(".sha256") and digest not in (old.get(name), new.get(name)):
            problems.append(f"{name} is neither old nor new")
    for name in found:
        target = name.removesuffix(".sha256")
        digest = (work / name).read_text().split()[:1] if name.endswith(".sha256") and name[0] != "." else []
        if digest and target in found and digest != [found[target]]:
            problems.append(f"{name} is not the digest of {target}")
    index = work / "m.safetensors.index.json"
    if index.exists():
        files = set(json.loads(index.read_text())["weight_map"].values())
        for state in (old, new):
            if found[index.name] == state.get(index.name) and all(found.get(file) == state[file] for file in files):
                break
        else:
            problems.append("the index is beside shards that are not its own")
    return problems


def every_kill(start: Path, act, judge, again) -> list[dict[str, object]]:
    """Let `act` work on a copy of a directory and be killed at each call in turn.

    `judge(directory, killed)` and `again(directory)`, which is to finish the work, return what is wrong.
    """
    results: list[dict[str, object]] = []
    here = start.with_name("here")
    for number in range(1, 1000):
        ended = True
        for after in (False, True):
            shutil.copytree(start, here)
            child = os.fork()
            if not child:
                killed_at(number, after=after)
                act(here)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            was_killed = os.WIFSIGNALED(status)
            ended = ended and not was_killed
            problems = [] if was_killed or not os.WEXITSTATUS(status) else ["it failed"]
            problems += [*judge(here, was_killed), *again(here)]
            results.append({"call": number, "after": after, "killed": was_killed, "problems": problems})
            shutil.rmtree(here)
        if ended:
            return results
    raise RuntimeError("it never ends")


def main(work: Path, scenario: str) -> None:
    shards = Options(max_shard_size=400) if "shards" in scenario else Options()
    forced = Options(max_shard_size=shards.max_shard_size, force=True)
    start = work / "start"
    start.mkdir()
    shutil.copyfile(sys.argv[3], start / "m.pt")
    if "force" in scenario:
        shutil.copyfile(sys.argv[4], work / "older.pt")
        convert(work / "older.pt", start / "m.safetensors", options=shards)
    done = work / "done"
    shutil.copytree(start, done)
    run(done, forced)
    old, new = digests(start), digests(done)

    def judge(here: Path, was_killed: bool) -> list[str]:
        ended = [] if was_killed or digests(here) == new else ["it ended, and not in the new state"]
        return wrong(here, old, new) + ended

    def again(here: Path) -> list[str]:
        run(here, forced)
        return [] if digests(here) == new else [f"the next run does not finish the work: {sorted(digests(here))}"]

    print(
        json.dumps(every_kill(start, lambda here: run(here, forced if "force" in scenario else shards), judge, again))
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
