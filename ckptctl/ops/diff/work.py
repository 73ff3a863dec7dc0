"""Compare many tensors, some at a time, and let go of files that are done with."""

from __future__ import annotations

import os
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from ckptctl.ops.diff.values_of import compared
from ckptctl.storage import LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ckptctl.model import TensorInfo
    from ckptctl.ops.diff.options import Options
    from ckptctl.ops.diff.pairing import Pair
    from ckptctl.ops.diff.report import TensorDiff

_BATCH_BYTES, _BATCH = 8 << 20, 256
_WIDTH = 4


def compare_all(pairs: Sequence[Pair], options: Options, progress: Callable[[int], None]) -> Iterator[TensorDiff]:
    """Yield what becomes of each pair, in their order. Files are closed as soon as no pair needs them any more.

    Raises
    ------
    ChangedError
        A file was changed meanwhile.
    """
    files = _Files(pairs)
    width = min(os.cpu_count() or 1, _WIDTH)
    with ThreadPoolExecutor(width) as pool:
        waiting: deque[tuple[list[Pair], Future[list[TensorDiff]]]] = deque()
        try:
            for batch in _batches(pairs):
                waiting.append((batch, pool.submit(_batch, batch, options, progress)))
                if len(waiting) > width + 1:
                    yield from _done(*waiting.popleft(), files)
            while waiting:
                yield from _done(*waiting.popleft(), files)
        finally:
            for _, future in waiting:
                future.cancel()


def _done(batch: list[Pair], future: Future[list[TensorDiff]], files: _Files) -> Iterator[TensorDiff]:
    yield from future.result()
    files.release(batch)


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


def _batch(batch: list[Pair], options: Options, progress: Callable[[int], None]) -> list[TensorDiff]:
    return [compared(pair, options, progress) for pair in batch]


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


def _files_of(pair: Pair) -> Iterator[LocalFile]:
    return (file for tensor in (pair.a, pair.b) for file in _of(tensor))


def _of(tensor: TensorInfo) -> Iterator[LocalFile]:
    for piece in tensor.pieces:
        if isinstance(piece.range.file, LocalFile):
            yield piece.range.file
    for part in tensor.parts:
        yield from _of(part)
