"""Bandwidth of collectives as nccl-tests defines it: operations, bytes, algbw and busbw.

Source: https://github.com/NVIDIA/nccl-tests, ``doc/PERFORMANCE.md`` and the functions ``*GetBw``
and ``*GetCollByteCount`` of ``src/*.cu`` at a0b82b2 (2.19.6); rccl-tests has the same ones. 1 GB is
1e9 bytes.
"""

from __future__ import annotations

from typing import Final

OPERATIONS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "sendrecv",
)
"""The operations that have a bus bandwidth. In ``sendrecv`` every rank sends to the next one and
receives from the one before it, as a ring."""

TUNED: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_reduce_many")
"""What ``collectives tune`` tunes; ``all_reduce_many`` reduces a list of tensors, whose bytes count
together."""

SHARED_OUT: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations whose count is of one rank's share: their buffers hold a share for every rank."""


def total_bytes(operation: str, count: int, itemsize: int, ranks: int) -> int:
    """The bytes S that count for ``operation``, from the ``count`` elements of nccl-tests' tables.

    S is the buffer of one rank for ``all_reduce``, ``broadcast``, ``reduce`` and ``sendrecv``:
    ``count * itemsize``. For the others ``count`` is one rank's share, and S is
    ``count * itemsize * ranks``: what one rank holds before ``reduce_scatter`` and after
    ``all_gather``, sends to all, itself included, in ``all_to_all``, and what the root holds in
    ``gather`` and ``scatter``. Raises ValueError for another operation.
    """
    _check_ranks(operation, ranks)
    return count * itemsize * (ranks if operation in SHARED_OUT else 1)


def bus_factor(operation: str, ranks: int) -> float | None:
    """``busbw / algbw``; None, which is "not applicable", for a single rank.

    ``2 * (n - 1) / n`` for ``all_reduce``; ``(n - 1) / n`` for ``all_gather``, ``reduce_scatter``,
    ``all_to_all``, ``gather`` and ``scatter``; 1 for ``broadcast``, ``reduce`` and ``sendrecv``.
    One rank moves nothing between ranks, so there its bus bandwidth is not applicable, and not 0.
    Raises ValueError for an operation without a factor.
    """
    _check_ranks(operation, ranks)
    if ranks == 1:
        return None
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in SHARED_OUT else 1.0


def algbw_gbs(size_bytes: int, seconds: float) -> float:
    """The algorithm bandwidth in GB/s: ``S / t / 1e9``, with S of :func:`total_bytes`.

    Raises ValueError if the time is not above 0.
    """
    if not seconds > 0:
        raise ValueError(f"a bandwidth needs a time above 0 s, not {seconds}")
    return size_bytes / seconds / 1e9


def busbw_gbs(operation: str, size_bytes: int, seconds: float, ranks: int) -> float | None:
    """The bus bandwidth in GB/s, ``algbw * bus_factor``; None where it is not applicable.

    Raises ValueError as :func:`algbw_gbs` and :func:`bus_factor` do.
    """
    factor = bus_factor(operation, ranks)
    algbw = algbw_gbs(size_bytes, seconds)
    return None if factor is None else algbw * factor


def _check_ranks(operation: str, ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a collective has at least one rank, not {ranks}")
    if operation not in OPERATIONS:
        raise ValueError(f"there is no bus bandwidth factor for {operation!r}")
