"""Read tensors into memory: in the order of their file, hashed on the way, or from wherever they lie."""

from __future__ import annotations

import hashlib
import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError, UnsupportedError
from ckptctl.storage import LocalFile
from ckptctl.tensors.gather import blocks, raw_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.model import TensorInfo
    from ckptctl.storage import File

_CHUNK = 4 << 20


def in_order(file: File, tensors: Mapping[str, TensorInfo], digest: str) -> dict[str, Any] | None:
    """Read the `tensors` of one file whole, hashed on the way; None if they do not lie one after another.

    Raises
    ------
    CorruptError
        It is another than the digest is of.
    """
    if not isinstance(file, LocalFile):
        return None
    made: dict[str, Any] = {}
    places: dict[tuple[int, int], Any] = {}
    for name, tensor in tensors.items():
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


def gathered(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """Bring tensors together wherever they lie; tied ones are one."""
    made: dict[str, Any] = {}
    known: dict[object, Any] = {}
    for name, tensor in tensors.items():
        one = known.get(tensor.identity)
        if one is None:
            one = known[tensor.identity] = _empty(tensor)
            view, at = _view(one), 0
            for block in blocks(tensor, most=_CHUNK):
                view[at : at + len(block)] = block
                at += len(block)
        made[name] = one
    return made
