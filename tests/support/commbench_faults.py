"""What ranks run in the tests of verify: the sweep with one thing broken.

Each puts a faulty collective in the place of the real one and runs the sweep as it is.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from portagpu.suites.collectives import ranks
from portagpu.suites.collectives import ranks as library

_right = library.perform
_NAP_S = 300.0


def _sweep(rank: Any, perform: Any, arguments: dict[str, Any]) -> Any:
    library.perform = perform
    return ranks.sweep(rank, **arguments)


def drops_the_last_rank(rank: Any, **arguments: Any) -> Any:
    def perform(exchange: Any) -> None:
        if rank.rank == rank.world - 1:
            exchange.sent.view(torch.uint8).zero_()
        _right(exchange)

    return _sweep(rank, perform, arguments)


def _flip_a_bit(exchange: Any) -> None:
    if exchange.received.numel() > 5:
        exchange.received.view(torch.uint8)[5 * exchange.received.itemsize] ^= 1


def changes_an_element(rank: Any, **arguments: Any) -> Any:
    def perform(exchange: Any) -> None:
        _right(exchange)
        _flip_a_bit(exchange)

    return _sweep(rank, perform, arguments)


def gives_rank_1_another_copy(rank: Any, **arguments: Any) -> Any:
    def perform(exchange: Any) -> None:
        _right(exchange)
        if rank.rank == 1:
            _flip_a_bit(exchange)

    return _sweep(rank, perform, arguments)


def reduces_in_bfloat16(rank: Any, **arguments: Any) -> Any:
    def perform(exchange: Any) -> None:
        narrow = exchange.received.to(torch.bfloat16)
        dist.all_reduce(narrow, op=getattr(dist.ReduceOp, library._TORCH_OPS[exchange.redop]))
        exchange.received.copy_(narrow)

    return _sweep(rank, perform, arguments)


def rounds_sums_twice_as_often(rank: Any, **arguments: Any) -> Any:
    """Whole numbers come out right; random ones are further off than any order explains."""

    def perform(exchange: Any) -> None:
        _right(exchange)
        found = exchange.received
        random = found != found.round()
        exchange.received.copy_(torch.where(random, found * (1 + 2.0**-19), found))

    return _sweep(rank, perform, arguments)


def averages_by_the_sum(rank: Any, **arguments: Any) -> Any:
    def perform(exchange: Any) -> None:
        redop = "sum" if exchange.redop == "avg" else exchange.redop
        _right(replace(exchange, redop=redop))

    return _sweep(rank, perform, arguments)


def does_nothing(rank: Any, **arguments: Any) -> Any:
    return _sweep(rank, lambda exchange: None, arguments)


def refuses_int32(rank: Any, **arguments: Any) -> Any:
    def perform(exchange: Any) -> None:
        if exchange.received.dtype is torch.int32:
            raise RuntimeError("no\nint32 today")
        _right(exchange)

    return _sweep(rank, perform, arguments)


def _late(rank: Any, what: Any, arguments: dict[str, Any]) -> Any:
    calls = 0

    def perform(exchange: Any) -> None:
        nonlocal calls
        calls += 1
        if rank.rank == 1 and calls == 3:
            what()
        _right(exchange)

    return _sweep(rank, perform, arguments)


def rank_1_dies(rank: Any, **arguments: Any) -> Any:
    return _late(rank, lambda: os.kill(os.getpid(), signal.SIGKILL), arguments)


def rank_1_hangs(rank: Any, **arguments: Any) -> Any:
    return _late(rank, lambda: time.sleep(_NAP_S), arguments)


def rank_1_stops(rank: Any, **arguments: Any) -> Any:
    return _late(rank, lambda: os.kill(os.getpid(), signal.SIGSTOP), arguments)


def rank_1_never_comes(rank: Any, **arguments: Any) -> Any:
    if rank.rank == 1:
        time.sleep(_NAP_S)
    return ranks.sweep(rank, **arguments)


def rank_1_raises(rank: Any, **arguments: Any) -> Any:
    def raise_() -> None:
        raise KeyError("lost its way")

    return _late(rank, raise_, arguments)
