"""Files that hold only what changed since another: the rest of their tensors is in that base, or in its own.

``ckptctl.base`` in the metadata names the base, a file beside it, with its size and SHA-256, and the tensors that it
has to give. A base that is missing or another one is named, never passed over.
"""

from __future__ import annotations

import errno
import json
import stat
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.errors import CkptctlError, CorruptError, MissingBaseError, UnreadableError
from ckptctl.layouts._index import is_plain
from ckptctl.model import Base
from ckptctl.storage import has_file, is_remote, names_beside, open_file, unreadable
from ckptctl.values import BASE_KEY, BASE_VALUES_KEY, VALUES_KEY

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.model import Contents

MAX_CHAIN = 8
"""So many bases one after another `save` makes at most; then the whole state is written again."""
SUFFIX = ".safetensors"
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
        beyond = said.get("beyond", [])
        right = isinstance(name, str) and isinstance(sha256, str) and len(sha256) == _DIGEST and type(size) is int
        right = right and _are_texts(tensors) and _are_texts(beyond) and all(map(is_plain, [name, *beyond]))
    except (ValueError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise CorruptError(f"{contents.range.file.path}: {BASE_KEY} in its metadata is malformed")
    return Base(name=name, size=size, sha256=sha256.lower(), tensors=tuple(tensors), beyond=tuple(beyond))


def _are_texts(said: object) -> bool:
    return isinstance(said, list) and all(isinstance(one, str) for one in said)


def stated_bases(path: Path) -> tuple[str, ...]:
    """Return the names of the files beside it that a file needs, the nearest first, also of those that are away.

    Only headers are read. What is no safetensors file, or is damaged, says nothing.

    Raises
    ------
    UnreadableError
        It, or one of those files, cannot be read: nobody knows what it needs.
    """
    found: dict[str, None] = {}
    seen, name = set(), path.name
    while name not in seen:
        seen.add(name)
        base = _stated_base(path.with_name(name))
        if base is None:
            break
        found |= dict.fromkeys((base.name, *base.beyond))
        name = base.name
    return tuple(found)


def _stated_base(path: Path) -> Base | None:
    if path.suffix != SUFFIX:
        return None
    if not _is_file(path):
        return None
    try:
        file = open_file(path)
        try:
            return base_of(formats.glance(file.range()))
        finally:
            file.release()
    except UnreadableError:
        if _is_file(path):
            raise
        return None  # it vanished meanwhile
    except CkptctlError:
        return None


def _is_file(path: Path) -> bool:
    """Whether there is a file under a name: no directory, no pipe, no link that leads nowhere or in a circle."""
    try:
        return path.is_file() if is_remote(path) else stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise unreadable(path, error) from None


def needed_by(path: Path) -> str:
    """Return the name of a file beside one that is a delta on it as it is now; nothing if there is none.

    Raises
    ------
    UnreadableError
        One of those that may be cannot be read.
    """
    others = [path.with_name(name) for name in sorted(names_beside(path, ())) if name != path.name]
    bases = {other.name: base for other in others if other.suffix == SUFFIX and (base := _stated_base(other))}
    size = open_file(path, window=1).size if bases else 0
    return next((name for name, base in bases.items() if base.size == size and is_same_file(path, base.name)), "")


def is_same_file(path: Path, name: str) -> bool:
    """Whether a name beside a file is that file, or a link to it."""
    other = path.with_name(name)
    return path == other or (not is_remote(path) and _is_file(other) and _is_file(path) and path.samefile(other))


def text_of(base: Base) -> str:
    """Return what stands in the metadata of a file about its base."""
    return json.dumps(asdict(base), separators=(",", ":"))


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
    below = (replace(one, metadata={}, sha256=base.sha256) for one, base in zip(files[1:], bases, strict=True))
    return whole, (first, *below), tuple(bases)


def _read(path: Path, where: Path, base: Base) -> Contents:
    hint = f"it holds what {path.name} does not; bring {base.name} back beside it"
    try:
        if not has_file(where):
            raise MissingBaseError(f"{path}: its base {base.name} is missing", hint=hint)
        file = open_file(where)
        if file.size != base.size:
            message = f"its base {base.name} is another one by now ({file.size} bytes, {base.size} recorded)"
            raise CorruptError(f"{path}: {message}", hint=hint)
        contents = formats.read(file.range())
        file.release()
    except UnreadableError as error:
        raise MissingBaseError(f"{path}: its base {base.name} cannot be read: {error.message}", hint=hint) from None
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
