"""What `inspect` prints: report after report, or one document of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.cli import _inspect_text
from ckptctl.cli._output import Printer, print_json, to_json

if TYPE_CHECKING:
    from ckptctl.ops.inspect import InspectReport
    from ckptctl.ops.inspect.run import RunReport


class Answer:
    """Reports shown one by one, or gathered for one document."""

    def __init__(self, *, json: bool, quiet: bool, brief: bool, depth: int) -> None:
        self.json, self.brief, self.depth = json and not quiet, brief, depth
        self.printer = None if json or quiet else Printer()
        self.first = True
        self.checkpoints: list[object] = []
        self.runs: list[object] = []

    def add(self, report: InspectReport) -> None:
        """Take the report on a checkpoint."""
        self._add(report, self.checkpoints)
        if self.printer:
            _inspect_text.show(self.printer, report, depth=self.depth, brief=self.brief)

    def add_run(self, report: RunReport) -> None:
        """Take the report on a run."""
        self._add(report, self.runs)
        if self.printer:
            from ckptctl.cli import _inspect_run  # runs only

            _inspect_run.show_run(self.printer, report, brief=self.brief)

    def finish(self) -> None:
        """Print the document, if one was asked for."""
        if self.json:
            print_json({"schema": "ckptctl.inspect/1", "checkpoints": self.checkpoints, "runs": self.runs})

    def _add(self, report: object, documents: list[object]) -> None:
        if self.json:
            documents.append(to_json(report))
        if self.printer and not self.first and not self.brief:
            self.printer.line()
        self.first = False
