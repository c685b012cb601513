"""What the ranks of the tests of ``device_mesh`` do: two machines of four GPUs, in one world."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from unittest.mock import patch

import torch

from portagpu.machine.placement import device_mesh
from tests.support.placement_graphs import topology

LINKS = " ".join(f"{a}-{b}x1" for a, b in combinations(range(8), 2) if a % 2 == b % 2)
"""Even GPUs are one hive, odd ones another."""


def interleaved(_machine):
    return topology([0] * 8, LINKS)


def broken(_machine):
    raise OSError("no such tree\nsecond line")


def mesh(
    rank, tp=None, pp=None, dp=None, per_machine=4, order=None, known=True, read="good", other=None
):
    """The mesh as nested lists, and this rank's tensor-parallel group; or the error."""
    local = rank.rank % per_machine
    at = (order or list(range(8)))[local]
    gpu = SimpleNamespace(pci=f"0000:{at:02x}:00.0" if known else None, device=torch.device("cpu"))
    graph = broken if read == "broken" and rank.rank == per_machine else interleaved
    if other is not None and rank.rank == 1:
        tp = other
    with (
        patch(
            "portagpu.machine.placement.machine._machine_id",
            lambda: f"machine {rank.rank // per_machine}",
        ),
        patch("portagpu.machine.placement.machine.graph_of_machine", graph),
    ):
        try:
            found = device_mesh(tp, pp, dp, gpu=gpu)
        except ValueError as error:
            return str(error)
    group = torch.distributed.get_process_group_ranks(found["tp"].get_group())
    return {"mesh": found.mesh.tolist(), "names": list(found.mesh_dim_names), "tp": group}


def plain(rank):
    """The mesh of the CPUs as they are."""
    found = device_mesh(tp=2)
    total = torch.ones(1)
    torch.distributed.all_reduce(total, group=found["tp"].get_group())
    return {"mesh": found.mesh.tolist(), "sum": total.item()}
