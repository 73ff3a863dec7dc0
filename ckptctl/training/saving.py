"""Save a training state so that there is always a whole one: the old, or the new."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import ChangedError, CkptctlError, UsageError, about
from ckptctl.layouts import split
from ckptctl.model import Contents
from ckptctl.rewrite.carry_out import carry_out
from ckptctl.rewrite.options import Options
from ckptctl.rewrite.outputs import SAFETENSORS, TORCH_SUFFIXES, Outputs, lay_out
from ckptctl.rewrite.prepared import RESERVED, prepare
from ckptctl.rewrite.source import Source
from ckptctl.rewrite.targets import check_outputs
from ckptctl.storage import address, is_remote, unreadable
from ckptctl.storage.atomic import check_target
from ckptctl.storage.byterange import MemoryFile
from ckptctl.storage.claims import sweep_dead
from ckptctl.training.delta import checked_base, remember, warn_whole, without_unchanged
from ckptctl.training.live import Live, taken_apart
from ckptctl.training.ranked import write_ranks
from ckptctl.training.ranks import Ranks, all_ranks

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

_OPTIONS = Options(force=True)
_NOT_OURS = frozenset(
    {
        *TORCH_SUFFIXES,
        ".pkl",
        ".pickle",
        ".npy",
        ".npz",
        ".h5",
        ".keras",
        ".json",
        ".gguf",
        ".tar",
        ".zip",
        ".safetensor",
    }
)
_OF_RANKS = Options(force=True, sidecar=False)


def save(
    path: str | os.PathLike[str],
    state: object,
    *,
    metadata: Mapping[str, str] | None = None,
    base: str | os.PathLike[str] | None = None,
) -> str:
    """Save a nested state of tensors and plain values, and return the SHA-256 of the file, or of the manifest.

    One safetensors file: it grows under a temporary name beside its own and takes that when it is flushed and whole;
    ``NAME.sha256`` is written before it, or, where a file is replaced, taken away first and written after.

    A directory, for all processes of ``torch.distributed``, each of which has to call this: a file for each rank, one
    for the tensors that are the same on all of them, and ``manifest.json``, which rank 0 writes last. If it fails on
    one rank, it fails on all.

    Whatever goes wrong, what was there before is untouched.

    Parameters
    ----------
    path
        The file, if it ends in ``.safetensors``, else the directory; that in which it lies is there.
    state
        Dicts, lists, tuples and sets of tensors (on any device), NumPy arrays and scalars, and plain values. Names
        of one tensor stay tied: it is written once. DTensors go into a directory only.
    metadata
        Texts for the file's ``__metadata__``.
    base
        A file beside this one that `save` wrote: what it has byte by byte is not written again, and this file cannot
        be read without it. All is written after eight such steps, for a useless base, or over a file.

    Raises
    ------
    UnsupportedError
        Something in the state cannot be kept; the message says where.
    NoSpaceError
        The disk is too full, or became so.
    CkptctlError
        It could not be written; the class says why.
    """
    target = checked_target(path)
    ranks = all_ranks() if in_ranks(target) else Ranks()
    ranks.same(str(target), "the path to save to")
    found = checked_base(base, target)
    return write_live(ranks.agree(lambda: taken_apart(state, path=target)), metadata or {}, ranks, found)


def checked_target(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file or a directory that may be saved to.

    Raises
    ------
    UsageError
        Its suffix is that of another kind of file.
    """
    if is_remote(address(path)):
        raise UsageError(f"{path}: a state is saved to a disk, and uploaded from there")
    target = Path(path).absolute()  # a thread must not follow a later chdir; links stay
    if ".." in target.parts:  # behind a link that is not its parent
        target = target.resolve()
    if target.suffix.lower() in _NOT_OURS or (target.suffix.lower() == SAFETENSORS and target.suffix != SAFETENSORS):
        raise UsageError(f"{target}: a state is saved to a file that ends in {SAFETENSORS}, or to a directory")
    return target


def in_ranks(target: Path) -> bool:
    """Whether all processes save to a path together: to a directory, and not to a file."""
    return target.suffix != SAFETENSORS


def write_live(live: Live, metadata: Mapping[str, str], ranks: Ranks, base: Path | None = None) -> str:
    """Write a state that was taken apart, to a file, or each rank its own part of a directory."""
    try:
        return _written(live, metadata, ranks, base)
    except OSError as error:  # the file system says no
        raise unreadable(live.path, error) from error


def _written(live: Live, metadata: Mapping[str, str], ranks: Ranks, base: Path | None) -> str:
    if in_ranks(live.path):
        whole = ranks.agree(lambda: _planned(live, metadata, live.path / f"rank{SAFETENSORS}"))
        return write_ranks(whole.files[0], live, ranks, _OF_RANKS)
    if live.blocks:
        raise UsageError(
            f"{live.path}: {next(iter(live.blocks))} is one rank's block of a larger tensor",
            hint="save to a directory, on all ranks",
        )
    sweep_dead(live.path.parent)
    check_target(live.path, force=True)  # its directory is there: one that vanished is not made anew
    whole = _planned(live, metadata, live.path)
    outputs = without_unchanged(whole, base)
    check_outputs(outputs, (), _OPTIONS)
    try:
        written = carry_out(outputs, (), _OPTIONS, lambda _: None).files[0]
        for one in outputs.needed:
            one.check_in_place()  # what deletes a base looks for new deltas afterwards, this for the base
    except ChangedError as error:
        if outputs is whole:
            raise
        warn_whole(error)
        written = carry_out(whole, (), _OPTIONS, lambda _: None).files[0]
    with contextlib.suppress(OSError):
        remember(live.path, written.sha256)
    return written.sha256


@contextlib.contextmanager
def _own_hints() -> Iterator[None]:
    """Leave out hints that are options of a command."""
    try:
        yield
    except CkptctlError as error:
        if error.hint and error.hint.startswith("--"):
            error.hint = None
        raise


def _planned(live: Live, metadata: Mapping[str, str], path: Path) -> Outputs:
    """Return the one file that would hold all of a state."""
    given = dict(metadata)
    wrong = [one for one in given.items() if one[0] in RESERVED or not all(isinstance(part, str) for part in one)]
    if wrong:
        raise UsageError(f"metadata: {wrong[0][0]!r} is a key of ckptctl's own, or it or its value is no text")
    ties = [key for key, text in metadata.items() if text in live.tensors]
    if ties:
        raise UsageError(f"metadata: the text of {ties[0]!r} is the name of a tensor, and would be read as a tie to it")
    nothing = MemoryFile(b"", path=live.path).range()
    contents = Contents(format="state", range=nothing, tensors=live.tensors, values=live.values)
    source = Source(path=live.path, files=(), parts=split(contents), values=live.values, metadata=given, live=True)
    with about(live.path), _own_hints():
        prepared = prepare(source, _OPTIONS, safetensors=True)
        if prepared.values is None:  # names alone would do for a flat dict, but for its order and its class
            prepared = replace(prepared, values=live.values)
        return lay_out(prepared, path, _OPTIONS, shards={})
