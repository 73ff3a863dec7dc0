"""``ckptctl diff``: what changed between two checkpoints."""

from __future__ import annotations

from ckptctl.cli import _diff_options as given
from ckptctl.cli import _options as options
from ckptctl.cli._errors import guarded

HELP = """
Say what differs between two checkpoints, whatever their formats: tensors that are on one side only, renamed, of another
type or shape, or of other values, module by module and how far they are apart; then plain values and metadata. Bits
are compared, nothing is written.
"""
EPILOG = """
Examples:

  ckptctl diff base/ tuned.safetensors

  ckptctl diff checkpoint-1000/ merged.safetensors --only model

  ckptctl diff fp32.safetensors bf16.safetensors --dtype-tolerant -q

Exit status: 0 they are equal; 1 they differ; 2 one could not be read, or not compared; 130 interrupted.
"""


def run(
    a: given.A,
    b: given.B,
    *,
    only: options.Only = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    strip_prefix: given.StripPrefix = None,
    rename: given.Map = None,
    close: given.Close = False,
    rtol: given.Rtol = None,
    atol: given.Atol = None,
    dtype_tolerant: given.DtypeTolerant = False,
    all_: given.All = False,
    depth: given.Depth = None,
    top: given.Top = 10,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Compare, and show what differs."""
    from ckptctl.cli._diff_answer import Shown, answer
    from ckptctl.ops.diff import Options
    from ckptctl.rewrite.names import parse_rename

    asked = Options(
        only=only,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        strip_prefix=tuple(strip_prefix or ()),
        rename=tuple(parse_rename(text, option="--map") for text in rename or ()),
        tolerance=given.tolerance_of(close, rtol, atol),
        dtype_tolerant=dtype_tolerant,
        all=all_,
        first=quiet or (brief and not json),
    )
    shown = Shown(depth=depth, top=top, all=all_, json=json, brief=brief, quiet=quiet)
    return guarded(lambda: answer(a, b, asked, shown), as_json=json)
