"""Pickles as data: read by a machine that records, interpreted by a table, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, LimitError, counted
from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.interpret import Context, Rebuild, Table
from ckptctl.formats._pickle.loop import outranked, record
from ckptctl.formats._pickle.python_objects import PYTHON
from ckptctl.formats._pickle.storages import Storage, Storages
from ckptctl.formats._pickle.torch_objects import TORCH
from ckptctl.formats._pickle.tree import Tree

if TYPE_CHECKING:
    from ckptctl.formats._pickle.records import Pickle
    from ckptctl.model import GlobalUse, TensorInfo
    from ckptctl.storage import ByteRange

__all__ = [
    "Context",
    "Rebuild",
    "Storage",
    "Storages",
    "Unpickled",
    "interpret",
    "interpret_calls",
    "record",
    "unpickle",
]

_TABLE = TORCH | PYTHON


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpickled:
    """What a pickle says: named tensors, plain values, globals, what was left out, and its length."""

    tensors: dict[str, TensorInfo]
    values: object
    globals: tuple[GlobalUse, ...]
    elided: tuple[str, ...]
    length: int


def unpickle(
    source: ByteRange, storages: Storages, *, own: str = "", most: int | None = None, extra: Table | None = None
) -> Unpickled:
    """Describe the pickle at the start of `source`; nothing that it asks for is done.

    `own` is the module under which an archive defines classes of its own; `most` how long the pickle
    may be, in bytes; `extra` further functions to interpret calls by.

    Raises
    ------
    CorruptError, LimitError, UnsafePickleError
        It is malformed, makes no sense, or asks for too much.
    """
    limit = limits.MAX_BYTES if most is None else most
    if source.length > limit:
        raise LimitError(f"{source.file.path}: the pickle is {source.length} bytes long (limit {limit})")
    return interpret(record(source, own=own), source, storages, extra=extra)


def interpret_calls(pickle: Pickle, source: ByteRange, storages: Storages) -> Context:
    """Give the calls of a pickle their values, where it is not the tree of them that matters."""
    context = Context(source, storages, _TABLE)
    try:
        context.run(pickle.calls)
    except CkptctlError as error:
        raise outranked(error, pickle.globals) from None
    return context


def interpret(pickle: Pickle, source: ByteRange, storages: Storages, *, extra: Table | None = None) -> Unpickled:
    """Describe a pickle that has been recorded."""
    context = Context(source, storages, {**_TABLE, **extra} if extra else _TABLE)
    tree = Tree(context, {(use.module, use.name): use.level for use in pickle.globals})
    try:
        context.run(pickle.calls)
        values = tree.build(pickle.root)
        lost = tree.lost(pickle.calls)
    except CkptctlError as error:
        raise outranked(error, pickle.globals) from None
    left_out = [f"no name leads to {counted(lost, 'tensor')} that it makes"] if lost else []
    return Unpickled(
        tensors=tree.tensors,
        values=values,
        globals=(*pickle.globals, *context.globals),
        elided=(*tree.elided, *left_out),
        length=pickle.end,
    )
