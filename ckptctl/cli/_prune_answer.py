"""What `prune` prints and asks: the plan, a question if there is somebody to ask, and what was done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.cli._errors import NO, OK, guarded_each, mute
from ckptctl.cli._output import Printer, joined, print_json, to_json
from ckptctl.cli._progress import stopped_by_sigterm
from ckptctl.cli._prune_text import done, planned, show_plan
from ckptctl.cli._text import escape, plural, size
from ckptctl.errors import CkptctlError, PolicyError
from ckptctl.ops.prune import Pruning, missing_bases, restore_from_trash

if TYPE_CHECKING:
    from ckptctl.ops.prune import Group, PrunePlan, PruneReport, Settings
    from ckptctl.retention import Decision

_SCHEMA = "ckptctl.prune/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How to go about it: whether anything is done, and whether without a question."""

    dry_run: bool
    sure: bool
    explicit: bool
    most: int | None


class Answer:
    """One call of `prune`, over all runs that it was given."""

    def __init__(self, settings: Settings, how: How, *, json: bool, brief: bool, quiet: bool) -> None:
        self.settings, self.how, self.json, self.brief = settings, how, json, brief
        self.printer = None if json or quiet else Printer()
        self.now = datetime.now(tz=timezone.utc)
        self.reports: list[PruneReport] = []
        self.told = 0

    def of(self, paths: list[Path]) -> int:
        """Plan, show, ask and carry out; return the exit status."""
        return guarded_each([partial(self._all, paths)], as_json=self.json)

    def _all(self, paths: list[Path]) -> int:
        how = self.how
        asks = not how.sure and not how.dry_run and self.printer is not None and sys.stdin.isatty()
        if not (how.dry_run or how.sure or asks or how.explicit):
            raise PolicyError(
                "no rule was given, and nobody can be asked; nothing was deleted",
                hint="give a rule, such as --keep-last 3, or --yes for the defaults; --dry-run shows what would go",
            )
        with stopped_by_sigterm(), Pruning(paths, self.settings, self.now, lock=not how.dry_run) as pruning:
            status = self._tell(pruning)
            self._show(pruning, must=asks)
            if how.most is not None:
                pruning.refuse_more_than(how.most)
            if how.dry_run:
                return max(status, guarded_each([partial(self._finish, pruning)], as_json=self.json))
            if asks and pruning.count:
                if not self._asked(pruning):
                    return max(status, NO)
                pruning.plan_again()
                status = max(status, self._tell(pruning))
            calls = [partial(self._apply, pruning, plan) for plan in pruning.plans]
            return max(status, guarded_each([*calls, partial(self._finish, pruning)], as_json=self.json))

    def _tell(self, pruning: Pruning) -> int:
        """Say which runs were refused, and why."""
        fresh, self.told = pruning.errors[self.told :], len(pruning.errors)
        return guarded_each(map(_raising, fresh), as_json=self.json)

    def _show(self, pruning: Pruning, *, must: bool) -> None:
        """Print the plan. Where nobody is asked, an output that takes no more stops no prune: its disk may be full."""
        if not self.printer:
            return
        try:
            for plan in pruning.plans:
                show_plan(self.printer, plan, self.now, brief=self.brief)
            if pruning.plans:
                runs = f"{len(pruning.plans):,} runs: " if len(pruning.plans) > 1 else ""
                dry = "nothing was changed (--dry-run)" if self.how.dry_run else ""
                sums = planned(pruning.plans, in_trash=bool(self.settings.trash_for))
                self.printer.line(joined([f"{runs}{sums}", dry]))
            sys.stdout.flush()
        except OSError as error:
            mute()
            self.printer = None
            if must or self.how.dry_run:
                raise
            if not isinstance(error, BrokenPipeError):
                print(f"ckptctl: the plan could not be printed: {error.strerror}", file=sys.stderr)

    def _asked(self, pruning: Pruning) -> bool:
        """Ask on stderr: stdout is for the answer."""
        what = f"{plural(pruning.count, 'checkpoint')}, {size(sum(plan.frees for plan in pruning.plans))}"
        verb = "Put into the trash" if self.settings.trash_for else "Delete"
        print(f"{verb} {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
        print("ckptctl: nothing was deleted", file=sys.stderr)
        return False

    def _apply(self, pruning: Pruning, plan: PrunePlan) -> int:
        try:
            report = pruning.apply(plan)
        except KeyboardInterrupt:
            done_so_far = pruning.running.report().count if pruning.running else 0
            print(f"ckptctl: {escape(str(plan.path))}: deleted {done_so_far} before the interruption", file=sys.stderr)
            raise
        self.reports.append(report)
        for text in report.errors:
            print(f"ckptctl: {escape(str(report.path))}: {escape(text, limit=300)}", file=sys.stderr)
        return NO if report.errors else OK

    def _finish(self, pruning: Pruning) -> None:
        if self.json:
            print_json(self._document(pruning))
        elif self.printer and self.reports and any(one.deleted or one.emptied for one in self.reports):
            self.printer.line(done(pruning.plans, self.reports, self.settings.trash_for))

    def _document(self, pruning: Pruning) -> dict[str, object]:
        done_in = {report.path: report for report in self.reports}
        return {
            "schema": _SCHEMA,
            "dry_run": self.how.dry_run,
            "freed_bytes": sum(report.freed for report in self.reports),
            "refused": [{"slug": error.slug, "message": error.message} for error in pruning.errors],
            "runs": [_run(plan, done_in.get(plan.path)) for plan in pruning.plans],
        }


def _raising(error: CkptctlError) -> Callable[[], int]:
    def raised() -> int:
        raise error

    return raised


def _run(plan: PrunePlan, report: PruneReport | None) -> dict[str, object]:
    return {
        "path": str(plan.path),
        "groups": [_group(group) for group in plan.groups],
        "frees": plan.frees,
        "notices": to_json(plan.notices),
        "trash": to_json(plan.trash),
        "deleted": to_json(report.deleted) if report else [],
        "emptied": to_json(report.emptied) if report else [],
        "freed": report.freed if report else 0,
        "errors": to_json(report.errors) if report else [],
    }


def _group(group: Group) -> dict[str, object]:
    return {
        "family": group.run.family,
        "title": group.run.title,
        "policy": to_json(group.policy),
        "notices": to_json(group.notices),
        "checkpoints": [_decision(decision) for decision in group.decisions],
    }


def _decision(decision: Decision) -> dict[str, object]:
    info = decision.checkpoint
    return {
        "action": decision.action.value,
        "reasons": to_json(decision.reasons),
        "path": str(info.path),
        "paths": to_json(info.paths),
        "step": to_json(info.step.value if info.step else None),
        "epoch": to_json(info.epoch.value if info.epoch else None),
        "saved_at": to_json(info.saved_at),
        "nbytes": info.nbytes,
        "metrics": to_json(info.metrics),
        "state": info.completeness.state.value,
    }


def restored(paths: list[Path], name: str, settings: Settings, *, as_json: bool, quiet: bool) -> int:
    """Bring a checkpoint back from the trash, and say so."""

    def one(path: Path) -> None:
        back = restore_from_trash(path, name, needed=settings.lock_needed, wait=settings.wait)
        lost = tuple(dict.fromkeys(base for found in back for base in missing_bases(found)))
        for base in lost:
            text = f"{base}, which {back[0].name} cannot be read without, is neither here nor in the trash"
            print(f"ckptctl: {escape(str(path))}: {escape(text, limit=300)}", file=sys.stderr)
        if as_json:
            print_json({"schema": _SCHEMA, "restored": to_json(back), "missing": to_json(lost)})
        elif not quiet:
            for found in back:
                print(f"restored {escape(str(found))}")
            print(f"pin it ({pin_of(back[0])}), or the next prune may delete it again")

    return guarded_each([partial(one, path) for path in paths], as_json=as_json)


def pin_of(path: Path) -> str:
    """Return which file pins a checkpoint."""
    return escape(str(path / ".keep" if path.is_dir() else path.with_name(f"{path.name}.keep")))
