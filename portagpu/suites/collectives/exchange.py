"""One collective with its buffers, out of place or in place. Needs torch.

torch has ``all_reduce``, ``broadcast`` and ``reduce`` in place alone. An ``all_to_all`` or
``sendrecv`` in place has no defined result: nccl-tests does not check it either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from portagpu.devices.collectives.torch_names import all_gather_single, reduce_scatter_single
from portagpu.facts.nccl_tests.model import SHARED_OUT

ROOT: Final = 0
_BOTH: Final = ("out_of_place", "in_place")
PLACES: Final = {
    "all_reduce": _BOTH[1:],
    "broadcast": _BOTH[1:],
    "reduce": _BOTH[1:],
    "all_gather": _BOTH,
    "reduce_scatter": _BOTH,
    "gather": _BOTH,
    "scatter": _BOTH,
    "all_to_all": _BOTH[:1],
    "sendrecv": _BOTH[:1],
}
"""Where each operation can put its result; the names are those of ``perf_tables``."""

_TORCH_OPS: Final = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN", "avg": "AVG"}
_POISON: Final = 0xA5


@dataclass(slots=True)
class Exchange:
    """The buffers of one rank. In place, one is a part of the other, or both are the same."""

    operation: str
    redop: str
    rank: int
    world: int
    count: int
    """As ``portagpu.facts.nccl_tests.model.total_bytes`` takes it."""
    sent: torch.Tensor
    received: torch.Tensor

    @classmethod
    def make(
        cls,
        operation: str,
        redop: str,
        place: str,
        count: int,
        dtype: torch.dtype,
        device: torch.device,
        rank: int,
        world: int,
    ) -> Exchange:
        """Buffers that are not filled yet."""

        def empty(shares: int) -> torch.Tensor:
            # not every dtype can be filled where every device has memory for it
            size = (shares * count * dtype.itemsize,)
            return torch.empty(size, dtype=torch.uint8, device=device).view(dtype)

        whole = world if operation in SHARED_OUT else 1
        sends_whole = operation in ("reduce_scatter", "all_to_all", "scatter")
        receives_whole = operation in ("all_gather", "all_to_all", "gather")
        sent = empty(whole if sends_whole else 1)
        received = empty(whole if receives_whole else 1)
        own = slice(rank * count, (rank + 1) * count)
        at_root = operation not in ("gather", "scatter") or rank == ROOT
        if place == "in_place" and at_root:
            if receives_whole:
                sent = received[own]
            elif sends_whole:
                received = sent[own]
            else:
                received = sent
        return cls(operation, redop, rank, world, count, sent, received)

    def fill(self, values: torch.Tensor) -> None:
        """Put ``values`` into what this rank sends, and nonsense where it receives."""
        for each in (self.received, self.sent):
            each.view(torch.uint8).fill_(_POISON)
        if self.sends:
            self.sent.view(torch.uint8).copy_(values.view(torch.uint8))

    def clear(self) -> None:
        """Zeros, which stay zeros however often they are reduced: for timing."""
        for each in (self.received, self.sent):
            each.view(torch.uint8).zero_()

    @property
    def sends(self) -> bool:
        """Whether what this rank has goes anywhere."""
        return self.operation not in ("broadcast", "scatter") or self.rank == ROOT

    @property
    def receives(self) -> bool:
        """Whether what this rank holds afterwards is defined."""
        return self.operation not in ("reduce", "gather") or self.rank == ROOT

    def parts(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """The share of each rank in ``whole``."""
        return [whole[at * self.count : (at + 1) * self.count] for at in range(self.world)]


def perform(exchange: Exchange) -> None:
    """One call of the collective; it raises what torch and the library raise."""
    sent, received, at_root = exchange.sent, exchange.received, exchange.rank == ROOT
    operation = exchange.operation
    reduction = getattr(dist.ReduceOp, _TORCH_OPS[exchange.redop]) if exchange.redop else None
    if operation == "all_reduce":
        dist.all_reduce(received, op=reduction)
    elif operation == "reduce":
        dist.reduce(received, dst=ROOT, op=reduction)
    elif operation == "reduce_scatter":
        reduce_scatter_single(received, sent, op=reduction)
    elif operation == "broadcast":
        dist.broadcast(received, src=ROOT)
    elif operation == "all_gather":
        all_gather_single(received, sent)
    elif operation == "all_to_all":
        dist.all_to_all_single(received, sent)
    elif operation == "gather":
        dist.gather(sent, exchange.parts(received) if at_root else None, dst=ROOT)
    elif operation == "scatter":
        dist.scatter(received, exchange.parts(sent) if at_root else None, src=ROOT)
    else:
        after, before = ((exchange.rank + step) % exchange.world for step in (1, -1))
        calls = [
            dist.P2POp(dist.isend, sent, after),
            dist.P2POp(dist.irecv, received, before),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
