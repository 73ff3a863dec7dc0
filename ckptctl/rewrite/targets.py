"""What has to hold of the places where something is to be written, before anything is."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ckptctl.errors import ExistsError, UnsupportedError
from ckptctl.layouts.deltas import SUFFIX, needed_by
from ckptctl.storage import has_file, is_remote
from ckptctl.storage.atomic import check_space, check_target, temporary_of
from ckptctl.storage.digest import sidecar_of

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.model import Contents
    from ckptctl.rewrite.options import Options
    from ckptctl.rewrite.outputs import Outputs

_ABANDONED = 900.0
"""Seconds after which a digest without its object is that of a writer that was killed."""


def check_outputs(outputs: Outputs, inputs: tuple[Contents, ...], options: Options) -> int:
    """Make sure, before anything is written, that all of it can be; return how many bytes it will be.

    Raises
    ------
    ExistsError
        Something is there already and is not to be replaced, or it is an input.
    NoSpaceError
        It does not fit.
    """
    paths = [file.path for file in outputs.files] + ([outputs.index] if outputs.index else [])
    needed = sum(file.writer.nbytes for file in outputs.files) + len(outputs.index_text)
    directory = paths[0].parent
    if is_remote(directory):
        _check_objects(paths, inputs, options)
        return needed
    if not directory.exists():
        check_target(directory, force=False)
        check_space(directory.parent, needed + needed // 100)
        return needed
    read = {_identity(one.range.file.path) for one in inputs if not is_remote(one.range.file.path)}
    for path in paths:
        if path.exists() and _identity(path) in read:
            raise ExistsError(f"{path}: this is the source itself", hint="-o gives another name")
        check_target(path, force=options.force)
        if options.force and path.exists():
            _check_needed(path)
    if not options.force:
        _check_sidecars(outputs)
    check_space(directory, needed + needed // 100)
    return needed


def _check_sidecars(outputs: Outputs) -> None:
    """Refuse to replace a digest that is not ours: one beside no file, and not left by a killed writer."""
    for file in outputs.files:
        sidecar = sidecar_of(file.path)
        if os.path.lexists(sidecar) and not temporary_of(file.path).exists():
            raise ExistsError(f"{sidecar}: exists already, without its file", hint="--force replaces it")


def _check_needed(path: Path) -> None:
    """Refuse to replace what others cannot be read without."""
    if path.suffix == SUFFIX and (other := needed_by(path)):
        raise ExistsError(
            f"{path}: {other} is a delta on it, and could not be read any more",
            hint="write to another name, or delete what needs it first",
        )


def _check_objects(paths: list[Path], inputs: tuple[Contents, ...], options: Options) -> None:
    """Make sure that none of the objects to be written is an input, or there already."""
    read = {str(contents.range.file.path) for contents in inputs}
    for path in paths:
        if not path.writable:  # type: ignore[attr-defined]  # it is remote
            raise UnsupportedError(f"{path}: nothing is written there, only to buckets", hint="s3://, gs:// or az://")
        if str(path) in read:
            raise ExistsError(f"{path}: this is the source itself", hint="-o gives another name")
        if len(paths) > 1 and has_file(path):
            # One after another they would be replaced, and whoever is interrupted has neither the old nor the new.
            raise ExistsError(f"{path}: exists already", hint="several objects are not replaced: -o gives another name")
        if options.force and has_file(path):
            _check_needed(path)
        if not options.force and has_file(path):
            raise ExistsError(f"{path}: exists already", hint="--force replaces it; -o gives another name")
        if not options.force and has_file(sidecar_of(path)) and not is_abandoned(path, sidecar_of(path)):
            raise ExistsError(
                f"{sidecar_of(path)}: exists already, without its file: somebody is writing that, or was killed",
                hint="a quarter of an hour later it is taken up if it is the same; --force replaces it",
            )


def is_abandoned(target: Path, claim: Path) -> bool:
    """Whether what is written before an object has been there for long, without the object: its writer has died."""
    try:
        age = time.time() - claim.stat().st_mtime
    except OSError:
        return False
    return age > _ABANDONED and not has_file(target)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
