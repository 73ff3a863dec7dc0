"""One checkpoint in the queue of an uploader, and whoever waits for it."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.training.transfer import Uploaded

if TYPE_CHECKING:
    from ckptctl.errors import CkptctlError
    from ckptctl.runs.pending import Pending


def _running() -> Future[Uploaded]:
    """Return a future that nobody can cancel: what is queued on disk is sent sooner or later."""
    future: Future[Uploaded] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True, eq=False)
class Job:
    """One checkpoint in the queue: `due` is when it is tried, `error` why it was not sent so far."""

    pending: Pending
    future: Future[Uploaded] = field(default_factory=_running)
    due: float = 0.0
    tries: int = 0
    error: CkptctlError | None = None
    urgent: bool = False

    def tell(self, came: Uploaded | CkptctlError) -> None:
        """Say what came of it, unless that was said before."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(came, Uploaded):
                self.future.set_result(came)
            else:
                self.future.set_exception(came)
