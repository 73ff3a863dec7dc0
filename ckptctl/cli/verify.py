"""``ckptctl verify``: whether a checkpoint can be trusted."""

from __future__ import annotations

from ckptctl.cli import _options as options
from ckptctl.cli import _verify_options as given
from ckptctl.errors import UsageError

HELP = """
Say whether checkpoints can be trusted: whether they are whole, whether the bytes are those that were written, what
loading them would run, and, with --resume, whether training can really go on. Takes files, checkpoints and whole runs.
"""
EPILOG = """
Examples:

  ckptctl verify runs/gpt2/checkpoint-*

  ckptctl verify model.safetensors --write

  train.py --resume "$(ckptctl verify --latest-good runs/x)"

Exit status: 0 all good; 1 something is wrong (or no good one was found); 2 could not look; 130 interrupted.
"""


def run(
    paths: options.Paths,
    *,
    quick: given.Quick = False,
    values: given.Values = False,
    resume: given.Resume = False,
    require: given.Required = None,
    strict: given.Strict = False,
    allow_global: given.AllowGlobal = None,
    write: given.Write = False,
    workers: given.Workers = None,
    part: given.Part = None,
    latest_good: given.LatestGood = False,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Verify each path in turn, going on after a bad one."""
    from ckptctl.checks.resumable import Verdict
    from ckptctl.cli._verify_answer import Answer, newest
    from ckptctl.ops.verify import Level

    level = Level(
        quick=quick,
        values=values,
        resume=resume,
        strict=strict,
        allowed=frozenset(allow_global or ()),
        require=Verdict(require.value) if require else None,
        write=write,
        share=given.share(part),
        workers=workers,
    )
    if latest_good and part is not None:
        raise UsageError("--latest-good is one answer: it is not worked out in parts")
    if latest_good:
        return newest(paths, level, as_json=json)
    return Answer(level, json=json, quiet=quiet, brief=brief).of(paths)
