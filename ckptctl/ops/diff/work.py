"""Compare many tensors, some at a time, and let go of files that are done with."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ckptctl.ops.diff.values_of import compared
from ckptctl.storage import StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ckptctl.model import TensorInfo
    from ckptctl.ops.diff.options import Options
    from ckptctl.ops.diff.pairing import Pair
    from ckptctl.ops.diff.report import TensorDiff

_BATCH_BYTES, _BATCH = 8 << 20, 256
_WIDTH, _LARGE = 4, 1 << 16


def compare_all(
    pairs: Sequence[Pair], options: Options, progress: Callable[[int], None]
) -> Iterator[TensorDiff | None]:
    """Yield what becomes of each pair, in their order, None for equal ones.

    Files are closed as soon as no pair needs them any more.

    Raises
    ------
    ChangedError
        A file was changed meanwhile.
    """
    files = _Files(pairs)
    width = min(os.cpu_count() or 1, _WIDTH)
    stopping = threading.Event()

    def advance(count: int) -> None:
        if stopping.is_set():
            raise InterruptedError("nobody waits for it any more")
        progress(count)

    with ThreadPoolExecutor(width) as pool:
        waiting: deque[_Batch] = deque()
        try:
            for some in _batches(pairs):
                waiting.append(_Batch(some, options, advance, pool))
                if len(waiting) > width + 1:
                    yield from waiting.popleft().done(files)
            while waiting:
                yield from waiting.popleft().done(files)
        finally:
            stopping.set()
            for batch in waiting:
                batch.cancel()


class _Batch:
    """Some pairs: compared by a thread of their own if there is much to read, else when their turn comes.

    Of small tensors most of the work is Python's, of which threads do not get more done.
    """

    def __init__(
        self, pairs: list[Pair], options: Options, progress: Callable[[int], None], pool: ThreadPoolExecutor
    ) -> None:
        self._pairs, self._options, self._progress = pairs, options, progress
        large = sum(pair.a.nbytes for pair in pairs) >= _LARGE * len(pairs)
        self._future = pool.submit(self._compare) if large else None

    def _compare(self) -> list[TensorDiff | None]:
        found: list[TensorDiff | None] = []
        for pair in self._pairs:
            one = compared(pair, self._options, self._progress)
            found.append(one)
            if one and one.different and self._options.first:
                break
        return found

    def done(self, files: _Files) -> Iterator[TensorDiff | None]:
        """Yield what became of the pairs, and let go of their files."""
        yield from self._future.result() if self._future else self._compare()
        files.release(self._pairs)

    def cancel(self) -> None:
        """Do not begin with it."""
        if self._future:
            self._future.cancel()


def _batches(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Cut pairs into runs that are worth a thread's while."""
    batch: list[Pair] = []
    size = 0
    for pair in pairs:
        batch.append(pair)
        size += pair.a.nbytes
        if size >= _BATCH_BYTES or len(batch) >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Files:
    """How many pairs still need each file."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._needed: Counter[int] = Counter()
        for pair in pairs:
            self._needed.update(id(file) for file in _files_of(pair))

    def release(self, batch: Iterable[Pair]) -> None:
        """Close the files that the last of their pairs is done with."""
        for pair in batch:
            for file in _files_of(pair):
                self._needed[id(file)] -= 1
                if not self._needed[id(file)]:
                    file.release()


def _files_of(pair: Pair) -> Iterator[StoredFile]:
    return (file for tensor in (pair.a, pair.b) for file in _of(tensor))


def _of(tensor: TensorInfo) -> Iterator[StoredFile]:
    for piece in tensor.pieces:
        if isinstance(piece.range.file, StoredFile):
            yield piece.range.file
    for part in tensor.parts:
        yield from _of(part)
