"""What to write of a checkpoint, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.model.selection import taken

if TYPE_CHECKING:
    import re

    from ckptctl.model import Component, DType
    from ckptctl.storage.share import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to write of a checkpoint, and how.

    Parameters
    ----------
    only
        One component, whose prefix is cut off; None for the whole.
    include, exclude
        Globs over the names that `inspect` shows; with either, plain values are left out.
    strip_prefix, rename
        Prefixes that are cut off as long as one is there, then substitutions, in order.
    untie
        Write tied tensors as copies.
    dtype, cast_all, allow_overflow
        Cast floating tensors of the model (with `cast_all` of the optimizer too); numbers may become infinite.
    densify, drop_foreign, plain
        Write sparse tensors as dense ones; leave out what cannot be kept; turn objects into plain values.
    max_shard_size
        In bytes: write shards of at most that size, and an index.
    workers
        How many threads write one safetensors file.
    share, resume
        Which worker of several this is; whether to take up files that an earlier attempt has finished.
    digest, sidecar, check, force
        Work out the SHA-256, and write it beside; check the source's checksums on the way; replace what is there.
    """

    only: Component | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    strip_prefix: tuple[str, ...] = ()
    rename: tuple[tuple[re.Pattern[str], str], ...] = ()
    untie: bool = False
    dtype: DType | None = None
    cast_all: bool = False
    allow_overflow: bool = False
    densify: bool = False
    drop_foreign: bool = False
    plain: bool = False
    max_shard_size: int | None = None
    workers: int = 1
    share: Share | None = None
    resume: bool = False
    digest: bool = True
    sidecar: bool = True
    check: bool = True
    force: bool = False

    @property
    def selects(self) -> bool:
        """Whether globs choose among the tensors."""
        return bool(self.include or self.exclude)

    @property
    def changes_tensors(self) -> bool:
        """Whether the result has other tensors, or other names for them, than the source."""
        changed = (self.only, self.dtype, self.max_shard_size, self.strip_prefix, self.rename)
        return self.selects or self.untie or any(changed)

    def takes(self, name: str, *, prefix: str = "") -> bool:
        """Whether the globs take a name, whole or with the `prefix` of its component cut off."""
        names = {name, name.removeprefix(f"{prefix}.") if prefix else name}
        return taken(names, self.include, self.exclude)
