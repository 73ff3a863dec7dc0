"""Whether the file of a rank still has the name that it was written under."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.model import Aspect, Finding, Severity

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

    from ckptctl.model import Contents


def exchanged(files: Iterable[Contents], pattern: re.Pattern[str], group: int) -> Iterator[Finding]:
    """Yield a finding for each file that torch wrote under the number of another rank.

    The number is that `group` of `pattern`, which names match in full. What came from elsewhere tells nothing.
    """
    for contents in files:
        name = contents.range.file.path.name
        written = formats.saved_as(contents.range)
        here, then = pattern.fullmatch(name), pattern.fullmatch(f"{written}{name[name.rfind('.') :]}")
        if written and here and then and int(here[group] or 0) != int(then[group] or 0):
            yield Finding(
                aspect=Aspect.STRUCTURE,
                severity=Severity.ERROR,
                slug="exchanged",
                where=name,
                message=f"{name} was written as {then[0]}: it has the name of another rank",
            )
