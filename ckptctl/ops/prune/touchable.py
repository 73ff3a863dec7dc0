"""Whether something may be removed at all, whatever the rules say: does it hold a run, a mount, what is not its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.layouts import open_checkpoint
from ckptctl.runs import may_be_of_a_run

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.storage.directory import Held
    from ckptctl.storage.survey import Survey


def why_untouchable(directory: Held, name: str) -> str:
    """Say why something must not be removed; empty if it may be."""
    found = survey_of(directory, name)
    if found.why or not found.suspects:
        return found.why
    own = _own_files(directory.path / name)
    foreign = [one for one in found.suspects if one not in own and not any(file.startswith(f"{one}/") for file in own)]
    return f"it holds what may be a checkpoint of another run ({foreign[0]})" if foreign else ""


def _own_files(path: Path) -> set[str]:
    """Return the files that a checkpoint is made of, by their paths in its directory."""
    try:
        checkpoint = open_checkpoint(path)
    except CkptctlError:
        return set()
    files = (contents.range.file.path for contents in checkpoint.files)
    return {file.relative_to(path).as_posix() for file in files if file.is_relative_to(path)}


def survey_of(directory: Held, name: str) -> Survey:
    """Look at a checkpoint as a thing to remove."""
    return directory.survey(name, lambda inner, is_directory: may_be_of_a_run(inner, directory=is_directory))
