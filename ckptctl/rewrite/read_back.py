"""Read a new file's header back before it gets its name: by the reference library, or by our reader of torch files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.rewrite.outputs import SAFETENSORS, root_of
from ckptctl.rewrite.trees import references

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptctl.rewrite.outputs import OutputFile


def read_back(path: Path, file: OutputFile) -> None:
    """Compare names, dtypes and shapes of what lies at `path` with what was to be written.

    Raises
    ------
    CorruptError
        It is not what was to be written: a fault of the disk, or of ckptctl.
    """
    if file.path.suffix == SAFETENSORS:
        wanted = {name: (item.stored.dtype.name, item.stored.shape) for name, item in file.items.items()}
        matches = _safetensors(path) == wanted
    else:
        # Its names are the paths in its tree, which need not be those of the items.
        matches = _torch(path) == Counter(_referred(file))
    if not matches:
        raise CorruptError(f"{file.path}: read back, it does not hold what was written")


def _referred(file: OutputFile) -> Iterator[tuple[str, tuple[int, ...]]]:
    for ref in references(root_of(file)):
        stored = file.items[file.ties.get(ref.name, ref.name)].stored
        yield stored.dtype.name, stored.shape


def _safetensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as opened:
            return {
                name: (part.get_dtype(), tuple(part.get_shape()))
                for name in opened.keys()  # noqa: SIM118  # it is no mapping
                for part in (opened.get_slice(name),)
            }
    except (SafetensorError, OSError) as error:
        raise CorruptError(f"{path}: read back, the new file is refused: {error}") from None


def _torch(path: Path) -> Counter[tuple[str, tuple[int, ...]]]:
    from ckptctl import formats  # noqa: PLC0415
    from ckptctl.storage import LocalFile  # noqa: PLC0415

    file = LocalFile(path)
    try:
        contents = formats.read(file.range())
    except CkptctlError as error:
        raise CorruptError(f"{path}: read back, the new file is refused: {error.message}") from None
    file.release()
    return Counter((tensor.dtype.name, tensor.shape) for tensor in contents.tensors.values())
