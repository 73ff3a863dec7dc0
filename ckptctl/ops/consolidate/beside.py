"""Configuration, tokenizer and generation settings that lie beside shards, and are wanted beside the result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import ExistsError
from ckptctl.storage import has_file, open_file
from ckptctl.storage.atomic import flush_directory, pump_into, staged_for, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ckptctl.model import Checkpoint

_NAMES = re.compile(
    r"(?:.*_)?config\.json|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\.(?:json|txt)|merges\.txt"
    r"|.*\.(?:model|tiktoken|jinja)|chat_template\.json|(?:modeling|configuration|tokenization)_.*\.py"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A file to be taken along, and where to."""

    source: Path
    target: Path


def files_to_copy(checkpoint: Checkpoint, into: Path, *, force: bool) -> tuple[Copied, ...]:
    """Return what there is to take along.

    Raises
    ------
    ExistsError
        Something has its name there already.
    """
    directory = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    found = [
        Copied(source=path, target=into / path.name)
        for path in sorted(directory.iterdir())
        if _NAMES.fullmatch(path.name) and path.is_file() and path.resolve() != (into / path.name).resolve()
    ]
    for one in found:
        if has_file(one.target) and not force:
            raise ExistsError(f"{one.target}: exists already", hint="--force replaces it")
    return tuple(found)


def copy_files(copies: Iterable[Copied], *, force: bool) -> None:
    """Copy each file, flushed and whole."""
    directories = set()
    for one in copies:
        file = open_file(one.source)
        with uninterrupted(), staged_for(one.target, force=force, nbytes=file.size) as staged:
            pump = pump_into(staged, digest=False)
            try:
                pump.copy(file.range())
                pump.finish()
            finally:
                pump.close()
            staged.publish()
        file.release()
        directories.add(one.target.parent)
    for directory in directories:
        flush_directory(directory)
