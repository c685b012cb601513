"""Calls without buffers: barriers, Python objects, what a group says of itself, and refusals."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from portagpu.suites.search.collectives.values import bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.runs.world import Rank

_LATE_S = 0.003


def barrier(
    rank: Rank, group: Any, ranks: Sequence[int], late: int, how: str
) -> tuple[float, float]:
    """When this rank came and when it left; the rank at position ``late`` comes last."""
    if late % len(ranks) == ranks.index(rank.rank):
        time.sleep(_LATE_S)
    came = time.monotonic()
    work = dist.barrier(group=group, async_op=how != "sync", device_ids=rank.gpu.comm.device_ids)
    if work is not None:
        work.wait()
    return came, time.monotonic()


def thing(rank: int, seed: int) -> dict[str, Any]:
    """A Python object of that rank, as long as its number says."""
    return {"rank": rank, "seed": seed, "text": "ü" * (rank * (seed % 7)), "none": None}


def objects(rank: Rank, group: Any, ranks: Sequence[int], kind: str, root: int, seed: int) -> str:
    """Objects are gathered, broadcast and scattered as they are."""
    me, n = rank.rank, len(ranks)
    root_rank = ranks[root % n]
    everyone = [thing(each, seed) for each in ranks]
    found: Any = [None] * n
    wanted: Any = everyone
    device = rank.gpu.device
    if kind == "all_gather_object":
        dist.all_gather_object(found, thing(me, seed), group=group)
    elif kind == "gather_object":
        found = found if me == root_rank else None
        wanted = everyone if me == root_rank else None
        dist.gather_object(thing(me, seed), found, dst=root_rank, group=group)
    elif kind == "broadcast_object_list":
        wanted = [thing(root_rank, seed), [seed, "x"]]
        found = wanted.copy() if me == root_rank else [None, thing(me, seed)]
        dist.broadcast_object_list(found, src=root_rank, group=group, device=device)
    else:
        found, wanted = [None], [thing(me, seed)]
        given = everyone if me == root_rank else None
        dist.scatter_object_list(found, given, src=root_rank, group=group)
    return _difference_of_objects(found or [], wanted or [])


def _difference_of_objects(found: list[Any], wanted: list[Any]) -> str:
    """The first object that is another one: whose it is, where it has a rank."""
    if len(found) != len(wanted):
        return f"got {len(found)} objects, not {len(wanted)}"
    for place, (got, right) in enumerate(zip(found, wanted, strict=True)):
        if got != right:
            names = [
                f"the object of rank {each['rank']}" if isinstance(each, dict) else f"{each!r:.60}"
                for each in (got, right)
            ]
            if names[0] == names[1]:
                names = [f"{got!r:.120}", f"{right!r:.120}"]
            return f"got {names[0]} at place {place}, not {names[1]}"
    return ""


def all_gather_uneven(
    rank: Rank, group: Any, ranks: Sequence[int], dtype: str, columns: int, seed: int
) -> str:
    """portagpu's gather of tensors with different numbers of rows, of none too."""
    from portagpu.devices.collectives import helpers

    of = getattr(torch, dtype)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[of.itemsize]
    rows = [(seed >> 2 * each) % 4 for each in range(len(ranks))]
    patterns = bits(dtype, seed, len(ranks), 1, 4 * columns)

    def host(position: int) -> torch.Tensor:
        numbers = patterns[position][0][: rows[position] * columns]
        return torch.tensor(numbers, dtype=whole).reshape(rows[position], columns)

    mine = host(ranks.index(rank.rank)).to(rank.gpu.device)
    found = helpers.all_gather_uneven(mine.view(of), group)
    for position, each in enumerate(found):
        wanted = host(position)
        if tuple(each.shape) != tuple(wanted.shape):
            return f"got {list(each.shape)} from rank {ranks[position]}, not {list(wanted.shape)}"
        if not torch.equal(each.cpu().contiguous().view(whole), wanted):
            return f"got other elements of {dtype} than rank {ranks[position]} sent"
    return "" if len(found) == len(ranks) else f"got tensors of {len(found)} ranks"


def describe(rank: Rank, group: Any, ranks: Sequence[int]) -> str:
    """A group knows its size, its ranks, and each by both its numbers."""
    me = ranks.index(rank.rank)
    handle = group if group is not None else dist.group.WORLD
    found = {
        "this rank's position": (dist.get_rank(group), me),
        "the number of ranks": (dist.get_world_size(group), len(ranks)),
        "the ranks": (dist.get_process_group_ranks(handle), list(ranks)),
        "the positions of all": (
            [dist.get_group_rank(handle, each) for each in ranks] if handle else [],
            list(range(len(ranks))),
        ),
        "the ranks of all positions": (
            [dist.get_global_rank(handle, each) for each in range(len(ranks))] if handle else [],
            list(ranks),
        ),
    }
    for what, (got, wanted) in found.items():
        if got != wanted:
            return f"got {got} for {what}, not {wanted}"
    return ""


def refuse(rank: Rank, group: Any, ranks: Sequence[int], kind: str) -> str:
    """Calls that every library refuses with an error on every rank; the next one works."""
    n = len(ranks)

    def zeros(count: int) -> torch.Tensor:
        return torch.zeros(count, device=rank.gpu.device)

    every: dict[str, Callable[[], Any]] = {
        "BAND of floats": lambda: dist.all_reduce(zeros(4), op=dist.ReduceOp.BAND, group=group),
        "BOR of floats": lambda: dist.all_reduce(zeros(4), op=dist.ReduceOp.BOR, group=group),
        "BXOR of floats": lambda: dist.all_reduce(zeros(4), op=dist.ReduceOp.BXOR, group=group),
        "an output of one element more": lambda: dist.all_gather_into_tensor(
            zeros(n + 1), zeros(1), group=group
        ),
        "splits that do not add up": lambda: dist.all_to_all_single(
            zeros(n + 1), zeros(n + 1), [1] * n, [1] * n, group=group
        ),
        "a message to itself": lambda: dist.send(zeros(1), rank.rank, group=group),
    }
    try:
        every[kind]()
    except (RuntimeError, ValueError, TypeError):
        return ""
    return f"took {kind} without an error"


CALLS: dict[str, Callable[..., Any]] = {
    "barrier": barrier,
    "objects": objects,
    "all_gather_uneven": all_gather_uneven,
    "describe": describe,
    "refuse": refuse,
}
"""By a call's name in programs."""
REFUSED = (
    "BAND of floats",
    "BOR of floats",
    "BXOR of floats",
    "an output of one element more",
    "splits that do not add up",
    "a message to itself",
)
