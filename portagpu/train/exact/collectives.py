"""Collectives of integers: every rank knows what all ranks send, and checks every element.

They run in a process group of ranks (``torch.distributed``); a process without one refuses them.
All ranks have to draw from the same seed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.judge import SIGNIFICANT_BITS, check_subset
from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_COUNT: Final = 1 << 12
"""Elements that a rank sends to each rank, times ``scale``."""
_LIMITS: Final = {"float32": 1 << 12, "bfloat16": 1 << 3, "int64": 1 << 30}
"""The largest integer that a rank sends where the sums of all ranks allow it."""

_Made = tuple["Callable[[], torch.Tensor]", "torch.Tensor"]


class _Ranks:
    """What each rank sends: integers of shape (ranks, count)."""

    def __init__(self, dtype: str, gpu: Backend, draws: Draws, scale: int) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.kind: torch.dtype = getattr(torch, dtype)
        self.count = _COUNT * scale
        bits = SIGNIFICANT_BITS[dtype] - 1
        limit = min(_LIMITS[dtype], max((1 << bits) // self.world, 1))
        check_subset(float(limit * self.world), bits, f"a sum in {dtype}")
        self.all = [
            draws.integers(f"rank {each}", (self.world, self.count), -limit, limit)
            for each in range(self.world)
        ]
        self.ours = self.all[self.rank].to(self.kind)

    def empty(self, rows: int) -> torch.Tensor:
        """Room for ``rows`` times ``count`` results, of ones: an untouched one is seen."""
        import torch

        return torch.full((rows, self.count), 1, dtype=self.kind, device=self.ours.device)

    def sums(self) -> torch.Tensor:
        """The sums over ranks, of shape (ranks, count)."""
        import torch

        return torch.stack(self.all).sum(0).to(self.kind)


def _all_reduce(ranks: _Ranks) -> _Made:
    import torch.distributed as dist

    def reduced() -> torch.Tensor:
        values = ranks.ours.clone()
        dist.all_reduce(values)
        return values

    return reduced, ranks.sums()


def _all_gather(ranks: _Ranks) -> _Made:
    import torch
    import torch.distributed as dist

    sent = ranks.ours[0].contiguous()

    def gathered() -> torch.Tensor:
        found = ranks.empty(ranks.world)
        dist.all_gather(list(found), sent)
        return found

    return gathered, torch.stack([each[0] for each in ranks.all]).to(ranks.kind)


def _reduce_scatter(ranks: _Ranks) -> _Made:
    import torch.distributed as dist

    def scattered() -> torch.Tensor:
        found = ranks.empty(1)
        dist.reduce_scatter_tensor(found, ranks.ours)
        return found

    return scattered, ranks.sums()[ranks.rank : ranks.rank + 1]


def _all_to_all(ranks: _Ranks) -> _Made:
    import torch
    import torch.distributed as dist

    def exchanged() -> torch.Tensor:
        found = ranks.empty(ranks.world)
        dist.all_to_all_single(found, ranks.ours)
        return found

    return exchanged, torch.stack([each[ranks.rank] for each in ranks.all]).to(ranks.kind)


_OPERATIONS: Final = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


def _make(name: str, dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    ranks = _Ranks(dtype, gpu, draws, scale)
    compute, expected = _OPERATIONS[name](ranks)
    return Expected(compute, expected, ranks.ours.numel())


def _refuses(dtype: str, gpu: Backend) -> str:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return "it needs two devices or more that a communication library joins"
    return lacks(dtype, gpu)


PROBES: Final = tuple(
    Probe(
        f"collectives/{dtype}[{name}]", dtype, partial(_make, name, dtype), partial(_refuses, dtype)
    )
    for dtype in _LIMITS
    for name in _OPERATIONS
)
