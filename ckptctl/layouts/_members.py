"""Directories whose files each hold one component: read every file, and make one checkpoint of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.layouts._index import read_shards
from ckptctl.model import Aspect, Component, Contents, Finding, Part, Severity, TensorInfo
from ckptctl.storage import open_ahead, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptctl.layouts._layout import Scan

Table = tuple[tuple[Component, re.Pattern[str]], ...]
NOT_JOINED = "not-joined"
"""The slug of findings about tensors that are described rank by rank, because nothing says how they fit together."""
_MAX_JSON = 64 << 20
_MOST_RANKS, _MAX_TEXT = 100, 256
_NUMBERED = re.compile(r"_[0-9]+$")
"""How the names of the second model and those that follow it end."""


@dataclass(slots=True)
class _Gathered:
    files: list[Contents]
    tensors: dict[str, TensorInfo]
    values: dict[str, object]
    findings: list[Finding]


def table(*rows: tuple[Component, str]) -> Table:
    """Compile which names hold which component."""
    return tuple((component, re.compile(pattern)) for component, pattern in rows)


def find_members(seen: Scan, rows: Table) -> list[tuple[Component, str]]:
    """Return the files of a directory that a table knows, each with its component."""
    found = []
    for name in seen.names:
        component = next((component for component, pattern in rows if pattern.fullmatch(name)), None)
        if component:
            found.append((component, name))
    return found


def read_members(
    seen: Scan, members: Iterable[tuple[Component, str]], *, needed: str = ""
) -> tuple[tuple[Contents, ...], Mapping[Component, Part], tuple[Finding, ...]]:
    """Read files and shards with an index; names of the first model stay, others begin with the file's stem.

    A file that cannot be read is a finding, not the end: the rest of the checkpoint is still described.
    The values of the file `needed` are read even at a glance.
    """
    gathered: dict[Component, _Gathered] = {}
    members = tuple(members)
    open_ahead(seen.path / name for _, name in members)
    findings: list[Finding] = []
    for component, name in members:
        into = gathered.setdefault(component, _Gathered([], {}, {}, findings))
        try:
            _read(seen, component, name, into, values=name == needed)
        except CkptctlError as error:
            findings.append(finding_of(error, name))
    parts = {
        component: Part(component=component, prefix="", tensors=found.tensors, values=found.values)
        for component in Component
        if (found := gathered.get(component)) and (found.tensors or found.values)
    }
    return tuple(c for found in gathered.values() for c in found.files), parts, tuple(findings)


def _read(seen: Scan, component: Component, name: str, into: _Gathered, *, values: bool) -> None:
    if name.endswith(".index.json"):
        shards = read_shards(seen, seen.path / name)
        into.files += shards.files
        into.tensors |= shards.tensors
        into.findings += shards.findings
        return
    contents = seen.read(name, values=values)
    into.files.append(contents)
    stem = name.partition(".")[0]
    first = component is Component.MODEL and not _NUMBERED.search(stem)
    prefix = "" if first else f"{stem}."
    again = next((key for key in contents.tensors if prefix + key in into.tensors), None)
    if again is not None:
        raise CorruptError(f"{name}: {again} is in another file too")
    for key, tensor in contents.tensors.items():
        into.tensors[prefix + key] = replace(tensor, name=prefix + key) if prefix else tensor
    if contents.values is not None:
        into.values[stem] = contents.values


def finding_of(error: CkptctlError, name: str) -> Finding:
    """Return an error met in one file of a checkpoint as a finding about it."""
    message = error.message if name in error.message else f"{name}: {error.message}"
    return Finding(
        aspect=Aspect.STRUCTURE, severity=Severity.ERROR, slug=error.kind or error.slug, where=name, message=message,
        advice=error.hint or "",
    )  # fmt: skip


def read_json(seen: Scan, name: str) -> Mapping[str, object]:
    """Read a small JSON object of a trainer, which may hold NaN; empty if it is missing or malformed."""
    if name not in seen.names:
        return {}
    file = open_file(seen.path / name)
    if file.size > _MAX_JSON:
        return {}
    try:
        document = json.loads(file.range().read())
    except (ValueError, RecursionError):
        return {}
    file.release()
    return document if isinstance(document, dict) else {}


def read_text(seen: Scan, name: str) -> str:
    """Read a short line of text; empty if it is missing, long, or no text that a terminal shows."""
    if name not in seen.names:
        return ""
    file = open_file(seen.path / name)
    text = file.range().head(_MAX_TEXT).decode("utf-8", "replace").strip()
    file.release()
    return text if file.size < _MAX_TEXT and text.isprintable() else ""


def unfinished(seen: Scan, why: str) -> Finding:
    """Return the finding for a save that did not reach its end."""
    return Finding(
        aspect=Aspect.STRUCTURE,
        severity=Severity.ERROR,
        slug="unfinished",
        where=seen.path.name,
        message=f"unfinished: {why}",
    )


def missing(seen: Scan, name: str) -> Finding:
    """Return the finding for a file that should be there."""
    message = f"{name} is missing"
    return Finding(
        aspect=Aspect.STRUCTURE, severity=Severity.ERROR, slug="missing-file", where=seen.path.name, message=message
    )


def rank_gaps(seen: Scan, pattern: re.Pattern[str], name: str) -> list[Finding]:
    """Return a finding for each rank without a file, counted as numbers from 0 to the highest one."""
    ranks = {int(found[1]) for file in seen.names if (found := pattern.fullmatch(file))}
    return [missing(seen, name.format(rank)) for rank in range(max(ranks, default=-1)) if rank not in ranks][
        :_MOST_RANKS
    ]
