"""Variables of the environment that change what a device does, or how many devices there are.

Variables for debugging change what a device or torch does. A result that was made under one says
so, and what cannot be seen under it is not judged. torch's and Triton's own are here, a vendor's in
its ``Vendor``. A device that all ranks share, a CPU, counts as several (:func:`shared_count`).
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


NODE: Final = "PORTAGPU_NODE"
"""The name of the machine where a container has another one, as in a pod of Kubernetes."""


def host_name() -> str:
    """The name of this machine in results."""
    return os.environ.get(NODE) or platform.node()


ASYNCHRONY: Final = "asynchrony"
COMPILER: Final = "compiler"
CACHING: Final = "caching"
CHANGED: Final = (ASYNCHRONY, COMPILER, CACHING)
"""What cases may need as it is by itself: work that goes on when a call has returned, torch's
compiler, the caching allocator."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A variable, and what it does: ``effect`` is a clause.

    It does so where its value matches ``on`` as a whole. What ``changes`` names cannot be judged
    under it; None where everything can be.
    """

    variable: str
    effect: str
    changes: str | None = None
    on: str = "1"

    def __post_init__(self) -> None:
        re.compile(self.on)
        if self.changes is not None and self.changes not in CHANGED:
            raise ValueError(f"{self.variable} changes {self.changes!r}, not {', '.join(CHANGED)}")


_TORCH: Final = (
    # torch/_dynamo/eval_frame.py and torch/_dynamo/config.py (2.13)
    Switch("TORCHDYNAMO_DISABLE", "torch.compile compiles nothing", COMPILER),
    Switch("TORCH_COMPILE_DISABLE", "torch.compile compiles nothing", COMPILER),
    # c10/cuda/CUDACachingAllocator.cpp, forceUncachedAllocator: set is enough
    *(
        Switch(name, "the allocator of torch caches nothing", CACHING, on=".*")
        for name in ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
    ),
    # triton/knobs.py, env_bool; the conformance suite leaves it out of its own process
    Switch("TRITON_INTERPRET", "Triton's kernels run on the host", on="(?i:1|true|yes|on|y)"),
)


def switched_on(
    environment: Mapping[str, str], vendor: Iterable[Switch] = ()
) -> tuple[Switch, ...]:
    """The switches of torch, Triton and a vendor that are on."""
    return tuple(
        each
        for each in (*_TORCH, *vendor)
        if (value := environment.get(each.variable)) is not None
        and re.fullmatch(each.on, value, re.DOTALL)
    )


def unjudged(needed: Iterable[str], on: Iterable[Switch], values: Mapping[str, str]) -> str:
    """Why nothing is judged that needs what is changed by a switch that is on; empty if it is."""
    wanted = set(needed)
    return "; ".join(
        f"{each.variable} is {values[each.variable]!r}, with which {each.effect}: unset it"
        for each in on
        if each.changes in wanted
    )


VARIABLE: Final = "PORTAGPU_SHARED_DEVICES"
LAUNCHER_VARIABLE: Final = "LOCAL_WORLD_SIZE"
"""The number of ranks on this machine, set by torchrun and other launchers."""
_MAX: Final = 4096


def shared_count() -> int:
    """``PORTAGPU_SHARED_DEVICES``, else the launcher's ``LOCAL_WORLD_SIZE``, else 1.

    Scripts compare the number of devices with the number of ranks, and give each rank the device of
    its number. Raises PortagpuError where the first variable is not a number from 1 to 4096. The
    second belongs to another program, and counts as 1 then.
    """
    for name in (VARIABLE, LAUNCHER_VARIABLE):
        text = os.environ.get(name)
        if not text:
            continue
        if text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= _MAX:
            return int(text)
        if name == VARIABLE:
            raise PortagpuError(
                f"{name} must be a number of devices from 1 to {_MAX}, not {text!r}"
            )
    return 1
