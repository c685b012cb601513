"""What a communication library has to do, and what it may refuse, if every rank does.

``collectives/random-programs`` asks for it. What a library may refuse is right where it does not.
It need not refuse it: torch's own process group serves the calls, which PortaGPU does not wrap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.suites.search.collectives.calls import HELPERS, REDUCES

if TYPE_CHECKING:
    from portagpu.devices.collectives.comm import Comm

FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
CLAIMED: Final = (*FLOATS, "int64")
"""No library refuses them."""


def is_claimed(comm: Comm, name: str, dtype: str, op: str, shape: str, *, in_place: bool) -> bool:
    """Whether the library has to do the call; else it may refuse it on every rank."""
    if name in HELPERS:
        return True
    if name == "all_to_all" or shape == "transposed" or dtype not in CLAIMED:
        return False
    if name not in REDUCES:
        return True
    if in_place:
        return False
    return op in comm.reduce_ops if dtype in FLOATS else op == "SUM"
