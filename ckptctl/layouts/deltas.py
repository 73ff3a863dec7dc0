"""Files that hold only what changed since another: the rest of their tensors is in that base, or in its own.

``ckptctl.base`` in the metadata names the base, a file beside it, with its size and SHA-256, and the tensors that it
has to give. A base that is missing or another one is named, never passed over.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.errors import CkptctlError, CorruptError, UnreadableError
from ckptctl.layouts._index import is_plain
from ckptctl.model import Base
from ckptctl.storage import has_file, open_file
from ckptctl.values import BASE_KEY, BASE_VALUES_KEY, VALUES_KEY

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.model import Contents

MAX_CHAIN = 8
"""So many bases one after another `save` makes at most; then the whole state is written again."""
_MAX_READ = 64
_DIGEST = 64


def base_of(contents: Contents) -> Base | None:
    """Return what a file says of its base; None if it needs none.

    Raises
    ------
    CorruptError
        What it says makes no sense.
    """
    if BASE_KEY not in contents.metadata:
        return None
    try:
        said = {**json.loads(contents.metadata[BASE_KEY])}
        name, size, sha256, tensors = said["name"], said["size"], said["sha256"], said["tensors"]
        right = isinstance(name, str) and is_plain(name) and isinstance(sha256, str) and len(sha256) == _DIGEST
        right = right and type(size) is int and isinstance(tensors, list) and all(isinstance(t, str) for t in tensors)
    except (ValueError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise CorruptError(f"{contents.range.file.path}: {BASE_KEY} in its metadata is malformed")
    return Base(name=name, size=size, sha256=sha256.lower(), tensors=tuple(tensors))


def stated_base(path: Path) -> str:
    """Return the name of the base that a file needs beside it; nothing if it needs none, or cannot be read."""
    if path.suffix != ".safetensors":
        return ""
    try:
        file = open_file(path)
        base = base_of(formats.read(file.range()))
        file.release()
    except CkptctlError:
        return ""
    return base.name if base else ""


def text_of(base: Base) -> str:
    """Return what stands in the metadata of a file about its base."""
    return json.dumps({**asdict(base), "tensors": list(base.tensors)}, separators=(",", ":"))


def with_bases(path: Path, contents: Contents) -> tuple[Contents, tuple[Contents, ...], tuple[Base, ...]]:
    """Return the whole that a file makes with its bases, all the files, itself first, and what is said of the bases.

    Texts that are not about tensors are those of the file itself.

    Raises
    ------
    CorruptError
        A base is missing, or is another one than it was.
    """
    files: list[Contents] = [contents]
    bases: list[Base] = []
    while base := base_of(files[-1]):
        where = path.with_name(base.name)
        if len(files) > _MAX_READ or any(one.name == base.name for one in bases) or base.name == path.name:
            raise CorruptError(f"{path}: its bases lead in a circle ({base.name})")
        bases.append(base)
        files.append(_read(path, where, base))
    whole = files[-1]
    for delta, base in zip(reversed(files[:-1]), reversed(bases), strict=True):
        whole = _joined(path, delta, base, whole)
    first = replace(contents, metadata=whole.metadata)
    return whole, (first, *(replace(one, metadata={}) for one in files[1:])), tuple(bases)


def _read(path: Path, where: Path, base: Base) -> Contents:
    hint = f"it holds what {path.name} does not; bring {base.name} back beside it"
    try:
        if not has_file(where):
            raise CorruptError(f"{path}: its base {base.name} is missing", hint=hint)
        file = open_file(where)
        if file.size != base.size:
            message = f"its base {base.name} is another one by now ({file.size} bytes, {base.size} recorded)"
            raise CorruptError(f"{path}: {message}", hint=hint)
        contents = formats.read(file.range())
        file.release()
    except UnreadableError as error:
        raise CorruptError(f"{path}: its base {base.name} cannot be read: {error.message}", hint=hint) from None
    return contents


def _joined(path: Path, delta: Contents, base: Base, whole: Contents) -> Contents:
    """Return a delta with the tensors of its base, and with the values that are its own."""
    lost = next((name for name in base.tensors if name not in whole.tensors), "")
    if lost:
        raise CorruptError(f"{path}: its base {base.name} has no tensor {lost}", hint="it is another one by now")
    twice = next((name for name in base.tensors if name in delta.tensors), "")
    if twice:
        raise CorruptError(f"{path}: {twice} is said to be in its base and is here too")
    texts = {key: text for key, text in delta.metadata.items() if key not in (BASE_KEY, BASE_VALUES_KEY)}
    texts[VALUES_KEY] = delta.metadata.get(BASE_VALUES_KEY, "")
    tensors = {**delta.tensors, **{name: whole.tensors[name] for name in base.tensors}}
    made = formats.restore_state(replace(delta, tensors=tensors, metadata=texts))
    if made.values is None:
        raise CorruptError(f"{path}: the plain values in its metadata are not of these tensors")
    return made
