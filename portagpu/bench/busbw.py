"""Bus bandwidth: what a collective moved over the wire, made comparable across numbers of ranks.

``busbw = S / t * factor`` with the factors of nccl-tests, ``doc/PERFORMANCE.md``
(https://github.com/NVIDIA/nccl-tests). 1 GB is 1e9 bytes.
"""

from __future__ import annotations

from typing import Final

_EXCHANGES: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_ONE_WAY: Final = frozenset({"broadcast", "reduce", "send_recv"})


def bus_factor(operation: str, ranks: int) -> float | None:
    """What turns algorithm bandwidth (S / t) into bus bandwidth; None for a single rank.

    S is the total number of bytes of the operation: the buffer of one rank for ``all_reduce``,
    ``broadcast`` and ``reduce``; what one rank holds before ``reduce_scatter`` and after
    ``all_gather``; what one rank sends to all, itself included, in ``all_to_all``. One rank moves
    nothing over a wire, so there its bus bandwidth is not applicable, and not 0. Raises ValueError
    for an operation without a factor.
    """
    if ranks < 1:
        raise ValueError(f"a collective has at least one rank, not {ranks}")
    if operation == "all_reduce":
        factor = 2 * (ranks - 1) / ranks
    elif operation in _EXCHANGES:
        factor = (ranks - 1) / ranks
    elif operation in _ONE_WAY:
        factor = 1.0
    else:
        raise ValueError(f"there is no bus bandwidth factor for {operation!r}")
    return None if ranks == 1 else factor
