"""The generated pages of the documentation: ``python -m tests.docs_pages --write`` writes them anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from ckptctl import errors
from ckptctl.cli.app import COMMANDS
from ckptctl.formats import FORMATS
from ckptctl.formats._foreign import _NAMED, _PACKED, _ZIPPED
from ckptctl.layouts import LAYOUTS
from ckptctl.model.causes import CAUSES
from tests.api_page import api_page
from tests.matrix import table
from tests.scale import scale_page
from tests.schemas import documents

DOCS = Path(__file__).parent.parent / "docs"
_NOTICE = "<!-- Written by `nox -s docs` from the code; change it there. -->\n"


def formats_page() -> str:
    """What is read: formats, layouts, and what is only named."""
    lines = ["# Formats and layouts", "", _NOTICE, "A file is recognised by its content, never by its name.", ""]
    lines += ["## Formats: how tensors lie in bytes", ""]
    for item in FORMATS:
        lines += [f"### {item.title}", "", f"`{item.name}`: {item.about}.", ""]
    lines += ["## Layouts: how files make a checkpoint", ""]
    for item in LAYOUTS:
        lines += [f"### {item.title}", "", f"`{item.name}`: {item.about}.", ""]
    lines += ["## Named, and not read", ""]
    lines += [f"- {name}" for _, name in (*_NAMED, *_ZIPPED)]
    lines += [f"- anything compressed with {name} (`{command}` unpacks it)" for _, name, command in _PACKED]
    lines += ["- a Git LFS pointer, a web page, a JSON document, text, a file of zeros, an empty file", ""]
    return "\n".join(lines)


def error_classes() -> list[type[errors.CkptctlError]]:
    """Every class of error, the root left out."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.CkptctlError
            and issubclass(kind, errors.CkptctlError)]  # fmt: skip


def errors_page() -> str:
    """Every error with its slug, and the exit statuses."""
    lines = [
        "# Errors and exit statuses",
        "",
        _NOTICE,
        "| status | means |",
        "| --- | --- |",
        "| 0 | yes, or done |",
        "| 1 | the answer is no |",
        "| 2 | it could not tell, or could not do it |",
        "| 130 | interrupted |",
        "",
        "With several paths the highest of these counts. An error is one line on stderr, `ckptctl: path: what is wrong`,",
        'and often a hint; with `--json` it is `{"error": {"slug", "message", "hint"}}` there.',
        "",
        "| slug | class | means |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{kind.slug}` | `{kind.__name__}` | {kind.__doc__} |" for kind in error_classes()]
    lines += [
        "| `usage` | | The command line itself is wrong. |",
        "| `os-error` | | The system refused, for instance because the disk is full. |",
        "| `no-memory` | | There was not enough memory. |",
        "| `interrupted` | | Stopped by Ctrl-C. |",
        "| `internal` | | A fault of ckptctl; please report it. |",
        "",
    ]
    return "\n".join(lines)


def findings_page() -> str:
    """Every finding: what is behind it, and what helps."""
    lines = ["# Findings", "", _NOTICE]
    lines += [
        "What `verify` reports has a slug, in the terminal behind its aspect (`bytes/bad-crc`), under `--json` as `slug`, with",
        "",
    ]
    lines[-1:] = ["what helps as `hint`. [What verify looks at](verify.md) says which damage it finds.", ""]
    lines += ["| slug | what is behind it | what helps |", "| --- | --- | --- |"]
    lines += [f"| `{slug}` | {cause.means} | {cause.cure} |" for slug, cause in CAUSES.items()]
    return "\n".join([*lines, ""])


def commands_page() -> str:
    """The help of every command."""
    lines = ["# Commands", "", _NOTICE]
    for name in COMMANDS:
        lines += [f"## ckptctl {name}", "", "```text", _help(name), "```", ""]
    return "\n".join(lines)


def verify_page() -> str:
    """What `verify` looks at, and which damage each level finds."""
    text = (DOCS / "reference" / "verify.in.md").read_text()
    return text.replace("<!-- matrix -->", "\n".join(table()))


def schema_page(command: str) -> str:
    """The JSON schema of what a command prints."""
    return json.dumps(documents()[command], indent=1, sort_keys=True) + "\n"


def _help(command: str) -> str:
    env = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=env,
        cwd=DOCS.parent,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


PAGES = {
    "reference/formats.md": formats_page,
    "reference/errors.md": errors_page,
    "reference/findings.md": findings_page,
    "reference/python.md": api_page,
    "reference/commands.md": commands_page,
    "reference/verify.md": verify_page,
    **{f"reference/schemas/{command}.json": partial(schema_page, command) for command in COMMANDS},
    "scale.md": lambda: scale_page((DOCS / "scale.md").read_text()),
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        if "--write" in sys.argv:
            (DOCS / name).write_text(page())
        print(name)
