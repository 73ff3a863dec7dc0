"""``ckptctl consolidate``: one file of the shards of all ranks."""

from __future__ import annotations

from ckptctl.cli import _consolidate_options as given
from ckptctl.cli import _convert_options as writing
from ckptctl.cli import _options as options
from ckptctl.cli._errors import guarded

HELP = """
Make one file of a sharded checkpoint: torch distributed checkpoint, rank files of FSDP and tensor parallelism,
DeepSpeed ZeRO, shards with an index. Exactly the tensors that the framework holds, without it; refused rather than half
right.
"""
EPILOG = """
Examples:

  ckptctl consolidate checkpoint-5000/

  ckptctl consolidate global_run/ --tag global_step5000 --dtype bf16 --max-shard-size 5GB -o out/

  ckptctl consolidate llama-2-7b/ --like reference.json -o llama.safetensors

Exit status: 0 it is written; 2 it is not whole, was refused, or could not be read or written; 130 interrupted.
"""


def run(  # the words of convert, and some more
    directory: given.Sharded,
    *,
    output: writing.Out = None,
    only: given.What = given.Only.MODEL,
    include: options.Include = None,
    exclude: options.Exclude = None,
    tag: given.Tag = "",
    weights: given.WhichWeights = given.Weights.FP32,
    like: given.Like = None,
    split: given.Split = None,
    strip_prefix: writing.StripPrefix = None,
    rename: writing.Rename = None,
    dtype: writing.CastTo = None,
    cast_all: writing.CastAll = False,
    allow_overflow: writing.AllowOverflow = False,
    untie: writing.Untie = False,
    drop_foreign: writing.DropForeign = False,
    max_shard_size: writing.MaxShardSize = None,
    copy_files: given.CopyFiles = False,
    workers: writing.Workers = 1,
    part: writing.Part = None,
    resume: writing.Continue = False,
    no_digest: writing.NoDigest = False,
    no_check: writing.NoCheck = False,
    force: writing.Force = False,
    dry_run: writing.DryRun = False,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Plan it whole, then write it."""
    from ckptctl.cli._consolidate_answer import answer
    from ckptctl.ops.consolidate import Options, Wanted, plan

    wanted = Wanted(only=given.component(only), tag=tag, narrow=weights is given.Weights.MODULE,
                    cuts=given.cuts_of(like, split), copy_files=copy_files)  # fmt: skip
    chosen = Options(
        **writing.selected(None, include, exclude),
        **writing.changed(strip_prefix, rename, dtype, cast_all, allow_overflow, untie),
        **writing.manner(max_shard_size, no_digest, no_check, force),
        **writing.kept(densify=False, drop_foreign=drop_foreign, plain=False),
        **writing.worker(None if dry_run else part, resume=resume), workers=workers)  # fmt: skip
    made = plan(directory, output, wanted, chosen)
    return guarded(lambda: answer(made, dry_run=dry_run, json=json, brief=brief, quiet=quiet), as_json=json)
