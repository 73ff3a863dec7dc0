"""The queue of an uploader: one thread sends what is in it, one checkpoint after another, and tells whoever waits."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from ckptctl.errors import ChangedError, CkptctlError, LockedError, UnreadableError, counted
from ckptctl.layouts.deltas import stated_bases
from ckptctl.runs.pending import has_ticket
from ckptctl.storage import has_file
from ckptctl.training.snapshot import forget
from ckptctl.training.transfer import send
from ckptctl.training.upload_job import Job
from ckptctl.training.warned import warned_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ckptctl.runs.pending import Pending

_LONGEST_PAUSE = 300.0


class UploadQueue:
    """What is to be sent to one destination, and the thread that does it until it is closed.

    Parameters
    ----------
    to
        The destination.
    found
        What an earlier process left.
    at_once
        So many files of a checkpoint are sent at a time.
    pause
        Seconds before the second attempt; it doubles up to five minutes.
    at_end
        Called when the thread ends.
    """

    def __init__(
        self, to: Path, found: Iterable[Pending], *, at_once: int, pause: float, at_end: Callable[[], None]
    ) -> None:
        self.to, self._at_once, self._pause, self._at_end = to, at_once, pause, at_end
        self._changed = threading.Condition()
        self._jobs = [Job(one) for one in found]
        self._failed: list[Job] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ckptctl-uploader", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether nothing is sent any more."""
        return self._closed

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what is not confirmed, in order; what cannot succeed comes last."""
        with self._changed:
            return tuple(job.pending.name for job in (*self._jobs, *self._failed))

    def add(self, pending: Pending, *, urgent: bool) -> Job:
        """Have something sent."""
        job = Job(pending, urgent=urgent)
        with self._changed:
            closed = self._closed
            if not closed:
                self._jobs.append(job)
                self._changed.notify_all()
        if closed:
            job.tell(_stays(self.to))
        return job

    def wait(self, until: float) -> list[Job]:
        """Wait until all is confirmed, or for that moment of `time.monotonic`; return what is not."""
        with self._changed:
            while self._jobs and time.monotonic() < until:
                self._changed.wait(max(until - time.monotonic(), 0.0))
            return [*self._failed, *self._jobs]

    def close(self, seconds: float) -> None:
        """End, and tell all that still wait that it stays queued. A thread that hangs is not waited for longer."""
        with self._changed:
            ended, self._closed = self._closed, True
            self._changed.notify_all()
        if not ended:
            self._thread.join(seconds)
            self._let_go(_stays(self.to))

    def end_in_child(self) -> None:
        """End in the child of a fork, which does not have the thread."""
        self._changed, self._closed, self._jobs, self._failed = threading.Condition(), True, [], []

    def _let_go(self, error: CkptctlError) -> None:
        with self._changed:
            left, self._jobs = self._jobs, []
            self._failed += left
            self._changed.notify_all()
        for job in left:
            job.error = job.error or error
            job.tell(error)

    def _work(self) -> None:
        try:
            while job := self._next():
                self._try(job)
        except BaseException as error:  # noqa: BLE001  # nobody sends any more: whoever waits for it is told
            self._closed = True
            why = UnreadableError(f"{self.to}: {type(error).__name__}: {error}", hint="what is queued stays queued")
            warned_aside(f"the uploader ends: {why.message}")
            self._let_go(why)
        finally:
            self._at_end()

    def _try(self, job: Job) -> None:
        try:
            if not has_ticket(job.pending.entry):
                raise ChangedError(f"{job.pending.entry}: what was held of it is gone")  # noqa: TRY301  # as any other
            done = send(job.pending, self.to, at_once=self._at_once)
            self._look_for_bases(job.pending)
            forget(job.pending)
        except (UnreadableError, LockedError) as error:
            self._again(job, error)
        except CkptctlError as error:
            self._give_up(job, error)
        except BaseException as error:  # noqa: BLE001  # whoever waits for it is told
            self._give_up(job, UnreadableError(f"{self.to}: {type(error).__name__}: {error}"))
        else:
            with self._changed:
                self._drop(job)
            job.tell(done)

    def _look_for_bases(self, pending: Pending) -> None:
        """Warn of what a delta cannot be read without where it is now."""
        bases = () if pending.directory else stated_bases(pending.source(pending.files[0]))
        lost = [base for base in bases if not has_file(self.to / base)]
        if lost:
            warned_aside(f"{pending.name} cannot be read in {self.to} without {', '.join(lost)}: upload that as well")

    def _next(self) -> Job | None:
        """Return the next job that is due: anchors first, then in their order; None at the end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                ready = [job for job in self._jobs if job.due <= now]
                if ready:
                    return next((job for job in ready if job.urgent), ready[0])
                self._changed.wait(max(min((job.due for job in self._jobs), default=now + 60.0) - now, 0.01))
        return None

    def _again(self, job: Job, error: CkptctlError) -> None:
        doubled = self._pause * 2 ** min(job.tries, 30)
        pause = min(doubled, _LONGEST_PAUSE) * random.uniform(0.8, 1.2)  # noqa: S311  # not a secret
        with self._changed:
            job.error, job.tries, job.due = error, job.tries + 1, time.monotonic() + pause
            self._changed.notify_all()
        if job.tries & (job.tries - 1) == 0:  # the first time, the second, the fourth, …
            attempts = counted(job.tries, "attempt")
            warned_aside(
                f"{job.pending.name} is not uploaded after {attempts}: {error.message}; again in {pause:.0f} s"
            )

    def _give_up(self, job: Job, error: CkptctlError) -> None:
        with self._changed:
            job.error = error
            self._drop(job)
            self._failed.append(job)
        warned_aside(
            f"{job.pending.name} is not uploaded: {error.message}; it stays queued until {job.pending.entry} is removed"
        )
        job.tell(error)

    def _drop(self, job: Job) -> None:
        """Take a job out of the queue, or, if that was closed meanwhile, out of what is left of it."""
        self._jobs = [one for one in self._jobs if one is not job]
        self._failed = [one for one in self._failed if one is not job]
        self._changed.notify_all()


def _stays(to: Path) -> CkptctlError:
    return UnreadableError(f"{to}: the uploader was closed", hint="what is queued stays queued")
