"""What `convert` prints: a line for each file written and what is worth knowing about it, or one document of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.cli._convert_options import told
from ckptctl.cli._errors import mute
from ckptctl.cli._output import Printer, print_json, to_json
from ckptctl.cli._progress import Bar, stopped_by_sigterm
from ckptctl.cli._rewrite_text import details, head, tensor_rows
from ckptctl.cli._text import escape

if TYPE_CHECKING:
    from ckptctl.ops.convert import ConvertPlan, RewriteReport

_NOTHING = "nothing was written, and no tensor was read (--dry-run)"


class Answer:
    """Conversions carried out and shown one by one, or gathered for one document."""

    def __init__(self, *, json: bool, quiet: bool, brief: bool) -> None:
        self.json, self.quiet, self.brief = json and not quiet, quiet, brief
        self.printer = None if json or quiet else Printer()
        self.documents: list[object] = []
        self.dry = self.silent = False

    def preview(self, one: ConvertPlan) -> None:
        """Show a plan."""
        self.dry = True
        report = one.describe()
        self._add(report)
        if self.printer and not self.brief:
            for file in report.files:
                self.printer.line()
                if len(report.files) > 1:
                    self.printer.line(escape(file.path.name))
                self.printer.columns(list(tensor_rows(file, report)), "<<<><")
            self.printer.line()

    def carry_out(self, one: ConvertPlan) -> None:
        """Write what is planned, and show it."""
        with stopped_by_sigterm(), Bar(one.nbytes, shown=not self.quiet) as bar:
            report = one.apply(bar.advance)
        self.silent = told(one.options.share)
        if not self.silent:
            self._add(report)

    def finish(self) -> None:
        """Print the document, if one was asked for."""
        if self.json and not self.silent:
            print_json({"schema": "ckptctl.convert/1", "dry_run": self.dry, "conversions": self.documents})
        if self.printer and self.dry:
            self.printer.line(_NOTHING)

    def _add(self, report: RewriteReport) -> None:
        if self.json:
            self.documents.append(to_json(report))
        if not self.printer:
            return
        try:
            self._show(self.printer, report)
        except BrokenPipeError:  # nobody reads on; the rest is converted all the same
            mute()
            self.printer = None

    def _show(self, printer: Printer, report: RewriteReport) -> None:
        printer.paragraph(head(report))
        if not self.brief:
            for text, style in details(report):
                printer.paragraph(f"  {text}", style=style)
