"""Pickles as data: read by a machine that records, interpreted by a table, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, LimitError
from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.interpret import Context
from ckptctl.formats._pickle.loop import outranked, record
from ckptctl.formats._pickle.python_objects import PYTHON
from ckptctl.formats._pickle.storages import Storage, Storages
from ckptctl.formats._pickle.torch_objects import TORCH
from ckptctl.formats._pickle.tree import Tree

if TYPE_CHECKING:
    from ckptctl.model import GlobalUse, TensorInfo
    from ckptctl.storage import ByteRange

__all__ = ["Storage", "Storages", "Unpickled", "unpickle"]

_TABLE = TORCH | PYTHON


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpickled:
    """What a pickle says: named tensors, plain values, globals, what was left out, and its length."""

    tensors: dict[str, TensorInfo]
    values: object
    globals: tuple[GlobalUse, ...]
    elided: tuple[str, ...]
    length: int


def unpickle(source: ByteRange, storages: Storages) -> Unpickled:
    """Describe the pickle at the start of `source`; nothing that it asks for is done.

    Raises
    ------
    CorruptError, LimitError, UnsafePickleError
        It is malformed, makes no sense, or asks for too much.
    """
    if source.length > limits.MAX_BYTES:
        raise LimitError(f"{source.file.path}: the pickle is {source.length} bytes long (limit {limits.MAX_BYTES})")
    pickle = record(source)
    context = Context(source, storages, _TABLE)
    tree = Tree(context, {(use.module, use.name): use.level for use in pickle.globals})
    try:
        context.run(pickle.calls)
        values = tree.build(pickle.root)
    except CkptctlError as error:
        raise outranked(error, pickle.globals) from None
    return Unpickled(
        tensors=tree.tensors,
        values=values,
        globals=pickle.globals,
        elided=tuple(tree.elided),
        length=pickle.end,
    )
