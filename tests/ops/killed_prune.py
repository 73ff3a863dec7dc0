"""Kill a prune before and after every rename, unlink and flush, and say what lies there each time.

``python killed_prune.py DIRECTORY RUN`` prints a JSON list, an entry for each kill: the call, and what was found wrong.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path

import killed

from ckptctl.ops.prune import Pruning, Settings
from ckptctl.retention import Action, Policy

killed.CALLS = ("rename", "unlink", "rmdir", "fsync")
SETTINGS = Settings(policy=Policy(last=1, best=0, anchor_every=0))


def prune(run: Path) -> None:
    with Pruning([run], SETTINGS, datetime.now(tz=timezone.utc)) as pruning:
        reports = [pruning.apply(plan) for plan in pruning.plans]
        problems = [*map(str, pruning.errors), *(error for report in reports for error in report.errors)]
    if problems:
        raise RuntimeError(problems)


def contents(path: Path) -> dict[str, str]:
    """Return a digest of all that lies under each name in a directory."""
    found = {}
    for one in sorted(path.iterdir()):
        digest = hashlib.sha256()
        for file in [one] if one.is_file() else sorted(one.rglob("*")):
            digest.update(str(file.relative_to(path)).encode() + (file.read_bytes() if file.is_file() else b"/"))
        found[one.name] = digest.hexdigest()
    return found


def wrong(here: Path, start: dict[str, str], kept: set[str], together: list[set[str]]) -> list[str]:
    """What is touched of what is kept; what is neither whole as it was, nor trash, nor left of what is trash."""
    found = contents(here)
    problems = [f"{name} was touched" for name in kept if found.get(name) != start[name]]
    for name in found.keys() - kept:
        if not name.startswith(".ckptctl-trash-") and found[name] != start.get(name):
            problems.append(f"{name} has its own name and is not what it was")
    for names in together:
        left, gone = names & found.keys(), names - found.keys()
        if (
            left
            and gone
            and not any(name.endswith(tuple(gone)) for name in found if name.startswith(".ckptctl-trash-"))
        ):
            problems.append(f"{sorted(gone)} is gone, the rest of it is not, and nothing says that it is trash")
    return problems


def main(work: Path, source: Path) -> None:
    start = work / "start"
    shutil.copytree(source, start)
    before = contents(start)
    with Pruning([start], SETTINGS, datetime.now(tz=timezone.utc), lock=False) as pruning:
        decisions = [one for plan in pruning.plans for group in plan.groups for one in group.decisions]
        victims = [one.checkpoint for one in decisions if one.action is Action.DELETE]
        together = [{path.name for path in info.paths} for info in victims]
    beside = {one for one in before if one.endswith(".sha256")}
    for names in together:
        names |= {f"{stem}.sha256" for name in names for stem in (name, Path(name).stem)} & beside
    kept = before.keys() - set().union(*together)
    done = work / "done"
    shutil.copytree(start, done)
    prune(done)

    def again(here: Path) -> list[str]:
        prune(here)
        left = contents(here)
        return [] if left == contents(done) else [f"the next run does not finish the work: {sorted(left)}"]

    results = killed.every_kill(start, prune, lambda here, _: wrong(here, before, kept, together), again)
    print(json.dumps({"victims": len(victims), "kept": sorted(kept), "results": results}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
