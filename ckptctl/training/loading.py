"""Load a training state: its bytes are checked before anybody gets them, and nothing in a file is run."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptctl.checks.digests import recorded_digest
from ckptctl.checks.intact import Outcome, check_bytes
from ckptctl.errors import CorruptError, UnsupportedError, UsageError
from ckptctl.model import Severity
from ckptctl.ops.verify import Level
from ckptctl.ops.verify.run import latest_good as newest_good
from ckptctl.runs import is_run, open_one
from ckptctl.storage import LocalFile
from ckptctl.tensors.gather import blocks, raw_range
from ckptctl.training.live import require_torch
from ckptctl.training.together import put_together
from ckptctl.values import TensorRef

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ckptctl.model import Checkpoint, TensorInfo

_CHUNK = 4 << 20


class UnverifiedWarning(UserWarning):
    """Nothing is on record to compare the bytes of a checkpoint with."""


def load(path: str | os.PathLike[str], *, verify: bool = True, strict: bool = False, device: Any = None) -> Any:
    """Return the nested state that a checkpoint holds; of a run, that of its newest good one.

    Parameters
    ----------
    path
        A file that `save` wrote, whatever else `ckptctl inspect` reads as a whole, or a run.
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
    if where.is_dir() and is_run(where):
        where = latest_good(where, verify=verify)
    checkpoint = open_one(where)
    _check_whole(where, checkpoint)
    tensors = _tensors(checkpoint, recorded_digest(checkpoint) if verify else "")
    if tensors is None:
        if verify:
            _check_bytes(where, checkpoint, strict=strict)
        tensors = _gathered(checkpoint)
    state = _made(where, checkpoint, tensors, device)
    for contents in checkpoint.files:
        if isinstance(contents.range.file, LocalFile):
            contents.range.file.release()
    return state


def latest_good(run: str | os.PathLike[str], *, verify: bool = True) -> Path:
    """Return the newest checkpoint of a run that is whole, and of which no checksum failed; warn of what was skipped.

    Raises
    ------
    UsageError
        There is none, or several runs are there.
    """
    found, skipped = newest_good(Path(run), Level(quick=not verify))
    for passed in skipped:
        warnings.warn(f"{passed.path} is passed over: {passed.why}", UserWarning, stacklevel=2)
    if found is None:
        raise UsageError(f"{run}: it holds no checkpoint that is whole", hint="ckptctl inspect shows what is there")
    return found


def _made(where: Path, checkpoint: Checkpoint, tensors: dict[str, Any], device: Any) -> Any:
    moved = tensors
    if device is not None:
        each = {id(tensor): tensor.to(device) for tensor in tensors.values()}  # tied ones stay tied
        moved = {name: each[id(tensor)] for name, tensor in tensors.items()}
    try:
        return put_together(_values(checkpoint, tensors), moved, tensors)
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


def _tensors(checkpoint: Checkpoint, digest: str) -> dict[str, Any] | None:
    """Read one file from its beginning to its end, hashed on the way; None if it does not lie in that way.

    Raises
    ------
    CorruptError
        It is another than the digest is of.
    """
    file = checkpoint.files[0].range.file
    if not digest or not isinstance(file, LocalFile):
        return None
    made: dict[str, Any] = {}
    places: dict[tuple[int, int], Any] = {}
    for name, tensor in _all(checkpoint).items():
        place = raw_range(tensor)
        if tensor.numel and (place is None or place.file is not file):
            return None
        key = (place.offset, place.length) if place else (file.size, id(tensor))
        known = places.get(key)
        made[name] = places[key] = _empty(tensor) if known is None else _shared(known, tensor)
    ordered = sorted((offset, _view(one)) for (offset, _), one in places.items() if offset < file.size)
    if any(at + len(view) > after for (at, view), (after, _) in itertools.pairwise(ordered)):
        return None  # tensors overlap
    if _read(file, ordered) != digest:
        message = f"{file.path}: its SHA-256 is not the one on record: it was damaged or changed since it was saved"
        raise CorruptError(message, hint="load the newest good one: load(run), or ckptctl verify --latest-good")
    return made


def _read(file: LocalFile, ordered: list[tuple[int, memoryview]]) -> str:
    """Read a whole file, into the places that some of it has; return its SHA-256, worked out while more is read."""
    sha, at, scratch = hashlib.sha256(), 0, [memoryview(bytearray(_CHUNK)), memoryview(bytearray(_CHUNK))]
    pending: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool:

        def take(view: memoryview) -> None:
            nonlocal at
            file.range().read_into(view, at)
            at += len(view)
            pending.append(pool.submit(sha.update, view))
            if len(pending) > 1:
                pending.pop(0).result()

        for offset, view in [*ordered, (file.size, memoryview(b""))]:
            turn = 0
            while at < offset:
                take(scratch[turn % 2][: min(_CHUNK, offset - at)])
                turn += 1
                if turn > 1:
                    pending[0].result()
            for start in range(0, len(view), _CHUNK):
                take(view[start : start + _CHUNK])
            if turn:
                for one in pending:
                    one.result()
        for one in pending:
            one.result()
    return sha.hexdigest()


def _empty(tensor: TensorInfo) -> Any:
    import torch

    if tensor.layout != "strided" or not tensor.dtype.torch or tensor.dtype.bits % 8:
        raise UnsupportedError(f"{tensor.name} is {tensor.layout} of {tensor.dtype}, which is not loaded")
    return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype.torch))


def _shared(known: Any, tensor: TensorInfo) -> Any:
    """Return the tensor that has the same bytes, as the other type or shape that it may have here."""
    import torch

    dtype = getattr(torch, tensor.dtype.torch)
    fits = known.shape == tensor.shape and known.dtype == dtype
    return known if fits else known.view(-1).view(dtype).view(tensor.shape)


def _view(tensor: Any) -> memoryview:
    import torch

    flat: Any = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return memoryview(flat.numpy()).cast("B")


def _gathered(checkpoint: Checkpoint) -> dict[str, Any]:
    """Bring tensors together wherever they lie; tied ones are one."""
    made: dict[str, Any] = {}
    known: dict[object, Any] = {}
    for name, tensor in _all(checkpoint).items():
        one = known.get(tensor.identity)
        if one is None:
            one = known[tensor.identity] = _empty(tensor)
            view, at = _view(one), 0
            for block in blocks(tensor, most=_CHUNK):
                view[at : at + len(block)] = block
                at += len(block)
        made[name] = one
    return made


def _check_bytes(path: Path, checkpoint: Checkpoint, *, strict: bool) -> None:
    found = check_bytes(checkpoint, root=path if path.is_dir() else path.parent, progress=lambda _: None)
    if found.outcome is Outcome.FAILED:
        wrong = next(one for one in found.findings if one.severity is Severity.ERROR)
        raise CorruptError(f"{path}: {wrong.message}", hint="load the newest good one: load(run)")
    if found.outcome is Outcome.UNVERIFIED:
        message = f"{path}: nothing is on record to compare its bytes with"
        if strict:
            raise UnsupportedError(f"{message}, and strict was asked for", hint="ckptctl verify --write makes a digest")
        warnings.warn(message, UnverifiedWarning, stacklevel=3)


def _values(checkpoint: Checkpoint, tensors: Mapping[str, Any]) -> object:
    """Return the tree of a checkpoint; of several files, tensors and plain values by their names."""
    whole = checkpoint.values
    if whole is None and len(checkpoint.files) == 1:
        whole = checkpoint.files[0].values
    if whole is not None:
        return whole
    plain = {key: value for part in checkpoint.parts.values() for key, value in part.values.items()}
    return {
        **{key: value for key, value in plain.items() if key not in tensors},
        **{n: TensorRef(name=n) for n in tensors},
    }
