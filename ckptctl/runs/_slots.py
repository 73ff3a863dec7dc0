"""From names to checkpoints: ranks brought together, names of one step in one slot, slots of one family in one run."""

from __future__ import annotations

import re
import stat
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from ckptctl.checks.completeness import glance
from ckptctl.checks.marks import base_name
from ckptctl.errors import CkptctlError
from ckptctl.model.run import CheckpointInfo, Completeness, Run, State
from ckptctl.runs._directory import Directory, is_pinned
from ckptctl.runs._entry import Entry, entry_of
from ckptctl.runs._scores import Scores, scores_of
from ckptctl.runs.metrics import METRICS
from ckptctl.storage import entries_of, open_file, side_by_side
from ckptctl.storage.set_aside import OWN_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ckptctl.model.run import Pointer
    from ckptctl.runs._names import Named

_SIDECARS = (".sha256", ".keep", "-unfinished")
_COMMIT = "trainer_state.json"
_FEWER = "{} ranks are here, siblings have {}, and no file says how many there were"
_RANK = re.compile(r"(?<=rank)[-_]?[0-9]{1,6}(?=\.(?!safetensors))")
_TAIL = 1 << 18
_LAST_TIME = 1e11
"""The year 5138: nothing was saved later, whatever a broken clock says."""
_ORDER = (State.WHOLE, State.UNFINISHED, State.DAMAGED, State.UNKNOWN)


def runs_of(here: Directory) -> tuple[Run, ...]:
    """Return the runs whose checkpoints lie in a directory, by the family of their names."""
    families: dict[str, list[Entry]] = {}
    for entry in _entries(here):
        families.setdefault(entry.named.family, []).append(entry)
    known = {family: found for family, found in families.items() if any(entry.recognised for entry in found)}
    used = {path.name for found in known.values() for entry in found for path in entry.paths}
    pointers = {pointer.name for pointer in here.pointers}
    others = tuple(sorted(name for name in here.names - used - pointers - METRICS if _is_other(name, used)))
    return tuple(_run(here, family, found, others) for family, found in sorted(known.items()))


def rank_stem(name: str) -> str:
    """Return what the names of the files of all ranks have in common; empty for what is no file of a rank."""
    return _RANK.sub("", name) if _RANK.search(name) else ""


def _entries(here: Directory) -> Iterable[Entry]:
    """Look at each name; a bare number counts only if what it names is a checkpoint."""
    ranks: dict[str, list[Named]] = {}
    looks: list[Callable[[], Entry]] = []
    for named in here.checkpoints:
        if named.rank is not None:
            ranks.setdefault(rank_stem(named.name), []).append(named)
        else:
            looks.append(partial(_looked_at, here.path, named))
    looks += [partial(_looked_at_ranks, here.path, group) for group in ranks.values()]
    for entry in side_by_side(here.path, looks):
        if not entry.named.bare or entry.layout or base_name(entry.named.name):
            yield entry


def _looked_at(directory: Path, named: Named) -> Entry:
    path = directory / named.name
    return entry_of(named, (path,), glance(path))


def _looked_at_ranks(directory: Path, group: list[Named]) -> Entry:
    group.sort(key=lambda named: named.rank or 0)
    names = tuple(named.name for named in group)
    return entry_of(group[0], tuple(directory / name for name in names), glance(directory, names=names))


def _run(here: Directory, family: str, entries: list[Entry], others: tuple[str, ...]) -> Run:
    entries = _without_commit(_without_ranks(entries))
    slots = _slots(entries)
    scores = scores_of(here, entries)
    pointers = (*here.pointers, *scores.pointers)
    infos = [_info(here, family, found, pointers, scores) for found in slots]
    titles = Counter(entry.title for entry in entries if entry.title)
    return Run(
        path=here.path,
        family=family,
        title=titles.most_common(1)[0][0] if titles else "checkpoints",
        checkpoints=tuple(sorted(infos, key=_by_epoch if _has_only_epochs(infos) else _by_step)),
        pointers=pointers,
        others=others,
    )


def _slots(entries: list[Entry]) -> list[list[Entry]]:
    """Bring names of one checkpoint together; what has the same step in another epoch is another one."""
    slots: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        slots.setdefault((_copied(entry, entries) or entry).slot, []).append(entry)
    found: list[list[Entry]] = []
    for slot in slots.values():
        epochs: dict[float | None, list[Entry]] = {}
        for entry in slot:
            epochs.setdefault(entry.epoch.value if entry.epoch else None, []).append(entry)
        known = [epoch for epoch in epochs if epoch is not None]
        found += [slot] if len(known) < 2 else epochs.values()
    return found


def _copied(entry: Entry, entries: list[Entry]) -> Entry | None:
    """Return the entry that one without a number in its name, such as ``last.ckpt``, is a copy of, byte by byte."""
    if entry.named.step is not None or entry.named.epoch is not None or not entry.step or len(entry.paths) > 1:
        return None
    same = (one for one in entries if one is not entry and one.step and one.step.value == entry.step.value)
    return next((one for one in same if len(one.paths) == 1 and _are_equal(one.paths[0], entry.paths[0])), None)


def _are_equal(one: Path, other: Path) -> bool:
    """Whether two files are of one size and end alike: a zip archive ends with the checksums of all that is in it."""
    try:
        ranges = [open_file(path).range() for path in (one, other) if path.is_file()]
        if len(ranges) < 2 or ranges[0].length != ranges[1].length:
            return False
        start = max(ranges[0].length - _TAIL, 0)
        tails = [found.read(start, found.length - start) for found in ranges]
    except CkptctlError:
        return False
    return tails[0] == tails[1]


def _without_ranks(entries: list[Entry]) -> list[Entry]:
    """Do not call those whole that have fewer ranks than their siblings and do not record how many there were.

    They may be of a restart on fewer machines, or have lost their highest ranks: nothing in them tells.
    """
    most = max((len(entry.paths) for entry in entries if entry.named.rank is not None), default=0)
    return [
        replace(entry, completeness=Completeness(state=State.UNKNOWN, why=(_FEWER.format(len(entry.paths), most),)))
        if entry.named.rank is not None and len(entry.paths) < most and entry.completeness.whole and not entry.world
        else entry
        for entry in entries
    ]


def _info(
    here: Directory, family: str, entries: list[Entry], pointers: tuple[Pointer, ...], scores: Scores
) -> CheckpointInfo:
    paths = tuple(path for entry in entries for path in entry.paths)
    names = {path.name for path in paths}
    step = next((entry.step for entry in entries if entry.step), None)
    nbytes, saved_at = _size_and_time(paths)
    return CheckpointInfo(
        path=paths[0],
        paths=paths,
        family=family,
        step=step,
        epoch=next((entry.epoch for entry in entries if entry.epoch), None),
        saved_at=saved_at,
        nbytes=nbytes,
        metrics=scores.of(int(step.value) if step else None, entries),
        completeness=_joined(entries),
        pinned=any(is_pinned(path, here.names) for path in paths),
        pointers=tuple(pointer.name for pointer in pointers if pointer.target in names),
        bases=tuple(dict.fromkeys(base for entry in entries for base in entry.bases if base not in names)),
    )


def _joined(entries: list[Entry]) -> Completeness:
    """A slot is as good as its best name; what is wrong with the others is still said."""
    best = min((entry.completeness.state for entry in entries), key=_ORDER.index)
    named = len(entries) > 1
    why = (f"{entry.named.name}: {text}" if named else text for entry in entries for text in entry.completeness.why)
    return Completeness(state=best, why=tuple(why))


def _without_commit(entries: list[Entry]) -> list[Entry]:
    """Mark those without the trainer's state as unfinished if their siblings have one: it is written last."""
    directories = [entry for entry in entries if entry.layout and entry.paths[0].is_dir()]
    bare = [entry for entry in directories if not (entry.paths[0] / _COMMIT).exists()]
    if len(bare) == len(directories):
        return entries
    why = f"{_COMMIT}, which is written last and which its siblings have, is missing"
    lost = Completeness(state=State.UNFINISHED, why=(why,))
    without = {entry.named.name for entry in bare}
    return [
        replace(entry, completeness=lost) if entry.named.name in without and entry.completeness.whole else entry
        for entry in entries
    ]


def _size_and_time(paths: tuple[Path, ...]) -> tuple[int, datetime]:
    """Sum up the bytes of all files, and find when the newest was written. Links are not followed."""
    nbytes, newest, todo = 0, 0.0, list(paths)
    while todo:
        path = todo.pop()
        try:
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                nbytes, newest = nbytes + status.st_size, max(newest, status.st_mtime)
                continue
            for entry in entries_of(path):
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path / entry.name)
                else:
                    status = entry.stat(follow_symlinks=False)
                    nbytes, newest = nbytes + status.st_size, max(newest, status.st_mtime)
        except OSError:
            continue
    newest = newest or max((_written(path) for path in paths), default=0.0)  # an empty directory
    return nbytes, datetime.fromtimestamp(min(max(newest, 0.0), _LAST_TIME), tz=timezone.utc)


def _written(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _has_only_epochs(infos: list[CheckpointInfo]) -> bool:
    """Whether epochs order better than steps: all have one, and some have no step, as what is damaged."""
    return all(info.epoch for info in infos) and not all(info.step for info in infos)


def _by_epoch(info: CheckpointInfo) -> tuple[object, ...]:
    return (info.epoch.value if info.epoch else 0, info.step.value if info.step else 0, info.path.name)


def _by_step(info: CheckpointInfo) -> tuple[object, ...]:
    return (
        info.step is None,
        info.step.value if info.step else 0,
        info.epoch is None,
        info.epoch.value if info.epoch else 0,
        info.path.name,
    )


def _is_other(name: str, used: set[str]) -> bool:
    """Whether a name is that of something else: nothing that goes with a checkpoint, and nothing of a prune's own."""
    return name not in OWN_NAMES and not _is_sidecar(name, used)


def _is_sidecar(name: str, used: set[str]) -> bool:
    base = next((name.removesuffix(suffix) for suffix in _SIDECARS if name.endswith(suffix)), None)
    return base is not None and any(one == base or one.rpartition(".")[0] == base for one in used)
