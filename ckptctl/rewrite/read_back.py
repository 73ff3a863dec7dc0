"""Read a new file's header back before it gets its name: by the reference library, or by our reader of torch files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.rewrite.outputs import SAFETENSORS, root_of
from ckptctl.rewrite.trees import references

_MANY = 20_000
"""So many tensors are listed by a process of its own: the library's list takes as much memory as ours."""
# Isolated, with exactly the path of this process: nothing that lies about in a directory is imported.
_LIST = (
    "import sys; sys.path[:] = sys.argv[2:]; from ckptctl.rewrite.read_back import listed; print(listed(sys.argv[1]))"
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ckptctl.rewrite.outputs import OutputFile


def read_back(path: Path, file: OutputFile) -> None:
    """Compare names, dtypes and shapes of what lies at `path` with what was to be written.

    Raises
    ------
    CorruptError
        It is not what was to be written: a fault of the disk, or of ckptctl.
    """
    if not (_safetensors if file.path.suffix == SAFETENSORS else _torch)(path, file):
        raise CorruptError(f"{file.path}: read back, it does not hold what was written")


def _referred(file: OutputFile) -> Iterator[tuple[str, tuple[int, ...]]]:
    for ref in references(root_of(file)):
        stored = file.items[file.ties.get(ref.name, ref.name)].stored
        yield stored.dtype.name, stored.shape


def _safetensors(path: Path, file: OutputFile) -> bool:
    """Compare what the reference library lists with what was to be written."""
    from safetensors import SafetensorError

    try:
        found = _listed_apart(path) if len(file.items) > _MANY and sys.executable else listed(path)
    except MemoryError:  # the library maps the whole file, for which a limit of addresses may leave no room
        found = _listed_by_hand(path)
    except (SafetensorError, OSError) as error:
        raise CorruptError(f"{path}: read back, the new file is refused: {error}") from None
    entries = sorted(file.items.items())
    return found == _digest((name, item.stored.dtype.name, item.stored.shape) for name, item in entries)


def _listed_apart(path: Path) -> str:
    command = [sys.executable, "-I", "-c", _LIST, str(path), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own interpreter
    if done.returncode and "MemoryError" in done.stderr:
        raise MemoryError
    if done.returncode:
        raise CorruptError(f"{path}: read back, the new file is refused: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


def listed(path: str | os.PathLike[str]) -> str:
    """Return a digest of the names, dtypes and shapes that the reference library finds in a file."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as opened:
        parts = ((name, opened.get_slice(name)) for name in sorted(opened.keys()))
        return _digest((name, part.get_dtype(), tuple(part.get_shape())) for name, part in parts)


def _listed_by_hand(path: Path) -> str:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return _digest((name, entry["dtype"], tuple(entry["shape"])) for name, entry in sorted(header.items()))


def _digest(entries: Iterable[tuple[str, str, tuple[int, ...]]]) -> str:
    digest, count = hashlib.sha256(), 0
    for entry in entries:
        digest.update(repr(entry).encode())
        count += 1
    return f"{count} {digest.hexdigest()}"


def _torch(path: Path, file: OutputFile) -> bool:
    """Compare what is there in all: its names are the paths in its tree, which need not be those of the items."""
    from ckptctl import formats  # noqa: PLC0415
    from ckptctl.storage import LocalFile  # noqa: PLC0415

    written = LocalFile(path)
    try:
        contents = formats.read(written.range())
    except CkptctlError as error:
        raise CorruptError(f"{path}: read back, the new file is refused: {error.message}") from None
    written.release()
    found = Counter((tensor.dtype.name, tensor.shape) for tensor in contents.tensors.values())
    return found == Counter(_referred(file))
