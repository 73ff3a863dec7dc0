"""Save a training state so that there is always a whole one: the old, or the new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError, about
from ckptctl.layouts import split
from ckptctl.model import Contents
from ckptctl.rewrite.carry_out import carry_out, check_outputs
from ckptctl.rewrite.options import Options
from ckptctl.rewrite.outputs import SAFETENSORS, lay_out
from ckptctl.rewrite.prepared import RESERVED, prepare
from ckptctl.rewrite.source import Source
from ckptctl.storage.byterange import MemoryFile
from ckptctl.training.live import Live, taken_apart

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_OPTIONS = Options(force=True)


def save(path: str | os.PathLike[str], state: object, *, metadata: Mapping[str, str] | None = None) -> str:
    """Save a nested state of tensors and plain values to one safetensors file, and return its SHA-256.

    The file grows under a temporary name beside its own and takes that when it is flushed and whole; ``NAME.sha256``
    is written before it, or, where a file is replaced, taken away first and written after. Whatever goes wrong, what
    was there before is untouched.

    Parameters
    ----------
    path
        Ends in ``.safetensors``; its directory is there.
    state
        Dicts, lists, tuples and sets of tensors (on any device), NumPy arrays and scalars, and plain values. Names
        of one tensor stay tied: it is written once.
    metadata
        Texts for the file's ``__metadata__``.

    Raises
    ------
    UnsupportedError
        Something in the state cannot be kept; the message says where.
    NoSpaceError
        The disk is too full, or became so.
    CkptctlError
        It could not be written; the class says why.
    """
    return write_live(taken_apart(state, path=checked_target(path)), metadata or {})


def checked_target(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that may be saved to.

    Raises
    ------
    UsageError
        Its suffix is another.
    """
    target = Path(path)
    if target.suffix != SAFETENSORS:
        raise UsageError(f"{target}: a state is saved to a file that ends in {SAFETENSORS}")
    return target


def write_live(live: Live, metadata: Mapping[str, str]) -> str:
    """Write a state that was taken apart."""
    wrong = [key for key, text in metadata.items() if key in RESERVED or not isinstance(text, str)]
    if wrong:
        raise UsageError(f"metadata: {wrong[0]!r} is a key of ckptctl's own, or has no text")
    nothing = MemoryFile(b"", path=live.path).range()
    contents = Contents(format="state", range=nothing, tensors=live.tensors, values=live.values)
    given = dict(metadata)
    source = Source(path=live.path, files=(), parts=split(contents), values=live.values, metadata=given, live=True)
    with about(live.path):
        prepared = prepare(source, _OPTIONS, safetensors=True)
        if prepared.values is None:  # names alone would do for a flat dict, but for its order and its class
            prepared = replace(prepared, values=live.values)
        outputs = lay_out(prepared, live.path, _OPTIONS, shards={})
        check_outputs(outputs, (), _OPTIONS)
        outcome = carry_out(outputs, (), _OPTIONS, lambda _: None)
    return outcome.files[0].sha256
