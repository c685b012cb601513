"""Collectives: the helpers that do the same with every library, over the library here.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

import math

from portagpu.contract import Capability
from portagpu.suite import case
from portagpu.suite.dtypes import FLOATS
from portagpu.suite.ranks import (
    SEVERAL,
    check_each_rank,
    check_right_or_refused,
    json_values,
    payload,
    rank_tensor,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES


def _rows(rank):
    """As many rows of three as the rank's number, so that rank 0 has none."""
    return [payload(10 * rank + row, 3) for row in range(rank)]


def _gather_rows(rank, dtype):
    import torch

    from portagpu.collectives.helpers import all_gather_uneven

    mine = torch.empty(0, 3) if not rank.rank else torch.tensor(_rows(rank.rank))
    found = all_gather_uneven(mine.to(getattr(torch, dtype)).to(rank.gpu.device))
    return [json_values(each) for each in found]


@case(
    "collectives/helper-uneven-rows",
    spec="all_gather_uneven gives every rank the rows of all, of which rank 0 has none.",
    capability=COLLECTIVES,
    params={"dtype": ("float32", "int16", "float8_e4m3fn"), "n": SEVERAL},
)
def test_helper_uneven_rows(world, dtype, n):
    expected = [_rows(rank) for rank in range(n)]
    found = world(n, _gather_rows, dtype=dtype)
    check_each_rank(found, [expected] * n, f"gathered rows of {dtype}")


def _gather_what_differs(rank):
    import torch

    from portagpu.collectives.helpers import all_gather_uneven
    from portagpu.errors import CollectiveMismatch

    mine = torch.zeros(2, 3 + rank.rank, device=rank.gpu.device)
    try:
        all_gather_uneven(mine)
    except CollectiveMismatch as error:
        return str(error)
    return "nothing"


@case(
    "collectives/helper-uneven-rows-are-compared",
    spec="all_gather_uneven raises the same error on every rank where the rows differ.",
    capability=COLLECTIVES,
)
def test_helper_uneven_rows_are_compared(world):
    expected = (
        "all_gather_uneven: rank 1 has float32[2, 4], and rank 0 has float32[2, 3]: only the "
        "first dimension may differ"
    )
    check_each_rank(world(2, _gather_what_differs), [expected] * 2, "rows that differ")


GUARDED = (
    # the values of ranks 0, 1 and 2, their MAX and their MIN
    ((0.0, 1.0, 2.0), 2.0, 0.0),
    ((math.nan, 1.0, 2.0), math.nan, math.nan),
    ((0.0, math.nan, 2.0), math.nan, math.nan),
    ((0.0, 1.0, math.nan), math.nan, math.nan),
    ((-math.inf, math.inf, 0.0), math.inf, -math.inf),
    ((-1.0, -2.0, -0.5), -0.5, -2.0),
    ((-0.0, 0.0, -0.0), 0.0, -0.0),
)


def _reduce_with_nan(rank, op, dtype):
    import torch.distributed as dist

    from portagpu.collectives.helpers import all_reduce_with_nan

    value = rank_tensor(rank, [row[rank.rank] for row, _, _ in GUARDED], dtype)
    all_reduce_with_nan(value, getattr(dist.ReduceOp, op))
    return [str(each) for each in json_values(value)]


@case(
    "collectives/helper-nan-guard",
    spec="all_reduce_with_nan: NaN of any rank is everybody's, and -0.0 is below 0.0.",
    capability=COLLECTIVES,
    traps=("P20",),
    params={"op": ("MAX", "MIN"), "dtype": FLOATS},
)
def test_helper_nan_guard(world, op, dtype):
    expected = [str(high if op == "MAX" else low) for _, high, low in GUARDED]
    found = world(3, _reduce_with_nan, op=op, dtype=dtype)
    check_each_rank(found, [expected] * 3, f"{op} with NaN in {dtype}")


LARGE = {"bfloat16": 2.0**8, "float16": 2.0**11, "float32": 2.0**24}
"""The least number to which adding 1 changes nothing, and 2 does."""


def _reduce_wider(rank, dtype):
    from portagpu.collectives.helpers import all_reduce_wider

    values = [LARGE[dtype] if place == rank.rank else 1.0 for place in range(3)] + [1.0]

    def call():
        value = rank_tensor(rank, values, dtype)
        all_reduce_wider(value)
        return json_values(value)

    return value_or_refusal(call)


@case(
    "collectives/helper-wider-sum",
    spec="all_reduce_wider rounds a sum once; of float32 also where the device has float64.",
    capability=COLLECTIVES,
    params={"dtype": tuple(LARGE)},
)
def test_helper_wider_sum(world, dtype):
    expected = [[LARGE[dtype] + 2.0] * 3 + [3.0]] * 3
    judge = check_right_or_refused if dtype == "float32" else check_each_rank
    judge(world(3, _reduce_wider, dtype=dtype), expected, f"a wider sum of {dtype}")


def _move_bytes(rank, name, dtype):
    import torch

    from portagpu.collectives import helpers

    start = torch.arange(64, dtype=torch.uint8) + 64 * rank.rank
    mine = start.to(rank.gpu.device).view(getattr(torch, dtype))
    if name == "broadcast":
        found = mine
        helpers.broadcast_bytes(found, src=1)
    else:
        move = helpers.all_gather_bytes if name == "all-gather" else helpers.all_to_all_bytes
        found = torch.empty_like(mine.repeat(2) if name == "all-gather" else mine)
        move(found, mine)
    return found.view(torch.uint8).cpu().tolist()


@case(
    "collectives/helper-bytes",
    spec="Bytes of a dtype that the library may not know are moved as they are, NaN among them.",
    capability=COLLECTIVES,
    params={
        "name": ("broadcast", "all-gather", "all-to-all"),
        "dtype": ("float8_e4m3fn", "float8_e5m2", "int16"),
    },
)
def test_helper_bytes(world, name, dtype):
    first, second = list(range(64)), list(range(64, 128))
    expected = {
        "broadcast": [second, second],
        "all-gather": [first + second, first + second],
        "all-to-all": [first[:32] + second[:32], first[32:] + second[32:]],
    }[name]
    found = world(2, _move_bytes, name=name, dtype=dtype)
    check_each_rank(found, expected, f"{name} of the bytes of {dtype}")


def _compressed_gradients(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.collectives.compression import TopK, top_k_hook

    model = torch.nn.Linear(4, 1, bias=False).to(rank.gpu.device)
    comm = rank.gpu.comm
    wrapped = DistributedDataParallel(
        model, device_ids=comm.device_ids, output_device=comm.output_device
    )
    wrapped.register_comm_hook(TopK(wrapped, density=0.5), top_k_hook)
    mine = rank_tensor(rank, [[float(value) for value in payload(rank.rank, 4)]])
    found = []
    for _ in range(2):
        wrapped.zero_grad()
        wrapped(mine).sum().backward()
        found.append(json_values(model.weight.grad.reshape(-1)))
    return found


@case(
    "collectives/helper-top-k",
    spec="top_k_hook sends the two largest of four gradients, and the rest in the next step.",
    capability=COLLECTIVES,
)
def test_helper_top_k(world):
    # rank 0 has -5 -2 1 4 and keeps -2 1; with them it has -5 -4 2 4, and sends the first of equals
    # rank 1 has 2 5 -3 0 and keeps 2; with it it has 4 5 -3 0
    expected = [[-2.5, 2.5, -1.5, 2.0], [-0.5, 0.5, 0.0, 0.0]]
    check_each_rank(world(2, _compressed_gradients), [expected] * 2, "compressed gradients")
