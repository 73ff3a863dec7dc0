"""What is done after each save: digests, a look at what was written, upload, retention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.checks.digests import SUMS
from ckptctl.checks.stale import signature, stale_digests
from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.model import Severity
from ckptctl.ops.verify import Level, verify
from ckptctl.ops.verify.report import Judgement
from ckptctl.storage import unreadable
from ckptctl.training.ranks import all_ranks
from ckptctl.training.retain import prune
from ckptctl.training.uploader import Uploader
from ckptctl.training.warned import warned_aside

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from types import TracebackType

    from ckptctl.ops.verify import VerifyReport
    from ckptctl.retention import Policy


class AfterSave:
    """To be called after each save, on every process: rank 0 does the work when all have come, and all wait for it.

    What was saved lies where rank 0 sees all of it, on a file system that the nodes share.
    Writes digests beside what has none, verifies the checkpoint, has it uploaded, and prunes its run, in this order.
    Digests that are older than what was saved now, as where a framework saves to one name again, are made anew. A
    checkpoint that does not pass is warned of, is not uploaded, and nothing is deleted because of it. Training goes on
    whatever happens here.

    Parameters
    ----------
    policy
        What to keep of the run; by default nothing is deleted.
    upload_to
        A bucket or directory for `ckptctl.training.Uploader`; by default nothing is uploaded.
    anchor_every
        The first checkpoint at or after each multiple of so many steps is uploaded before training goes on.
    digests
        Whether to write SHA-256 where none is on record.
    allow
        Classes of one's own, as ``module.Name``, that may stand in pickles without a warning.
    strict
        Raise where it would warn.
    """

    def __init__(  # noqa: PLR0913  # what is done is chosen part by part
        self,
        *,
        policy: Policy | None = None,
        upload_to: str | os.PathLike[str] | None = None,
        anchor_every: int = 0,
        digests: bool = True,
        allow: Iterable[str] = (),
        strict: bool = False,
    ) -> None:
        self.policy, self.upload_to, self.anchor_every, self.strict = policy, upload_to, anchor_every, strict
        self._level = Level(write=digests, allowed=frozenset(allow))
        self._uploaders: dict[Path, Uploader] = {}
        self._wrote: dict[Path, tuple[object, ...]] = {}

    def __call__(self, path: str | os.PathLike[str]) -> None:
        """Do it for the checkpoint that was saved to a path.

        Raises
        ------
        CkptctlError
            It does not pass, or something could not be done; only if it is to be `strict`.
        """
        ranks = all_ranks(patient=True)
        ranks.gather(None)  # what every process writes is there
        ranks.first(lambda: self.alone(path))

    def alone(self, path: str | os.PathLike[str]) -> None:
        """Do it on this process, while others go on: all of the checkpoint is there, and no other does the same.

        Raises
        ------
        CkptctlError
            It does not pass, or something could not be done; only if it is to be `strict`.
        """
        try:
            self._done(Path(path))
        except Exception as error:  # training goes on
            if self.strict:
                raise
            hint = f" ({error.hint})" if isinstance(error, CkptctlError) and error.hint else ""
            said = error.message if isinstance(error, CkptctlError) else f"{type(error).__name__}: {error}"
            warned_aside(f"after the save of {path}: {said}{hint}")

    def close(self) -> None:
        """Wait for the uploads, on the process that has them.

        Raises
        ------
        CkptctlError
            Some could not be made; they stay queued, and the next run goes on with them.
        """
        uploaders, self._uploaders = self._uploaders, {}
        errors: list[CkptctlError] = []
        for uploader in uploaders.values():
            try:
                uploader.close()
            except CkptctlError as caught:  # noqa: PERF203  # the others are closed all the same
                errors.append(caught)
        if errors:
            raise errors[0]

    def ended(self) -> None:
        """Close at the end of a training, which goes on: what went wrong is a warning, unless it is to be `strict`."""
        try:
            self.close()
        except CkptctlError as error:
            if self.strict:
                raise
            warned_aside(error.message)

    def __enter__(self) -> AfterSave:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _done(self, path: Path) -> None:
        report = verify(path, level=self._level)
        if self._level.write and self._stale_gone(path, wrong=report.judgement is Judgement.WRONG):
            report = verify(path, level=self._level)
        self._wrote |= {digest: signature(path) for digest in report.wrote}
        _check(report)
        if self.upload_to is not None:
            self._uploader(path.absolute().parent).upload(path)
        if self.policy is not None:
            prune(path.absolute().parent, self.policy)

    def _stale_gone(self, path: Path, *, wrong: bool) -> bool:
        """Remove digests that were left behind: those whose file is gone, and if something is `wrong` the stale ones.

        Stale is what is older than its file, and what was written here when its file was another.
        """
        try:
            orphans = [one for one in self._wrote if one.name != SUMS and not one.with_suffix("").exists()]
            mine = [one for one in self._wrote if one.parent == path or one.with_suffix("") == path]
            changed = [one for one in mine if self._wrote[one] != signature(path)]
            stale = [one for one in (*stale_digests(path), *changed) if one.exists()] if wrong else []
            for one in (*orphans, *stale):
                one.unlink(missing_ok=True)
                self._wrote.pop(one, None)
        except OSError as error:
            raise unreadable(path, error) from None
        return bool(stale)

    def _uploader(self, run: Path) -> Uploader:
        if run not in self._uploaders:
            self._uploaders[run] = Uploader(run, self.upload_to or "", anchor_every=self.anchor_every)
        return self._uploaders[run]


def _check(report: VerifyReport) -> None:
    if report.judgement is Judgement.GOOD:
        return
    wrong = [one for one in report.findings if one.severity is Severity.ERROR]
    why = wrong[0].message if wrong else f"it is {report.judgement.value}"
    raise CorruptError(f"{report.path}: {why}", hint="ckptctl verify shows all of it; older checkpoints stay")
