"""When a result of several workers is there: its index says so, which the first of them writes last."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.rewrite.markers import Markers, directory_of, forget_failures, note_failure
from ckptctl.storage import has_file, is_remote, open_file
from ckptctl.storage.atomic import flush_directory, remove, write_small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptctl.rewrite.outputs import Outputs
    from ckptctl.storage.share import Share


def is_committed(outputs: Outputs) -> bool:
    """Whether the index is there and says just what was planned, and all its files are as long as planned."""
    index, text = outputs.index, outputs.index_text.encode()
    if not index or not has_file(index):
        return False
    file = open_file(index)
    if file.size != len(text) or file.range().read() != text:
        return False
    return all(has_file(one.path) and open_file(one.path).size == one.writer.nbytes for one in outputs.files)


@contextlib.contextmanager
def telling(target: Path, share: Share | None) -> Iterator[None]:
    """Tell the first worker of several if this one cannot even plan its part of what is written to a target."""
    try:
        yield
    except CkptctlError as error:
        tell(target, share, error)
        raise


def tell(target: Path, share: Share | None, error: CkptctlError) -> None:
    """Tell the first worker that this one cannot begin; beside a result that is there nothing is left.

    The first worker, where it cannot begin either, takes away what the others have told it.
    """
    directory, index = directory_of(target), target.with_name(f"{target.name}.index.json")
    if share is None or share.count == 1 or has_file(target) or has_file(index):
        return
    if share.index == 0:
        forget_failures(directory)
        return
    with contextlib.suppress(OSError):
        if not is_remote(directory):
            directory.mkdir(parents=True, exist_ok=True)
    note_failure(directory, share, error)


def commit(outputs: Outputs, markers: Markers) -> None:
    """Write the index, from which on the result is there; and clear the markers away."""
    if outputs.index and not is_committed(outputs):
        remove(outputs.index)
        write_small(outputs.index, outputs.index_text.encode(), create=True)
        flush_directory(outputs.index.parent)
    markers.clear()
