"""Every rule of a format, every byte accounted for, every file that should be there: one full look at a checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.checks.beside import beside, not_looked_at
from ckptctl.checks.marks import unfinished_marks
from ckptctl.errors import CkptctlError, MissingExtraError, UnknownFormatError, UnreadableError, UnsupportedError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Aspect, Component, Finding, Severity
from ckptctl.values import as_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptctl.model import Checkpoint

_WRONG = frozenset(
    {"duplicate-name", "duplicate-metadata", "entry-as-list", "dtype-as-object", "null-metadata", "unknown-field",
     "values-ignored", "data-never-written", "trailing-bytes", "total-size", "unlisted-tensor"}
)  # fmt: skip
"""What is odd to a reader that can go on, and wrong in a checkpoint that is to be trusted."""
_UNSEEN = (UnreadableError, MissingExtraError, UnsupportedError)
_STEP = re.compile(
    r"(?:checkpoint-|(?:global_)?step[-_]?)([0-9]{1,18})(?:\.(?:pt|pth|ckpt|safetensors))?"
    r"|(?:.*-)?(?:global_)?step=([0-9]{1,18})(?:[-_].*)?(?:-v[0-9]+)?\.ckpt"
)
"""The names that trainers give, in which a number can be nothing but the step."""
_DEEPSPEED = ("param_shapes", "ds_version", "ds_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a full look gave. `seen` is false for what could not be looked at: then nobody knows whether it is good."""

    checkpoint: Checkpoint | None
    findings: tuple[Finding, ...]
    seen: bool = True

    @property
    def wrong(self) -> frozenset[str]:
        """What is wrong with its structure, by the slugs of the findings."""
        return frozenset(finding.slug for finding in self.findings if is_wrong(finding))

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong with its structure."""
        return self.checkpoint is not None and not self.wrong


def is_wrong(finding: Finding) -> bool:
    """Whether a finding makes a checkpoint one that is not whole."""
    return finding.severity is Severity.ERROR and finding.aspect is Aspect.STRUCTURE


def look(path: Path, *, names: tuple[str, ...] | None = None) -> Looked:
    """Open a checkpoint whole and return all that is wrong with its structure. Never raises on its content.

    `names`, where given, are the only ones of the directory that count.
    """
    marks = tuple(unfinished_marks(path / names[0] if names else path))
    try:
        checkpoint = open_checkpoint(path, names=names)
    except CkptctlError as error:
        unseen = isinstance(error, _UNSEEN) or (isinstance(error, UnknownFormatError) and path.is_dir())
        return Looked(checkpoint=None, findings=(*marks, _of_error(path, error)), seen=not unseen)
    every = (*marks, *checkpoint.findings, *(finding for one in checkpoint.files for finding in one.findings))
    return Looked(
        checkpoint=checkpoint,
        findings=(*(_judged(finding) for finding in every), *_placeholders(checkpoint), *_steps(checkpoint),
                  *beside(checkpoint), *(() if names else not_looked_at(path, checkpoint))),
    )  # fmt: skip


def _judged(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.ERROR) if finding.slug in _WRONG else finding


def _of_error(path: Path, error: CkptctlError) -> Finding:
    message = error.message.removeprefix(f"{path}: ").replace(f"{path}/", "")
    return replace(_finding(error.kind or error.slug, path.name, message), advice=error.hint or "")


def _placeholders(checkpoint: Checkpoint) -> Iterator[Finding]:
    """DeepSpeed ZeRO-3 leaves empty tensors where weights were not gathered; its own files are meant to have them."""
    model = checkpoint.parts.get(Component.MODEL)
    own = any(key in (as_mapping(one.values) or {}) for one in checkpoint.files for key in _DEEPSPEED)
    if not model or own or checkpoint.layout == "deepspeed":
        return
    empty = [name for name, tensor in model.tensors.items() if tensor.shape == (0,)]
    if len(model.tensors) > len(empty) >= 2 and 2 * len(empty) > len(model.tensors):
        count = f"{len(empty)} of {len(model.tensors)} tensors are empty placeholders (the first is {empty[0]})"
        what = (
            f"{count}: saved under DeepSpeed ZeRO-3 without gathering; ckptctl consolidate brings the weights together"
        )
        yield _finding("empty-placeholders", checkpoint.path.name, what)


def _steps(checkpoint: Checkpoint) -> Iterator[Finding]:
    """The step in a name against the one inside.

    The number in the name of an accelerate state counts saves; some trainers count epochs there.
    """
    step = None if checkpoint.layout == "accelerate" else checkpoint.step
    found = _STEP.fullmatch(checkpoint.path.name)
    named = int(found[1] or found[2]) if found else None
    inside = step is not None and step.where != "in the name"
    by_epoch = checkpoint.epoch is not None and named in (checkpoint.epoch.value, checkpoint.epoch.value + 1)
    if step and named is not None and inside and named != step.value and not by_epoch:
        what = f"its name says step {named:,}, inside it is {step.value:,} ({step.where})"
        yield _finding("step-mismatch", checkpoint.path.name, what)


def _finding(slug: str, where: str, message: str) -> Finding:
    return Finding(aspect=Aspect.STRUCTURE, severity=Severity.ERROR, slug=slug, where=where, message=message)
