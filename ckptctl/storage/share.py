"""One worker of several, started by whatever starts the processes of a cluster; they need nothing of each other."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PART = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
_PAIRS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
)
"""Variables of torchrun, Slurm, Open MPI, MPICH, and of an indexed job of Kubernetes that sets the second one."""


_ATTEMPT = (
    "TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "JOB_NAME",
)  # fmt: skip
"""Variables in which launchers give all workers of one attempt the same, and other attempts another."""


@dataclass(frozen=True, slots=True)
class Share:
    """One worker of several: its number, from 0, and how many there are.

    `attempt` is what all workers that were started together have in common; empty if nobody has said.
    """

    index: int
    count: int
    attempt: str = field(default="", compare=False)

    def owners(self, sizes: Sequence[int], names: Sequence[str]) -> list[int]:
        """Return which worker each file is of: the largest first, each to whoever has least so far."""
        loads, owners = [0] * self.count, [0] * len(sizes)
        for at in sorted(range(len(sizes)), key=lambda at: (-sizes[at], names[at])):
            to = loads.index(min(loads))
            loads[to] += max(sizes[at], 1)
            owners[at] = to
        return owners


def parse_share(text: str, environment: Mapping[str, str] = os.environ) -> Share:
    """Return which worker this is: ``i/n``, or ``auto`` for what the launcher has put into the environment.

    Raises
    ------
    UsageError
        It is neither, or nothing is in the environment.
    """
    attempt = ""
    if text == "auto":
        said = [f"{name}={environment[name]}" for name in _ATTEMPT if name in environment]
        attempt = hashlib.blake2b("\0".join(said).encode(), digest_size=8).hexdigest() if said else ""
        for index, count in _PAIRS:
            if index in environment and count in environment:
                text = f"{environment[index]}/{environment[count]}"
                break
        else:
            names = ", ".join(f"{index}/{count}" for index, count in _PAIRS)
            raise UsageError("--part auto: no launcher has said which part this is", hint=f"--part 0/4; or set {names}")
    found = _PART.fullmatch(text)
    if not found or not int(found[1]) < int(found[2]):
        raise UsageError(f"--part {text[:40]!r}: not a part of several", hint="--part 0/4 to 3/4, or --part auto")
    return Share(int(found[1]), int(found[2]), attempt)
