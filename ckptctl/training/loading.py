"""Load a training state: its bytes are checked before anybody gets them, and nothing in a file is run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptctl.checks.digests import recorded_digest
from ckptctl.checks.file_bytes import Outcome
from ckptctl.checks.intact import check_bytes
from ckptctl.errors import CkptctlError, CorruptError, UnsupportedError, UsageError, counted
from ckptctl.layouts import scan, split
from ckptctl.layouts.joined_ranks import rank_tensors
from ckptctl.layouts.saved_ranks import manifest_of, rank_of
from ckptctl.model import Component, Severity
from ckptctl.ops.verify import Level
from ckptctl.ops.verify.run import latest_good as newest_good
from ckptctl.runs import is_run, open_one
from ckptctl.storage import LocalFile
from ckptctl.training.live import require_torch
from ckptctl.training.ranks import all_ranks
from ckptctl.training.reading import gathered, in_order
from ckptctl.training.together import put_together
from ckptctl.training.warned import warned
from ckptctl.values import TensorRef, nested, with_names

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from ckptctl.layouts.saved_ranks import Manifest
    from ckptctl.model import Checkpoint, Contents, TensorInfo
    from ckptctl.training.ranks import Ranks

_OF_FILES = frozenset({"hf-trainer", "accelerate"})
"""Layouts of a file for each component: one without a tree of its own is called as its component is."""
_TRIES = 3
"""So often a checkpoint is looked at that somebody replaces meanwhile."""
_OF_A_RANK = frozenset({Component.RNG, Component.DATA})
"""What differs between ranks as a matter of course, and does not keep another number of them from going on."""


class UnverifiedWarning(UserWarning):
    """Nothing is on record to compare the bytes of a checkpoint with."""


def load(path: str | os.PathLike[str], *, verify: bool = True, strict: bool = False, device: Any = None) -> Any:
    """Return the nested state that a checkpoint holds; of a run, that of its newest good one.

    Parameters
    ----------
    path
        A file or directory that `save` wrote, whatever else `ckptctl inspect` reads as a whole, or a run. Of a
        directory each rank gets what it saved; among another number of ranks, what all of them have in common.
    verify
        Compare the bytes with the SHA-256 on record, and with the checksums inside. If there is neither, it is checked
        as far as its format allows, and a warning says so.
    strict
        Refuse what cannot be verified.
    device
        Where the tensors go; by default they stay on the CPU.

    Raises
    ------
    CorruptError
        It is damaged, or not whole.
    UnsupportedError
        It is one rank's part of a larger state; or, if `strict`, unverified.
    CkptctlError
        It cannot be read; the class says why.
    """
    require_torch()
    where = Path(path)
    if where.is_dir():
        where, manifest = all_ranks(patient=True).first(lambda: _chosen(where, verify=verify))
        ranks = all_ranks()
        if manifest:
            return _of_ranks(where, manifest, ranks, verify=verify, device=device)
    checkpoint = open_one(where)
    _check_whole(where, checkpoint)
    digest = recorded_digest(checkpoint) if verify else ""
    tensors = in_order(checkpoint.files[0].range.file, _all(checkpoint), digest) if digest else None
    if tensors is None:
        if verify:
            _check_bytes(where, checkpoint, strict=strict)
        tensors = gathered(_all(checkpoint))
    state = _made(where, _values(checkpoint, tensors), tensors, device)
    _released(checkpoint.files)
    return state


def _chosen(where: Path, *, verify: bool) -> tuple[Path, Manifest | None]:
    """Return what to load at a path: of a run its newest good checkpoint; with its manifest, if it is of ranks."""
    if is_run(where):
        where = _newest(where, verify=verify)
    return where, manifest_of(where, scan(where).names) if where.is_dir() else None


def _of_ranks(where: Path, manifest: Manifest, ranks: Ranks, *, verify: bool, device: Any) -> Any:
    """Load what this rank saved; among another number of ranks, what all of them shared. All or none succeeds."""
    for attempt in range(_TRIES):
        try:
            values, tensors = ranks.agree(partial(_of_rank, where, manifest, ranks, verify=verify))
            break
        except CkptctlError:
            again = ranks.first(lambda: manifest_of(where, scan(where).names))
            if again is None or again == manifest or attempt == _TRIES - 1:
                raise
            manifest = again  # it was replaced meanwhile
    return _made(where, values, tensors, device)  # DTensors: each rank makes them, in one order


def _of_rank(where: Path, manifest: Manifest, ranks: Ranks, *, verify: bool) -> tuple[object, dict[str, Any]]:
    contents, shared = rank_of(scan(where), manifest, ranks.rank % manifest.world_size)
    if ranks.size != manifest.world_size:
        _check_shared(where, manifest.world_size, ranks.size, contents, shared)
    tensors: dict[str, Any] = {}
    files = (contents, *([shared] if shared else []))
    for one in files:
        file = one.range.file
        mine = {n: _local(t) for n, t in contents.tensors.items() if t.pieces[0].range.file is file}
        digest = manifest.files[file.path.name].sha256 if verify else ""
        read = in_order(file, mine, digest) if digest else gathered(mine)
        if read is None:
            raise CorruptError(f"{file.path}: its tensors do not lie one after another")
        tensors |= read
    _released(files)
    return contents.values, tensors


def _local(tensor: TensorInfo) -> TensorInfo:
    """Return the block that a rank has, as a tensor of its own."""
    piece = tensor.pieces[0]
    return replace(tensor, shape=piece.shape, pieces=(replace(piece, offsets=(0,) * len(piece.shape)),))


def _check_shared(path: Path, before: int, now: int, contents: Contents, shared: Contents | None) -> None:
    """Refuse weights that only one of the ranks has; warn of the rest."""
    own = rank_tensors(contents, shared)
    parts = {name: part for part, found in split(contents).items() for name in found.tensors}
    alone = [name for name in own if parts.get(name) not in _OF_A_RANK or not own[name].whole]
    if alone and before > 1:
        raise UnsupportedError(
            f"{path}: saved by {before} processes, loaded by {now}: {counted(len(alone), 'tensor')} of each rank are "
            f"its own, the first is {alone[0]}",
            hint=f"ckptctl consolidate {path} --only all makes one file of them, which any number of processes loads",
        )
    warned(
        f"{path} was saved by {before} processes and is loaded by {now}: random states and places in the data are "
        "those of another number of ranks",
        above=4,
    )


def _released(files: Iterable[Contents]) -> None:
    for contents in files:
        if isinstance(contents.range.file, LocalFile):
            contents.range.file.release()


def latest_good(run: str | os.PathLike[str], *, verify: bool = True) -> Path:
    """Return the newest checkpoint of a run that is whole, and of which no checksum failed; warn of what was skipped.

    Under ``torch.distributed`` every process has to call this; rank 0 looks, and all get its answer.

    Raises
    ------
    UsageError
        There is none, or several runs are there.
    """
    return all_ranks(patient=True).first(lambda: _newest(Path(run), verify=verify))


def _newest(run: Path, *, verify: bool) -> Path:
    found, skipped = newest_good(run, Level(quick=not verify))
    for passed in skipped:
        warned(f"{passed.path} is passed over: {passed.why}", above=4)
    if found is None:
        raise UsageError(
            f"{run}: it holds no checkpoint that is whole, among those with a step in their names",
            hint="ckptctl inspect shows what is there; load takes the path of one checkpoint as well",
        )
    return found


def _made(where: Path, values: object, tensors: dict[str, Any], device: Any) -> Any:
    moved = tensors
    if device is not None:
        each = {id(tensor): tensor.to(device) for tensor in tensors.values()}  # tied ones stay tied
        moved = {name: each[id(tensor)] for name, tensor in tensors.items()}
    try:
        return put_together(values, moved, tensors)
    except (TypeError, ValueError, RuntimeError, LookupError) as error:  # arguments that no writer would give
        raise CorruptError(f"{where}: what it holds cannot be made: {error}") from error


def _check_whole(path: Path, checkpoint: Checkpoint) -> None:
    every = (*checkpoint.findings, *(finding for one in checkpoint.files for finding in one.findings))
    wrong = [one for one in every if one.severity is Severity.ERROR]
    if wrong:
        raise CorruptError(f"{path}: {wrong[0].message}", hint="ckptctl verify shows all that is wrong with it")
    parts = [tensor.name for part in checkpoint.parts.values() for tensor in part.tensors.values() if not tensor.whole]
    if parts:
        raise UnsupportedError(
            f"{path}: one rank's part of a larger state ({parts[0]} is not whole)",
            hint="ckptctl consolidate, on the directory of all ranks, makes one file of them",
        )


def _all(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    return {name: tensor for part in checkpoint.parts.values() for name, tensor in part.tensors.items()}


def _check_bytes(path: Path, checkpoint: Checkpoint, *, strict: bool) -> None:
    found = check_bytes(checkpoint, root=path if path.is_dir() else path.parent, progress=lambda _: None)
    if found.outcome is Outcome.FAILED:
        wrong = next(one for one in found.findings if one.severity is Severity.ERROR)
        raise CorruptError(f"{path}: {wrong.message}", hint="load the newest good one: load(run)")
    if found.outcome is Outcome.UNVERIFIED:
        message = f"{path}: nothing is on record to compare its bytes with"
        if strict:
            raise UnsupportedError(f"{message}, and strict was asked for", hint="ckptctl verify --write makes a digest")
        warned(message, UnverifiedWarning, above=2)


def _values(checkpoint: Checkpoint, tensors: Mapping[str, Any]) -> object:
    """Return the tree of a checkpoint; of several files, tensors and plain values by their names."""
    whole = checkpoint.values
    if whole is None and len(checkpoint.files) == 1:
        whole = checkpoint.files[0].values
    if whole is not None:
        return whole
    plain = {key: value for part in checkpoint.parts.values() for key, value in part.values.items()}
    state = {key: _renamed(value, key, tensors) for key, value in plain.items() if key not in tensors}
    known = {one.name for value in state.values() for one in nested(value) if isinstance(one, TensorRef)}
    loose = {part: [n for n in one.tensors if n not in known] for part, one in checkpoint.parts.items()}
    if not state:
        return {n: TensorRef(name=n) for n in tensors}
    for part, names in loose.items():  # those that no tree has
        prefix = checkpoint.parts[part].prefix
        below = {n.removeprefix(f"{prefix}."): TensorRef(name=n) for n in names}
        if prefix and names and state.get(prefix) is None and all(n.startswith(f"{prefix}.") for n in names):
            state[prefix] = below
        elif names and checkpoint.layout in _OF_FILES:
            state.setdefault(part.value, below)
        else:
            state |= {n: TensorRef(name=n) for n in names}
    for key in [one.prefix for one in checkpoint.parts.values() if "." in one.prefix and one.prefix in state]:
        outer, inner = key.split(".", 1)  # the key that both model and optimizer lay under
        within = state[outer] = {} if state.get(outer) is None else state[outer]
        if isinstance(within, dict):
            within[inner] = state.pop(key)
    return state


def _renamed(value: object, stem: str, tensors: Mapping[str, Any]) -> object:
    """Return the tree of one file of several with the names that its tensors have among those of all files."""
    below = {n.removeprefix(f"{stem}."): n for n in tensors if n.startswith(f"{stem}.")}
    refs = {one.name for one in nested(value) if isinstance(one, TensorRef)}
    return with_names(value, stem) if refs and refs <= below.keys() else value
