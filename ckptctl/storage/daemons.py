"""Threads that nobody waits for at the end of the program: they may hang in a request that no store answers."""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def in_daemon(call: Callable[[], T], name: str) -> Future[T]:
    """Have one thing done by a thread of its own, which ends with it; return what will come of it."""
    future: Future[T] = Future()
    threading.Thread(target=_carried_out, args=(future, call), name=name, daemon=True).start()
    return future


def _carried_out(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        made = call()
    except BaseException as error:  # noqa: BLE001  # whoever waits for it is told
        future.set_exception(error)
    else:
        future.set_result(made)


class Daemons:
    """So many threads that carry out calls in their order; they start when they are needed."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # the child of a fork has none of the threads

    def _begin(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = self._calls_left = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have something done, and return what will come of it."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        with self._lock:
            self._calls_left += 1
            if self._calls_left > self._idle and len(self._threads) < self._count:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            future, call = self._calls.get()
            with self._lock:
                self._idle -= 1
                self._calls_left -= 1
            _carried_out(future, call)
            del future, call  # what came of it may be large
