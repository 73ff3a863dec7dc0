"""Is a checkpoint whole? Decided from names, sizes, headers and small metadata; no tensor is read.

Digests, values and safety are other questions: a class that nobody knows makes no checkpoint incomplete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.checks.marks import unfinished_marks
from ckptctl.errors import (
    CkptctlError,
    LimitError,
    MissingBaseError,
    MissingExtraError,
    UnknownFormatError,
    UnreadableError,
    UnsafePickleError,
    UnsupportedError,
)
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Aspect, Checkpoint, Finding, Severity
from ckptctl.model.run import Completeness, State

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NOT_SEEN = {
    error.slug
    for error in (
        LimitError,
        MissingBaseError,
        MissingExtraError,
        UnknownFormatError,
        UnreadableError,
        UnsafePickleError,
        UnsupportedError,
    )
}

EMPTY = "it is empty"
"""Why a directory without anything in it is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What one look at a path gives: whether it is whole, and the checkpoint if it can be opened.

    `recognised` is false for what is nothing that a training run saves.
    """

    completeness: Completeness
    checkpoint: Checkpoint | None = None
    recognised: bool = True


def glance(path: Path, *, names: tuple[str, ...] | None = None) -> Glance:
    """Say whether the checkpoint at `path` is whole, and return what was seen of it. Never raises on its content.

    `names`, where given, are the only ones of the directory that count.
    """
    marks = tuple(unfinished_marks(path / names[0] if names else path))
    checkpoint, recognised = None, True
    try:
        checkpoint = open_checkpoint(path, glance=True, names=names)
        found = _judge(path, (*marks, *checkpoint.findings, *(f for one in checkpoint.files for f in one.findings)))
    except CkptctlError as error:
        found = _judge(path, marks) if marks else _judge_error(path, error)
        recognised = bool(marks) or not isinstance(error, UnknownFormatError) or _is_empty(path)
    return Glance(completeness=found, checkpoint=checkpoint, recognised=recognised)


def completeness(path: Path) -> Completeness:
    """Say whether the checkpoint at `path` is whole: structure only. Never raises on its content."""
    return glance(path).completeness


def _judge(path: Path, findings: Iterable[Finding]) -> Completeness:
    wrong = [f for f in findings if f.severity is Severity.ERROR and f.aspect is Aspect.STRUCTURE]
    if not wrong:
        return Completeness(state=State.WHOLE)
    slugs = {finding.slug for finding in wrong}
    known = State.DAMAGED if slugs - _NOT_SEEN else State.UNKNOWN
    ordered = sorted(wrong, key=lambda finding: finding.slug != "unfinished")
    return Completeness(
        state=State.UNFINISHED if "unfinished" in slugs else known,
        why=tuple(f.message.removeprefix("unfinished: ").replace(f"{path}/", "") for f in ordered),
    )


def _judge_error(path: Path, error: CkptctlError) -> Completeness:
    message = error.message.removeprefix(f"{path}: ").replace(f"{path}/", "")
    if _is_empty(path):
        return Completeness(state=State.UNFINISHED, why=(EMPTY,))
    return Completeness(state=State.UNKNOWN if error.slug in _NOT_SEEN else State.DAMAGED, why=(message,))


def _is_empty(path: Path) -> bool:
    try:
        return not any(path.iterdir()) if path.is_dir() else path.stat().st_size == 0
    except OSError:
        return False
