"""Long trials: ``python -m tests.trials fuzz --minutes 60``, or any other; with ``--page`` it goes into docs/trials.md."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone

from tests.docs_pages import DOCS
from tests.trials import errors, full_disk, fuzz, memory, pickles

TRIALS = {one.__name__.rpartition(".")[2]: one for one in (fuzz, pickles, errors, full_disk, memory)}
PAGE = DOCS / "trials.md"


def written(name: str, lines: list[str]) -> None:
    """Put what came of a trial into its place on the page."""
    given = " ".join(one for one in sys.argv[1:] if one != "--page")
    text = "\n".join([f"`python -m tests.trials {given}`, {datetime.now(timezone.utc):%Y-%m-%d}:", "", *lines])
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(marks.sub(lambda found: f"{found[1]}{text}\n{found[2]}", PAGE.read_text()))


if __name__ == "__main__":
    chosen, *options = [one for one in sys.argv[1:] if one != "--page"]
    made = TRIALS[chosen].main(*options)
    print("\n".join(made))
    if "--page" in sys.argv:
        written(chosen, made)
    sys.exit(any(line.startswith("- ") for line in made))
