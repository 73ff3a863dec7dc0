"""What `verify` prints: a verdict for each checkpoint, or one document; or only the path of the newest good one."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.cli._errors import NO, OK, TROUBLE, guarded_each, mute
from ckptctl.cli._output import Printer, joined, print_json, to_json
from ckptctl.cli._progress import Bar
from ckptctl.cli._text import escape, size
from ckptctl.cli._verify_text import show
from ckptctl.errors import CkptctlError, UsageError
from ckptctl.ops.verify import Judgement, Level, Outcome, VerifyReport
from ckptctl.ops.verify.run import latest_good, verify_path
from ckptctl.runs import files_of_ranks

if TYPE_CHECKING:
    from ckptctl.ops.verify.run import Skipped

_BESIDE = (".sha256", ".keep", "SHA256SUMS")
_STATUS = {Judgement.GOOD: OK, Judgement.WRONG: NO, Judgement.UNSEEN: TROUBLE}


class Answer:
    """Reports shown one by one, or gathered for one document."""

    def __init__(self, level: Level, *, json: bool, quiet: bool, brief: bool) -> None:
        self.level, self.json, self.quiet, self.brief = level, json and not quiet, quiet, brief
        self.printer = None if json or quiet else Printer()
        self.documents: list[object] = []
        self.counts: Counter[str] = Counter()
        self.read = self.asked = 0
        self.start = time.monotonic()
        self.stopping = threading.Event()

    def of(self, paths: Iterable[Path]) -> int:
        """Verify all paths and return the exit status."""
        with Bar(_bytes_of(paths), shown=not (self.quiet or self.level.quick)) as bar:
            running = _in_parallel(self._calls(paths, bar))
            each: Iterable[Callable[[], int | None]] = (partial(self._take, future) for future in running)
            try:
                return guarded_each(chain(each, [self._finish]), as_json=self.json)
            finally:
                self.stopping.set()  # after an interruption nobody waits for files to be read to their end

    def _advance(self, bar: Bar, count: int) -> None:
        if self.stopping.is_set():
            raise KeyboardInterrupt
        bar.advance(count)

    def _calls(self, paths: Iterable[Path], bar: Bar) -> Iterator[Callable[[], VerifyReport]]:
        every = list(paths)
        checkpoints = [path for path in every if not path.name.endswith(_BESIDE)]
        for path in checkpoints or every:  # a pattern of the shell takes digests along
            try:
                for call in verify_path(path, self.level, partial(self._advance, bar)):
                    self.asked += 1
                    yield call
            except CkptctlError as error:  # noqa: PERF203  # one that cannot be listed does not stop the rest
                yield partial(_raise, error)

    def _take(self, future: Future[VerifyReport]) -> int:
        return self._add(future.result())

    def _add(self, report: VerifyReport) -> int:
        self.asked -= report.judgement is not Judgement.UNSEEN
        if self.level.share and self.level.share.index:
            return TROUBLE if report.judgement is Judgement.UNSEEN else OK  # the first one judges
        self.counts[_kind(report)] += 1
        self.read += report.read
        if self.json:
            self.documents.append(to_json(report))
        if self.printer:
            try:
                show(self.printer, report, brief=self.brief)
            except BrokenPipeError:  # nobody reads on; the exit status still counts
                mute()
                self.printer = None
        elif self.quiet and not report.good:
            show(Printer(error=True), report, brief=False)
        return _STATUS[report.judgement]

    def _finish(self) -> None:
        share = self.level.share
        if share and share.index:
            if not self.asked:
                sys.stderr.write(f"ckptctl: part {share.index} of {share.count} is done\n")
            return
        if self.json:
            print_json({"schema": "ckptctl.verify/1", "checkpoints": self.documents})
        if self.printer and sum(self.counts.values()) > 1:
            self.printer.line()
            seconds = time.monotonic() - self.start
            read = f"{size(self.read)} read in {seconds:.1f} s" if self.read else ""
            found = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()))
            self.printer.line(joined([found, read]))


def _in_parallel(calls: Iterable[Callable[[], VerifyReport]]) -> Iterator[Future[VerifyReport]]:
    """Carry out some calls at a time, as many as there are cores, and yield them in their order."""
    width = os.cpu_count() or 1
    with ThreadPoolExecutor(width) as pool:
        running: deque[Future[VerifyReport]] = deque()
        try:
            for call in calls:
                running.append(pool.submit(call))
                if len(running) > width:
                    yield running.popleft()
            while running:
                yield running.popleft()
        finally:
            for future in running:
                future.cancel()


def _raise(error: CkptctlError) -> VerifyReport:
    raise error


def newest(paths: list[Path], level: Level, *, as_json: bool) -> int:
    """Print the path of the newest good checkpoint, and why newer ones were passed over."""

    def one() -> int:
        if len(paths) != 1:
            raise UsageError("--latest-good takes one run")
        found, skipped = latest_good(paths[0], level)
        unseen = next((passed for passed in skipped if passed.unseen), None)
        if as_json:
            print_json({"schema": "ckptctl.verify/1", "latest_good": to_json(found), "skipped": to_json(skipped)})
            return OK if found else TROUBLE if unseen else NO
        for passed in skipped:
            print(f"ckptctl: skipped {_said(passed)}", file=sys.stderr)
        if found is None:
            maybe = "; some could not be looked at, and may be good" if unseen else ""
            print(f"ckptctl: {escape(str(paths[0]))}: no good checkpoint{maybe}", file=sys.stderr)
            return TROUBLE if unseen else NO
        ranks = files_of_ranks(found)
        if len(ranks) > 1:
            said = f"it is {len(ranks)} files, one for each rank, of which this is the first ({ranks[-1]} the last)"
            print(f"ckptctl: {escape(str(found))}: {escape(said, limit=300)}", file=sys.stderr)
        if isinstance(sys.stdout, io.TextIOWrapper):  # the very bytes of the name: a script opens it
            sys.stdout.reconfigure(encoding=sys.getfilesystemencoding(), errors="surrogateescape")
        print(found)
        return OK

    return guarded_each([one], as_json=as_json)


def _said(passed: Skipped) -> str:
    return f"{escape(str(passed.path))}: {escape(passed.why, limit=300)}"


def _kind(report: VerifyReport) -> str:
    if report.judgement is not Judgement.GOOD:
        return "not looked at" if report.judgement is Judgement.UNSEEN else "with findings"
    return "whole" if report.bytes is None else report.bytes.value if report.bytes is not Outcome.FAILED else ""


def _bytes_of(paths: Iterable[Path]) -> int:
    """Return how much there is to read at most, for the bar."""
    total = 0
    with contextlib.suppress(OSError):  # it is a guess: what cannot be read is said elsewhere
        for path in paths:
            files = [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]
            total += sum(found.stat().st_size for found in files)
    return total
