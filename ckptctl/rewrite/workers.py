"""Write one safetensors file with several threads: each fills a range of its own."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ckptctl.storage.copy import Pump

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptctl.formats.write_safetensors import SafetensorsWriter
    from ckptctl.rewrite.options import Options
    from ckptctl.rewrite.pour import Pouring

_BLOCK = 1 << 20


def write_shared(
    path: Path, writer: SafetensorsWriter, pouring: Pouring, options: Options, progress: Callable[[int], None]
) -> str:
    """Write a file that exists and is empty; return its SHA-256, read back, or nothing if none is wanted.

    The first error of any thread is raised once all have stopped.
    """
    lock = threading.Lock()
    stopping = threading.Event()

    def advance(count: int) -> None:
        if stopping.is_set():
            raise InterruptedError("another thread has failed")
        with lock:
            progress(count)

    def one(share: tuple[int, list[str]]) -> None:
        offset, names = share
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(fd, offset, os.SEEK_SET)
        pump = Pump(fd, digest=False, direct=not options.check, progress=advance)
        try:
            for name in names:
                pouring.pour(name, pump, None)
            pump.finish()
        except BaseException:
            stopping.set()
            raise
        finally:
            pump.close()
            os.close(fd)

    with path.open("r+b", buffering=0) as file:
        file.write(writer.head)
        progress(len(writer.head))
        with ThreadPoolExecutor(options.workers) as pool:
            tasks = [pool.submit(one, share) for share in writer.shares(options.workers)]
            try:
                _raise_first([task.exception() for task in tasks])
            except BaseException:
                stopping.set()
                raise
        os.fsync(file.fileno())
        return _digest(file.fileno()) if options.digest else ""


def _raise_first(errors: list[BaseException | None]) -> None:
    """Raise what stopped the first thread, not what the others were told then."""
    found = sorted((error for error in errors if error), key=lambda error: isinstance(error, InterruptedError))
    if found:
        raise found[0]


def _digest(fd: int) -> str:
    digest, at, buffer = hashlib.sha256(), 0, bytearray(_BLOCK)
    while count := os.preadv(fd, [buffer], at):
        digest.update(memoryview(buffer)[:count])
        at += count
    return digest.hexdigest()
