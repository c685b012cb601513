"""Checks for checklists of the tests' own: what a gate can do, right and wrong."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from portagpu.runs.results.run import Verdict
from portagpu.runs.results.wording import exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result
    from portagpu.runs.world import Rank

FINE = exactly("fine", "these tests")


def good(context: Context) -> Iterator[Result]:
    yield context.judge("fine", True, "all is well", expected=FINE)


def bad(context: Context) -> Iterator[Result]:
    yield context.judge("fine", True, "all is well", expected=FINE)
    yield context.judge(
        "wrong", False, "device 3 is <b>cracked</b>", device="cuda:3", expected=FINE
    )


def twice(context: Context) -> Iterator[Result]:
    yield context.judge("fine", True, "all is well", expected=FINE)
    yield context.judge("fine", True, "all is well", expected=FINE)


def broken(context: Context) -> Iterator[Result]:
    yield context.judge("fine", True, "all is well", expected=FINE)
    raise RuntimeError("the check\nhas a fault")


def empty(context: Context) -> Iterator[Result]:
    yield from ()


def unverified(context: Context) -> Iterator[Result]:
    yield context.result("speed", Verdict.UNVERIFIED, value=3.0, unit="GB/s")


def interrupted(context: Context) -> Iterator[Result]:
    yield context.judge("fine", True, "all is well", expected=FINE)
    raise KeyboardInterrupt


def sleeps(context: Context) -> Iterator[Result]:
    yield context.judge("fine", True, "all is well", expected=FINE)
    outcome = context.tested.ranks.run(f"{__file__}:sleep", 2, backend="cpu", timeout_s=120)
    yield context.failure("world", outcome)


def rank_dies(context: Context) -> Iterator[Result]:
    outcome = context.tested.ranks.run(f"{__file__}:die_on_one", 2, backend="cpu", timeout_s=60)
    yield context.failure("world", outcome)


def rank_hangs(context: Context) -> Iterator[Result]:
    outcome = context.tested.ranks.run(
        f"{__file__}:hang_on_one", 3, backend="cpu", timeout_s=3
    )  # allowed: what it limits never ends
    yield context.failure("world", outcome)


def sleep(rank: Rank) -> None:
    time.sleep(120)


def die_on_one(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def hang_on_one(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    if rank.rank == 1:
        time.sleep(120)
    dist.all_reduce(torch.ones(4))
