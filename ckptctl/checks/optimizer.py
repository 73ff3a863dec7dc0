"""Which optimizer a state belongs to, and what its tensors are for.

The keys are those of ``torch.optim`` 2.4 to 2.13; older releases lack ``decoupled_weight_decay``,
so that Adam and AdamW of before 2.7 cannot be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.values import as_mapping, attributes, nested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.model import Part, TensorInfo

_MASTER = frozenset({"single_partition_of_fp32_groups", "fp32_flat_groups", "fp32_groups", "fp32_from_fp16_params",
                     "master_param", "master_params", "param"})  # fmt: skip
# The first of these whose keys all occur, in the param group or in the state of a parameter.
_KINDS = (
    ("SGD", {"momentum", "dampening", "nesterov"}),
    ("NAdam", {"momentum_decay"}),
    ("RAdam", {"rho_inf"}),
    ("Adamax", {"exp_inf"}),
    ("Adafactor", {"beta2_decay"}),
    ("Adafactor", {"relative_step", "scale_parameter"}),
    ("RMSprop", {"square_avg", "alpha"}),
    ("RMSprop", {"centered"}),
    ("Adagrad", {"initial_accumulator_value"}),
    ("Adadelta", {"rho", "acc_delta"}),
    ("Rprop", {"etas"}),
    ("ASGD", {"lambd", "t0"}),
    ("LBFGS", {"max_iter", "history_size"}),
    ("Adam", {"betas", "amsgrad"}),
    ("Adam", {"betas", "exp_avg_sq"}),
    ("Lion", {"betas", "exp_avg"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The tensors that an optimizer keeps under one name, such as ``exp_avg``."""

    name: str
    tensors: int
    nbytes: int


def optimizer_kind(part: Part) -> str:
    """Return the class of an optimizer, as far as the keys of its state tell; empty if they do not."""
    found: dict[str, None] = {}
    slots = {slot.name for slot in optimizer_slots(part)}
    for group in _groups(part):
        keys = slots | {key for key in group if isinstance(key, str)}
        name = next((name for name, wanted in _KINDS if wanted <= keys), "")
        if name == "Adam":
            decoupled = group.get("decoupled_weight_decay")
            name = {True: "AdamW", False: "Adam"}.get(bool(decoupled), "") if decoupled is not None else "Adam or AdamW"
        found[name] = None
    return ", ".join(name for name in found if name)


def optimizer_slots(part: Part) -> tuple[Slot, ...]:
    """Sum up the tensors of an optimizer by what they are for, in the order in which they occur."""
    sums: dict[str, list[TensorInfo]] = {}
    for name, tensor in part.tensors.items():
        sums.setdefault(_slot(name), []).append(tensor)
    return tuple(
        Slot(name=name, tensors=len(tensors), nbytes=sum(t.nbytes for t in tensors)) for name, tensors in sums.items()
    )


def _slot(name: str) -> str:
    """Return the last part of a dotted name that is no index; ``master`` for fp32 copies of weights."""
    named = [part for part in name.split(".") if not part.isdigit()]
    last = named[-1] if named else name
    return "master" if last in _MASTER else last


def _groups(part: Part) -> Iterator[dict[object, object]]:
    """Yield the first param group of each optimizer state, wherever it is nested."""
    for value in nested(dict(part.values), skip="state"):
        items = attributes(value)
        groups = items.get("param_groups") if items else None
        if isinstance(groups, (list, tuple)) and groups and (first := as_mapping(groups[0])):
            yield dict(first)


def param_groups(part: Part) -> Iterator[Mapping[object, object]]:
    """Yield the groups of parameters of the optimizers in a component."""
    for value in nested(dict(part.values), skip="state"):
        items = attributes(value)
        groups = items.get("param_groups") if items else None
        if isinstance(groups, (list, tuple)):
            yield from (found for group in groups if (found := as_mapping(group)))


def was_scheduled(optimizer: Part | None) -> bool | None:
    """Whether a schedule has set the learning rate: it leaves the first one in the groups. None if nobody can tell."""
    groups = list(param_groups(optimizer)) if optimizer else []
    return any("initial_lr" in group for group in groups) if groups else None
