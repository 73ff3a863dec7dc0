"""What is, or would be, written of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.rewrite.trees import count_values

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.rewrite.carry_out import Outcome
    from ckptctl.rewrite.outputs import Outputs
    from ckptctl.rewrite.prepared import Item, Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTensor:
    """A tensor in a target: its name there and in the source, its dtype in both, its shape, its bytes."""

    name: str
    source: str
    dtype: str
    source_dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that is or will be written; `sha256` is empty if there is none (yet)."""

    path: Path
    nbytes: int
    sha256: str
    tensors: tuple[WrittenTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteReport:
    """What was made of one source, or would be (`written` tells).

    `bytes_checked` is ``verified`` if checksums inside the source were compared on the way (`records_verified`), or
    SHA-256 on record of its files (`digests_verified`), ``unverified`` if it has none or they were not looked
    at. `values` counts the plain values that are kept;
    `left_out` maps what was dropped, as asked, to the reason; `aside` says what was not selected. `overflows`
    counts numbers that became infinite, by tensor.
    """

    source: Path
    written: bool
    files: tuple[WrittenFile, ...]
    index: Path | None
    nbytes: int
    tensors: int
    seconds: float
    bytes_checked: str
    records_verified: int
    digests_verified: int
    tied: Mapping[str, str]
    cast: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    values: int
    left_out: Mapping[str, str]
    aside: tuple[str, ...]
    overflows: Mapping[str, int]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def described(
    prepared: Prepared, outputs: Outputs, nbytes: int, outcome: Outcome | None = None, *, checked: bool = True
) -> RewriteReport:
    """Say what was prepared, and what came of it."""
    digests = {written.path: written for written in outcome.files} if outcome else {}
    files = tuple(
        WrittenFile(
            path=file.path,
            nbytes=file.writer.nbytes,
            sha256=digests[file.path].sha256 if file.path in digests else "",
            tensors=tuple(_tensor(name, item) for name, item in file.items.items()),
        )
        for file in outputs.files
    )
    verified = bool(outcome and (outcome.verified or outcome.compared) and checked)
    return RewriteReport(
        source=prepared.source.path,
        written=outcome is not None,
        files=files,
        index=outputs.index,
        nbytes=nbytes,
        tensors=len(prepared.items) + len(prepared.ties),
        seconds=outcome.seconds if outcome else 0.0,
        bytes_checked="verified" if verified else "unverified",
        records_verified=outcome.verified if outcome else 0,
        digests_verified=outcome.compared if outcome else 0,
        tied=prepared.ties,
        cast=tuple(name for name, item in prepared.items.items() if item.cast),
        renamed=prepared.renamed,
        values=count_values(prepared.values) if prepared.values is not None else 0,
        left_out=prepared.left_out,
        aside=prepared.aside,
        overflows=outcome.overflows if outcome else {},
        notes=prepared.notes,
        warnings=prepared.warnings,
    )


def _tensor(name: str, item: Item) -> WrittenTensor:
    return WrittenTensor(
        name=name,
        source=item.source.name,
        dtype=item.stored.dtype.name,
        source_dtype=item.source.dtype.name,
        shape=item.stored.shape,
        nbytes=item.stored.nbytes,
    )
