"""Collectives: large buffers.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import NotHere, case
from portagpu.suites.conformance.ranks import (
    check_each_rank,
)

COLLECTIVES = Capability.COLLECTIVES


def _sum_large_tensor(rank, count):
    import torch
    import torch.distributed as dist

    value = torch.full((count,), float(rank.rank + 1), device=rank.gpu.device)
    dist.all_reduce(value)
    return [float(value.min()), float(value.max())]


@case(
    "collectives/megabytes",
    spec="all_reduce of 16 MiB has the sum in every element.",
    capability=COLLECTIVES,
)
def test_megabytes(world):
    check_each_rank(
        world(2, _sum_large_tensor, count=1 << 22), [[3.0, 3.0]] * 2, "the least and largest sum"
    )


GIB = 1 << 30
HUGE = (1 << 32) + 16


LOOKED_AT = [0, 12345, (1 << 31) - 1, 1 << 31, (1 << 31) + 7, (1 << 32) - 1, 1 << 32]
LOOKED_AT += [HUGE - 2, HUGE - 1]


def _broadcast_huge_tensor(rank):
    """Broadcast from rank 1; the bytes at both ends and at both sides of 2^31 and 2^32."""
    import torch
    import torch.distributed as dist

    # a CPU gives memory to zeros when they are written, so the sender's take next to none
    value = torch.zeros(HUGE, dtype=torch.uint8, device=rank.gpu.device)
    if rank.rank == 1:
        marks = torch.arange(11, 11 + len(LOOKED_AT), dtype=torch.uint8)
        value[LOOKED_AT] = marks.to(rank.gpu.device)
    dist.broadcast(value, 1)
    return value[LOOKED_AT].tolist()


@case(
    "collectives/huge-buffer",
    spec="A broadcast of more than 2^31 elements and more than 4 GiB reaches each of them.",
    capability=COLLECTIVES,
    default=False,
    timeout_s=180.0,
    does_not_show="every element: it looks at both ends and at both sides of 2^31 and 2^32",
)
def test_huge_buffer(gpu, world):
    needed = (2 if gpu.plugin.shared else 1) * HUGE + 4 * GIB
    free = gpu.mem_get_info()[0]
    if free < needed:
        raise NotHere(f"needs {needed / GIB:.0f} GiB of free memory, and {free / GIB:.0f} are free")
    expected = list(range(11, 11 + len(LOOKED_AT)))
    check_each_rank(world(2, _broadcast_huge_tensor), [expected] * 2, f"some of {HUGE} bytes")
