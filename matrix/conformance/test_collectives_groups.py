"""Collectives: ranks outside of a group, meshes, worlds that start again, and calls with a root: of
one rank, undefined, and refused.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case, refused
from portagpu.suites.conformance.ranks import (
    check_each_rank,
    json_values,
    payload,
    rank_tensor,
    total,
)

COLLECTIVES = Capability.COLLECTIVES


def _sum_as_non_member(rank):
    import warnings

    import torch.distributed as dist

    group = dist.new_group([0])
    value = rank_tensor(rank, payload(rank.rank))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.all_reduce(value, group=group)
    return [json_values(value), bool(caught)]


@case(
    "collectives/not-a-member",
    spec="A call by a rank outside of the group changes nothing and warns.",
    capability=COLLECTIVES,
)
def test_not_a_member(world):
    expected = [[payload(0), False], [payload(1), True]]
    check_each_rank(world(2, _sum_as_non_member), expected, "a sum within rank 0 alone")


def _sum_along_mesh(rank):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(rank.gpu.device.type, (2, 2), mesh_dim_names=("outer", "inner"))
    found = []
    for name in ("outer", "inner"):
        value = rank_tensor(rank, [float(rank.rank)])
        dist.all_reduce(value, group=mesh.get_group(name))
        found.append(float(value))
    return [mesh.get_coordinate(), found]


@case(
    "collectives/device-mesh",
    spec="A mesh of two by two ranks sums along each of its dimensions.",
    capability=COLLECTIVES,
)
def test_device_mesh(world):
    # ranks 0 1 / 2 3: outer sums a column, inner sums a row
    expected = [
        [[0, 0], [2.0, 1.0]],
        [[0, 1], [4.0, 1.0]],
        [[1, 0], [2.0, 5.0]],
        [[1, 1], [4.0, 5.0]],
    ]
    found = [[list(place), sums] for place, sums in world(4, _sum_along_mesh)]
    check_each_rank(found, expected, "a mesh of two by two")


def _sum_after_second_init(rank, folder):
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/again", rank.world)
    # Gloo fails where a peer leaves the first group while this rank still joins it
    store.set(f"joined/{rank.rank}", "")
    store.wait([f"joined/{each}" for each in range(rank.world)])
    dist.destroy_process_group()
    dist.init_process_group(
        rank.gpu.comm.init_string, store=store, rank=rank.rank, world_size=rank.world
    )
    value = rank_tensor(rank, payload(rank.rank))
    dist.all_reduce(value)
    return json_values(value)


@case(
    "collectives/initialised-again",
    spec="After destroy_process_group() a world can be initialised again and works.",
    capability=COLLECTIVES,
)
def test_initialised_again(world, tmp_path):
    found = world(2, _sum_after_second_init, folder=str(tmp_path))
    check_each_rank(found, [total(2)] * 2, "a sum after a second initialisation")


def _broadcast(rank):
    import torch.distributed as dist

    value = rank_tensor(rank, payload(rank.rank))
    dist.broadcast(value, 0)
    return json_values(value)


@case(
    "collectives/broadcast-alone",
    spec="broadcast in a world of one rank changes nothing.",
    capability=COLLECTIVES,
)
def test_broadcast_alone(world):
    check_each_rank(world(1, _broadcast), [payload(0)], "a broadcast to itself")


def _reduce(rank):
    import torch.distributed as dist

    value = rank_tensor(rank, payload(rank.rank))
    dist.reduce(value, 0)
    return json_values(value)


@case(
    "collectives/reduce-elsewhere",
    spec="What reduce leaves in the buffers of the other ranks is not specified.",
    capability=COLLECTIVES,
    outcome="undefined",
)
def test_reduce_elsewhere(world, record):
    found = world(3, _reduce)
    kept = [rank for rank in (1, 2) if found[rank] == payload(rank)]
    record(f"ranks that kept their own values: {kept or 'none'}")


def _scatter_list_elsewhere(rank):
    import torch
    import torch.distributed as dist

    if rank.rank == 0:
        return "root"
    part = torch.zeros(1, device=rank.gpu.device)
    error = refused(
        lambda: dist.scatter(part, [part, part], src=0), ValueError, "a list on a rank without root"
    )
    return type(error).__name__


@case(
    "collectives/scatter-list-elsewhere",
    spec="A list of tensors to scatter on a rank that is not the root is refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_scatter_list_elsewhere(world):
    check_each_rank(world(2, _scatter_list_elsewhere), ["root", "ValueError"], "a list elsewhere")
