"""Upload checkpoints while training goes on: what is asked for is held, queued on disk, sent, and confirmed."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
import warnings
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import ChangedError, CkptctlError, UnreadableError, UsageError, counted
from ckptctl.runs import step_in_name
from ckptctl.runs.pending import STAGING, TICKET, Pending, pending_in
from ckptctl.storage import address, is_remote, is_writable
from ckptctl.storage.directory import Directory
from ckptctl.training.at_exit import closed_at_exit
from ckptctl.training.snapshot import forget, sweep, taken
from ckptctl.training.transfer import Uploaded, send

if TYPE_CHECKING:
    from types import TracebackType

_LONGEST_PAUSE = 300.0


@dataclass(slots=True, eq=False)
class _Job:
    """One checkpoint in the queue: `due` is when it is tried, `error` why it was not sent so far."""

    pending: Pending
    future: Future[Uploaded] = field(default_factory=Future)
    due: float = 0.0
    tries: int = 0
    error: CkptctlError | None = None
    urgent: bool = False


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
        self.run, self.to = Path(os.path.abspath(run)), address(to)  # noqa: PTH100  # links stay
        if not is_writable(self.to):
            raise UsageError(f"{self.to}: nothing is written there, only to buckets and directories")
        if not is_remote(self.to) and self.to.resolve() == self.run.resolve():
            raise UsageError(f"{self.to}: this is the run itself", hint="name a bucket or another directory")
        self.anchor_every, self.drain_seconds, self.pause = anchor_every, drain_seconds, pause
        self.at_once = max(at_once, 1)
        staging = self.run / STAGING
        staging.mkdir(parents=True, exist_ok=True)
        self._held = Directory(staging)
        try:
            self._held.lock(needed=False, other="another uploader is at work here")
        except BaseException:
            self._held.__exit__(None, None, None)
            raise
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._failed: list[_Job] = []
        self._closed = False
        self._last_step = -1
        sweep(staging)
        found = pending_in(self.run)
        self._numbers = itertools.count(max((one.number for one in found), default=0) + 1)
        self._jobs += [_Job(one) for one in found]
        self._thread = threading.Thread(target=self._work, name="ckptctl-uploader", daemon=True)
        self._thread.start()
        closed_at_exit(self, "")

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of what is not confirmed, in the order of the queue; what cannot succeed is among them."""
        with self._changed:
            return tuple(job.pending.name for job in (*self._jobs, *self._failed))

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
        if self._closed:
            raise UsageError("this uploader was closed")
        target = Path(os.path.abspath(path))  # noqa: PTH100  # links stay
        if target.parent != self.run or target.name.startswith(".ckptctl-"):
            raise UsageError(f"{target}: no checkpoint in {self.run}")
        step = step_in_name(target.name) if step is None else step
        urgent = self._is_anchor(step) if wait is None else wait
        job = _Job(taken(self.run, target.name, next(self._numbers), step), urgent=urgent)
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
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
        until = time.monotonic() + (self.drain_seconds if seconds is None else seconds)
        with self._changed:
            while self._jobs and time.monotonic() < until:
                self._changed.wait(max(until - time.monotonic(), 0.0))
            left = [*self._failed, *self._jobs]
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
            if not self._closed:
                self.drain()
        finally:
            with self._changed:
                ended, self._closed = self._closed, True
                self._changed.notify_all()
            if not ended:
                self._thread.join(0.5)  # an upload that hangs is not waited for; it holds the lock until it ends

    def __enter__(self) -> Uploader:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_anchor(self, step: int | None) -> bool:
        if not self.anchor_every or step is None:
            return False
        before, self._last_step = self._last_step, max(step, self._last_step)
        if before < 0:
            known = [
                found for one in self.run.iterdir() if (found := step_in_name(one.name)) is not None and found < step
            ]
            before = max(known, default=0)
        return step // self.anchor_every > before // self.anchor_every

    def _wait_for(self, job: _Job) -> None:
        try:
            job.future.result(timeout=self.drain_seconds)
        except (TimeoutError, FutureTimeout):
            why = job.error.message if job.error else "time is up"
            raise UnreadableError(
                f"{self.to / job.pending.name}: not uploaded yet: {why}", hint="it stays queued"
            ) from None

    def _work(self) -> None:
        try:
            while job := self._next():
                self._try(job)
        finally:
            self._held.__exit__(None, None, None)

    def _try(self, job: _Job) -> None:
        if not (job.pending.entry / TICKET).exists():
            self._give_up(job, ChangedError(f"{job.pending.entry}: what was held of it is gone"))
            return
        try:
            done = send(job.pending, self.to, at_once=self.at_once)
            forget(job.pending)
        except UnreadableError as error:
            self._again(job, error)
        except CkptctlError as error:
            self._give_up(job, error)
        except BaseException as error:  # noqa: BLE001  # whoever waits for it is told
            self._give_up(job, UnreadableError(f"{self.to}: {type(error).__name__}: {error}"))
        else:
            with self._changed:
                self._jobs.remove(job)
                self._changed.notify_all()
            job.future.set_result(done)

    def _next(self) -> _Job | None:
        """Return the next job that is due: anchors first, then in their order; None at the end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                ready = [job for job in self._jobs if job.due <= now]
                if ready:
                    return next((job for job in ready if job.urgent), ready[0])
                self._changed.wait(max(min((job.due for job in self._jobs), default=now + 60.0) - now, 0.01))
        return None

    def _again(self, job: _Job, error: CkptctlError) -> None:
        pause = min(self.pause * 2**job.tries, _LONGEST_PAUSE) * random.uniform(0.8, 1.2)  # noqa: S311  # not a secret
        with self._changed:
            job.error, job.tries, job.due = error, job.tries + 1, time.monotonic() + pause
            self._changed.notify_all()
        if job.tries & (job.tries - 1) == 0:  # the first time, the second, the fourth, …
            attempts = counted(job.tries, "attempt")
            _warn(f"{job.pending.name} is not uploaded after {attempts}: {error.message}; again in {pause:.0f} s")

    def _give_up(self, job: _Job, error: CkptctlError) -> None:
        with self._changed:
            job.error = error
            self._jobs.remove(job)
            self._failed.append(job)
            self._changed.notify_all()
        _warn(f"{job.pending.name} is not uploaded: {error.message}; it stays queued")
        job.future.set_exception(error)


def _warn(text: str) -> None:
    """Warn from the thread that sends, which is to live on even where warnings are errors."""
    try:
        warnings.warn(text, UserWarning, stacklevel=2)
    except UserWarning:
        sys.stderr.write(f"ckptctl: {text}\n")
