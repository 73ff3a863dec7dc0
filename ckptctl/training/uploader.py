"""Upload checkpoints while training goes on: what is asked for is held, queued on disk, sent, and confirmed."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, UnreadableError, UsageError, counted
from ckptctl.runs import step_in_name
from ckptctl.runs.pending import STAGING, entries_in, has_ticket, number_of, ticket_of
from ckptctl.storage import address, is_remote, is_writable, unreadable
from ckptctl.storage.directory import Directory
from ckptctl.training.at_exit import closed_at_exit
from ckptctl.training.snapshot import sweep, taken
from ckptctl.training.upload_queue import UploadQueue
from ckptctl.training.warned import warned_aside

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

    from ckptctl.runs.pending import Pending
    from ckptctl.training.transfer import Uploaded
    from ckptctl.training.upload_job import Job

_open: weakref.WeakSet[Uploader] = weakref.WeakSet()


class Uploader:
    """Sends the checkpoints of a run to a bucket or a directory, one after another, and never holds up the loop.

    What is to be sent is held first: a reflink or a hard link of each file, in ``RUN/.ckptctl-upload``. A later save
    or prune changes nothing of it, and no prune deletes the checkpoint before it is confirmed. The queue is on disk:
    the next uploader of the run goes on with what a killed one left. Data go first, what makes them a checkpoint last;
    size and checksum of each object are compared with what was read; ``SHA256SUMS``, or the file's ``.sha256``, is
    created at the very end, and only where there is none. Nothing is ever replaced. Of several processes, one has it.

    An upload that fails is warned of and tried again, after longer and longer pauses; one that cannot succeed, as
    where something else has its name, is warned of, stays queued on disk, and is raised by `drain` and `close`.

    Parameters
    ----------
    run
        The directory of the checkpoints.
    to
        Where they go: an address such as ``s3://bucket/run``, or a directory. Each keeps its name.
    anchor_every
        The first checkpoint at or after each multiple of so many steps is waited for by `upload` itself; 0 for none.
    drain_seconds
        How long the end of the program, and the upload of an anchor, wait for what is not confirmed yet.
    at_once
        So many files of a checkpoint are sent at a time.
    pause
        Seconds before the second attempt; it doubles up to five minutes.

    Raises
    ------
    LockedError
        Another uploader of the run is at work.
    UnsupportedError
        Nothing can be written there.
    """

    def __init__(  # noqa: PLR0913  # what is set once
        self,
        run: str | os.PathLike[str],
        to: str | os.PathLike[str],
        *,
        anchor_every: int = 0,
        drain_seconds: float = 600.0,
        at_once: int = 2,
        pause: float = 1.0,
    ) -> None:
        self.run, where = Path(os.path.abspath(run)), address(to)  # noqa: PTH100  # links stay
        self.to = where if is_remote(where) else Path(os.path.abspath(where))  # noqa: PTH100
        if is_remote(address(run)):
            raise UsageError(f"{run}: a run lies on a disk, and is uploaded from there")
        if not is_writable(self.to):
            raise UsageError(f"{self.to}: nothing is written there, only to buckets and directories")
        if not is_remote(self.to) and self.to.resolve() == self.run.resolve():
            raise UsageError(f"{self.to}: this is the run itself", hint="name a bucket or another directory")
        self.anchor_every, self.drain_seconds = anchor_every, drain_seconds
        staging = self.run / STAGING
        try:
            self.run.parent.stat()  # a run may begin with this, but not the directory of all runs
            self.run.mkdir(exist_ok=True)
            staging.mkdir(exist_ok=True)
        except OSError as error:
            raise unreadable(staging, error) from None
        self._last_step = -1
        self._held = ExitStack()
        directory = self._held.enter_context(Directory(staging))
        try:
            directory.lock(needed=False, other="another uploader is at work here")
            sweep(self.run)
            entries = entries_in(self.run)
            found = [one for entry in entries if (one := self._found_again(entry))]
        except BaseException:
            self._end()
            raise
        self._numbers = itertools.count(max(map(number_of, entries), default=0) + 1)
        self._queue = UploadQueue(self.to, found, at_once=max(at_once, 1), pause=pause, at_end=self._end)
        _open.add(self)
        closed_at_exit(self, "")

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of what is not confirmed, in the order of the queue; what cannot succeed is among them."""
        return self._queue.names

    def upload(
        self, path: str | os.PathLike[str], *, step: int | None = None, wait: bool | None = None
    ) -> Future[Uploaded]:
        """Hold a checkpoint and have it sent; return what will be known of it then.

        Parameters
        ----------
        path
            A file or directory in the run's directory, whole: its save has returned.
        step
            Its step, if its name does not tell.
        wait
            Whether to wait until it is confirmed; by default, if it is an anchor.

        Raises
        ------
        UnreadableError, ChangedError, UnsupportedError
            It cannot be held. Or, if it is waited for, it could not be sent in time: it stays queued.
        CkptctlError
            It is waited for, and cannot be sent; the class says why.
        """
        target = Path(os.path.abspath(path))  # noqa: PTH100  # links stay
        if target.parent != self.run or target.name.startswith(".ckptctl-"):
            raise UsageError(f"{target}: no checkpoint in {self.run}")
        step = step_in_name(target.name) if step is None else step
        urgent = self._is_anchor(step) if wait is None else wait
        self._check_open()
        pending = taken(self.run, target.name, next(self._numbers), step, str(self.to))
        self._last_step = max(step if step is not None else -1, self._last_step)
        job = self._queue.add(pending, urgent=urgent)
        if urgent:
            self._wait_for(job)
        return job.future

    def drain(self, seconds: float | None = None) -> None:
        """Wait until all is confirmed, `drain_seconds` at most if nothing else is said.

        Raises
        ------
        CkptctlError
            Something is not: the message says how much, and why. It stays queued on disk.
        """
        left = self._queue.wait(time.monotonic() + (self.drain_seconds if seconds is None else seconds))
        if not left:
            return
        why = next((job.error for job in left if job.error), None)
        names = ", ".join(job.pending.name for job in left[:3])
        message = f"{self.to}: {counted(len(left), 'checkpoint')} not uploaded ({names})"
        hint = f"they are kept in {self.run / STAGING}: the next uploader goes on with them"
        raise (type(why) if why else UnreadableError)(f"{message}: {why.message if why else 'time is up'}", hint=hint)

    def close(self) -> None:
        """Wait for what is queued, as `drain` does, and end."""
        try:
            if not self._queue.closed:
                self.drain()
        finally:
            self._queue.close(0.5)  # an upload that hangs holds the lock until it ends

    def __enter__(self) -> Uploader:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _found_again(self, entry: Path) -> Pending | None:
        """Return what is held there, if it is to be sent by this uploader."""
        if not has_ticket(entry):
            return None  # what could not be removed
        try:
            found = ticket_of(entry)
        except CkptctlError as error:
            warned_aside(f"{error.message}; what is held there is kept, and not uploaded")
            return None
        if found.to != str(self.to):
            warned_aside(f"{found.name} waits to be uploaded to {found.to}; an uploader to there goes on with it")
            return None
        return found

    def _check_open(self) -> None:
        if self._queue.closed:
            raise UsageError("this uploader was closed", hint="a forked process has none of its own")

    def _end(self) -> None:
        """Let go of the run."""
        _open.discard(self)
        self._held.close()

    def end_in_child(self) -> None:
        """End it in the child of a fork, which does not have its thread, and must not keep its lock."""
        self._queue.end_in_child()
        self._held.close()

    def _is_anchor(self, step: int | None) -> bool:
        if not self.anchor_every or step is None:
            return False
        before = self._last_step
        if before < 0:
            try:
                steps = [step_in_name(one.name) for one in self.run.iterdir()]
            except OSError as error:
                raise unreadable(self.run, error) from None
            before = max((found for found in steps if found is not None and found < step), default=0)
        return step // self.anchor_every > before // self.anchor_every

    def _wait_for(self, job: Job) -> None:
        try:
            job.future.result(timeout=self.drain_seconds)
        except (TimeoutError, FutureTimeout):
            why = job.error.message if job.error else "time is up"
            raise UnreadableError(
                f"{self.to / job.pending.name}: not uploaded yet: {why}", hint="it stays queued"
            ) from None


def _end_in_child() -> None:
    for one in list(_open):
        one.end_in_child()


os.register_at_fork(after_in_child=_end_in_child)
