"""``ckptctl convert``: to safetensors and back, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ckptctl.cli import _convert_options as given
from ckptctl.cli import _options as options
from ckptctl.cli._errors import guarded_each

HELP = """
Convert checkpoints to safetensors, and safetensors to .pt. Nothing is lost, nothing in a file is run, nothing is
half-written. The source is never touched; a target that exists is never replaced without --force.
"""
EPILOG = """
Examples:

  ckptctl convert pytorch_model.bin

  ckptctl convert last.ckpt --only model --strip-prefix module. -o model.safetensors

  ckptctl convert runs/gpt2/checkpoint-12000 --only all -o safe/

Exit status: 0 all is written; 2 something was refused, or could not be read or written; 130 interrupted.
"""


def run(
    sources: given.Sources,
    *,
    output: given.Out = None,
    only: given.OnlyOrAll = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    strip_prefix: given.StripPrefix = None,
    rename: given.Rename = None,
    dtype: given.CastTo = None,
    cast_all: given.CastAll = False,
    allow_overflow: given.AllowOverflow = False,
    untie: given.Untie = False,
    densify: given.Densify = False,
    drop_foreign: given.DropForeign = False,
    plain: given.Plain = False,
    max_shard_size: given.MaxShardSize = None,
    workers: given.Workers = 1,
    part: given.Part = None,
    resume: given.Continue = False,
    no_digest: given.NoDigest = False,
    no_check: given.NoCheck = False,
    force: given.Force = False,
    dry_run: given.DryRun = False,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Work out everything first, then write one source after another."""
    from ckptctl.cli._convert_answer import Answer
    from ckptctl.ops.convert import Options, plan

    chosen = Options(
        **given.selected(only, include, exclude),
        **given.changed(strip_prefix, rename, dtype, cast_all, allow_overflow, untie),
        **given.kept(densify, drop_foreign, plain),
        **given.manner(max_shard_size, no_digest, no_check, force),
        **given.worker(None if dry_run else part, resume=resume), workers=workers,
    )  # fmt: skip
    plans, errors = plan(sources, output, chosen, everything=only is given.Only.ALL)
    answer = Answer(json=json, quiet=quiet, brief=brief)
    step = answer.preview if dry_run else answer.carry_out
    calls: list[Callable[[], None]] = [*(partial(_raise, error) for error in errors)]
    return guarded_each([*calls, *(partial(step, one) for one in plans), answer.finish], as_json=json)


def _raise(error: Exception) -> None:
    raise error
