"""Under which names to write: beside the source by default, in the format that the suffix of `-o` says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError
from ckptctl.model.endings import ENDINGS
from ckptctl.rewrite.outputs import SAFETENSORS, TORCH_SUFFIXES

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.rewrite.options import Options
    from ckptctl.rewrite.source import Source

_SUFFIX = re.compile(rf"(\.weights\.json|\.pth\.tar|{'|'.join(map(re.escape, ENDINGS))})$")
_MODEL = "pytorch_model"


def target_of(source: Source, out: Path | None, options: Options, *, several: bool) -> Path:
    """Return the file to write for a source; for shards, the one after which they are named.

    `out` is a directory if it is one, if it has no suffix, or if there are several sources.

    Raises
    ------
    UsageError
        The suffix is of no format that is written, or several sources would go into one file, or a safetensors
        file would become one of torch with other tensors without being told so.
    """
    into = out is not None and (out.is_dir() or several or not out.suffix)
    if out is not None and not into:
        if out.suffix not in (SAFETENSORS, *TORCH_SUFFIXES):
            known = " ".join((SAFETENSORS, *TORCH_SUFFIXES))
            raise UsageError(f"{out}: its suffix does not say in which format to write", hint=f"one of {known}")
        return out
    already = all(contents.format == "safetensors" for contents in source.files)
    if already and out is None:
        if options.changes_tensors:
            raise UsageError(
                f"{source.path}: a safetensors file goes to .pt by default; other tensors than it has need -o",
                hint=f"-o {_stem(source)}.new{SAFETENSORS}, or any other name",
            )
        return _beside(source) / f"{_stem(source)}.pt"
    if source.shards and not options.max_shard_size and len(source.shards) > 1:
        return (out or _beside(source)) / f"{_shared_stem(source)}{SAFETENSORS}"
    return (out or _beside(source)) / f"{_stem(source)}{SAFETENSORS}"


def shard_names(source: Source) -> dict[str, tuple[str, ...]]:
    """Return the new names of a source's shards, each with the names of its tensors."""
    return {f"{_new_stem(name)}{SAFETENSORS}": names for name, names in source.shards.items()}


def _beside(source: Source) -> Path:
    return source.path if source.path.is_dir() else source.path.parent


def _stem(source: Source) -> str:
    if source.path.is_dir():
        return _shared_stem(source)
    return _new_stem(source.path.name)


def _shared_stem(source: Source) -> str:
    """The name that shards share: ``model`` of ``model-00001-of-00003``."""
    first = next(iter(source.shards), "") or source.files[0].range.file.path.name
    return re.sub(r"[-_][0-9]{1,6}(-of-[0-9]{1,6})?(?=$|\.weights$)", "", _new_stem(first))


def _new_stem(name: str) -> str:
    """A name without its suffix, as loaders look for it: ``pytorch_model`` is ``model`` in safetensors files."""
    stem = _SUFFIX.sub("", name)
    return f"model{stem.removeprefix(_MODEL)}" if stem.startswith(_MODEL) else stem
