"""What the name of a checkpoint in a run tells: which kind it is of, its step or epoch, its rank, its metrics.

Names count only if they match in full: ``step-100.backup`` and ``step-best`` are no checkpoints.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.checks.marks import base_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUFFIX = r"\.(?:weights\.h5|pth\.tar|pt\.tar|safetensors|pth|pt|ckpt|bin|pkl|pickle|keras|hdf5|h5)"
_WORD = r"(?:checkpoint|chkpt|ckpt|global_?step|steps?|iter(?:ation)?|epoch|model|snapshot|state|update)"
_NUMBER = r"[-_=.]?(?P<number>[0-9]{1,18})"
_METRIC = r"(?P<metrics>(?:[-_][A-Za-z][-A-Za-z0-9_./]*=(?:[-+]?[0-9][-+0-9.e]*|nan|-?inf))*)"
_DIRECTORY = re.compile(rf"(?P<family>(?:{_WORD}[-_=.]?)+?){_NUMBER}")
_BARE = re.compile(r"(?P<family>)(?P<number>[0-9]{1,18})")
_FILE = re.compile(
    rf"(?P<family>(?:[^/]*?[-_.])?(?:{_WORD}[-_=.]?)+?){_NUMBER}{_METRIC}(?:[-_.]rank[-_]?(?P<rank>[0-9]{{1,6}})(?!\.safetensors))?{_SUFFIX}"
)
_BOTH = re.compile(
    rf"(?P<family>(?:[^/=]*?[-_.])??)epoch[-_]?(?P<epoch>[0-9]{{1,9}})[-_](?:global_?)?step[-_]?(?P<step>[0-9]{{1,18}}){_METRIC}"
    rf"(?:{_SUFFIX})?"
)
_LIGHTNING = re.compile(
    rf"(?P<family>(?:[^/=]*[-_])?)(?:epoch=(?P<epoch>[0-9]{{1,9}}))?-?(?:step=(?P<step>[0-9]{{1,18}}))?{_METRIC}"
    r"(?:-v[0-9]{1,6})?\.ckpt"
)
_LAST = re.compile(r"last(?:-v[0-9]{1,6})?\.ckpt")
_KERAS = re.compile(r"(?P<epoch>[0-9]{1,9})(?:-(?P<value>[0-9]+\.[0-9]+))?(?:\.weights\.h5|\.keras|\.h5)")
_PAIR = re.compile(r"[-_]([A-Za-z][-A-Za-z0-9_./]*)=(nan|-?inf|[-+]?[0-9](?:[0-9.]*[0-9])?(?:e[-+]?[0-9]+)?)")
_EPOCHS = re.compile(r".*epoch[-_=.]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a name tells. Names of one `family` belong to one run; the name decides only where the content is silent."""

    name: str
    family: str
    step: int | None = None
    epoch: int | None = None
    rank: int | None = None
    bare: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


def name_of(name: str, *, directory: bool, pattern: re.Pattern[str] | None = None) -> Named | None:
    """Return what a name tells, None if it is not the name of a checkpoint.

    `pattern` is tried first and alone decides if there is one: its group ``step``, or else the last digits
    of the name, give the step.
    """
    base = base_name(name)
    if base is not None:
        # Some writers put random text before the mark of a temporary name.
        bases = (base, base.rpartition(".")[0])
        return next((found for one in bases if (found := _of_base(name, one, directory, pattern))), None)
    return _of_base(name, name, directory, pattern)


def _of_base(name: str, base: str, directory: bool, pattern: re.Pattern[str] | None) -> Named | None:  # noqa: FBT001
    if pattern:
        found = pattern.fullmatch(base)
        return _by_pattern(name, base, found) if found else None
    both = _BOTH.fullmatch(base)
    if both:
        family, step, epoch = both["family"].rstrip("-_."), int(both["step"]), int(both["epoch"])
        return Named(name=name, family=family or "epoch", step=step, epoch=epoch, metrics=_pairs(both["metrics"]))
    if base.endswith(".ckpt"):
        return _lightning(name, base) or (None if directory else _file(name, base))
    if directory:
        return _directory(name, base)
    return _file(name, base) or _keras(name, base)


def _by_pattern(name: str, base: str, found: re.Match[str]) -> Named:
    group = found.groupdict().get("step")
    if group is not None:
        start, digits = found.start("step"), group
    else:
        last = next(iter(list(re.finditer(r"[0-9]+", re.sub(rf"{_SUFFIX}$", "", base)))[::-1]), None)
        start, digits = (last.start(), last[0]) if last else (0, "")
    step = int(digits) if re.fullmatch(r"[0-9]{1,18}", digits) else None
    return Named(name=name, family=base[:start].rstrip("-_=."), step=step)


def _directory(name: str, base: str) -> Named | None:
    found = _DIRECTORY.fullmatch(base) or _BARE.fullmatch(base)
    return _numbered(name, found, bare=not found["family"]) if found else None


def _file(name: str, base: str) -> Named | None:
    found = _FILE.fullmatch(base)
    if not found:
        return None
    rank = int(found["rank"]) if found["rank"] else None
    return _numbered(name, found, rank=rank, metrics=_pairs(found["metrics"]))


def _numbered(name: str, found: re.Match[str], *, rank: int | None = None, bare: bool = False,
              metrics: Mapping[str, float] | None = None) -> Named:  # fmt: skip
    family, number = found["family"], int(found["number"])
    by_epoch = bool(_EPOCHS.fullmatch(family))
    return Named(
        name=name,
        family=family.rstrip("-_=."),
        step=None if by_epoch else number,
        epoch=number if by_epoch else None,
        rank=rank,
        bare=bare,
        metrics=metrics or {},
    )


def _lightning(name: str, base: str) -> Named | None:
    if _LAST.fullmatch(base):
        return Named(name=name, family="lightning")
    found = _LIGHTNING.fullmatch(base)
    if not found or not (found["epoch"] or found["step"]):
        return None
    return Named(
        name=name,
        family=f"{found['family']}lightning",
        step=int(found["step"]) if found["step"] else None,
        epoch=int(found["epoch"]) if found["epoch"] else None,
        metrics=_pairs(found["metrics"]),
    )


def _keras(name: str, base: str) -> Named | None:
    found = _KERAS.fullmatch(base)
    if not found:
        return None
    metrics = {"val_loss": float(found["value"])} if found["value"] else {}
    return Named(name=name, family="keras", epoch=int(found["epoch"]), metrics=metrics)


def _pairs(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in _PAIR.findall(text):
        with contextlib.suppress(ValueError):  # such as the number of a version
            found[key] = float(value)
    return found
