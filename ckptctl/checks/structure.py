"""Every rule of a format, every byte accounted for, every file that should be there: one full look at a checkpoint."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.checks.marks import unfinished_marks
from ckptctl.errors import CkptctlError, MissingExtraError, UnknownFormatError, UnreadableError, UnsupportedError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Aspect, Component, Finding, Severity
from ckptctl.storage import open_file
from ckptctl.values import as_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ckptctl.model import Checkpoint

_WRONG = frozenset(
    {"duplicate-name", "duplicate-metadata", "entry-as-list", "dtype-as-object", "null-metadata", "unknown-field",
     "values-ignored", "data-never-written", "trailing-bytes", "total-size", "unlisted-tensor"}
)  # fmt: skip
"""What is odd to a reader that can go on, and wrong in a checkpoint that is to be trusted."""
_UNSEEN = (UnreadableError, MissingExtraError, UnsupportedError)
_SHARD = re.compile(r"(.+?)-[0-9]{3,6}-of-[0-9]{3,6}(\.safetensors|\.bin)")
_STEP = re.compile(
    r"(?:checkpoint-|(?:global_)?step[-_]?)([0-9]{1,18})(?:\.(?:pt|pth|ckpt|safetensors))?"
    r"|(?:.*[-_])?step=([0-9]{1,18})(?:[-_].*)?(?:-v[0-9]+)?\.ckpt"
)
"""The names that trainers give, in which a number can be nothing but the step."""
_MAX_JSON = 32 << 20
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
        findings=(*(_judged(finding) for finding in every), *_placeholders(checkpoint), *_extra_shards(checkpoint),
                  *_steps(checkpoint), *_documents(checkpoint.path)),
    )  # fmt: skip


def _judged(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.ERROR) if finding.slug in _WRONG else finding


def _of_error(path: Path, error: CkptctlError) -> Finding:
    hint = f" ({error.hint})" if error.hint else ""
    message = error.message.removeprefix(f"{path}: ").replace(f"{path}/", "")
    return _finding(error.kind or error.slug, path.name, f"{message}{hint}")


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


def _extra_shards(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Shards in the directory, called like those of the index, that it does not name."""
    named = {one.range.file.path.name for one in checkpoint.files}
    stems = {(found[1], found[2]) for name in named if (found := _SHARD.fullmatch(name))}
    if not stems or not checkpoint.path.is_dir():
        return
    for name in sorted(entry.name for entry in checkpoint.path.iterdir()):
        found = _SHARD.fullmatch(name)
        missing = any(finding.message.startswith(f"{name} ") for finding in checkpoint.findings)
        if found and (found[1], found[2]) in stems and name not in named and not missing:
            yield _finding("extra-shard", name, "the index does not name this shard: it is of another save")


def _steps(checkpoint: Checkpoint) -> Iterator[Finding]:
    """The step in a name against the one inside. The number in the name of an accelerate state counts saves."""
    step = None if checkpoint.layout == "accelerate" else checkpoint.step
    found = _STEP.fullmatch(checkpoint.path.name)
    named = int(found[1] or found[2]) if found else None
    inside = step is not None and step.where != "in the name"
    if step and named is not None and inside and named != step.value:
        what = f"its name says step {named:,}, inside it is {step.value:,} ({step.where})"
        yield _finding("step-mismatch", checkpoint.path.name, what)


def _documents(directory: Path) -> Iterator[Finding]:
    """Yield the JSON files of a checkpoint directory that are none: cut, or never written."""
    for path in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        if path.is_file() and not _is_json(path):
            yield _finding("bad-json", path.name, f"{path.name} is empty, cut or not JSON")


def _is_json(path: Path) -> bool:
    file = open_file(path)
    if file.size > _MAX_JSON:
        return True  # it is not parsed here
    text = file.range().read()
    file.release()
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:
        return True
    return True


def _finding(slug: str, where: str, message: str) -> Finding:
    return Finding(aspect=Aspect.STRUCTURE, severity=Severity.ERROR, slug=slug, where=where, message=message)


def orphan_digests(directory: Path) -> Iterator[Finding]:
    """Yield a warning for each digest whose file is not there."""
    names = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
    stems = {name.rpartition(".")[0] for name in names if not name.endswith(".sha256")} | names
    for name in sorted(names):
        if name.endswith(".sha256") and name.removesuffix(".sha256") not in stems:
            warning = _finding("orphan-digest", name, "the file that this digest is of is not there")
            yield replace(warning, severity=Severity.WARNING)


def left_empty(names: Iterable[str]) -> Iterator[Finding]:
    """Yield a warning for each empty directory that is called like a checkpoint, and older than a whole one."""
    for name in names:
        yield replace(_finding("empty", name, "an empty directory with a checkpoint's name"), severity=Severity.WARNING)


def missing_pointers(pointers: Iterable[tuple[str, str]], where: str) -> Iterator[Finding]:
    """Yield a finding for each pointer (its name, its target) that leads nowhere."""
    for name, target in pointers:
        yield _finding("dangling-pointer", where, f"{name} points at {target}, which is not there")
