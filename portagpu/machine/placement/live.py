"""A DeviceMesh of the running world, by the links of the machines that its ranks are on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from portagpu.base.text import error_line
from portagpu.machine.placement.parallel_groups import arrange, mesh_of, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from portagpu.devices.contract import Backend


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank runs: its machine, and its device's PCI address, None where none is known.

    ``asked`` are the sizes that the rank was called with.
    """

    machine: str
    pci: str | None
    asked: tuple[int | None, ...]


def device_mesh(
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    *,
    gpu: Backend | None = None,
) -> DeviceMesh:
    """A mesh (pp, dp, tp) in which each tensor-parallel group is in the fastest domain.

    Every rank of the default group calls it, with an initialised group. ``gpu`` is the rank's
    device, by default the current one. Ranks keep their devices: the mesh, and not the visible
    devices, has the order. One rank of each machine reads that machine's links. Machines may differ
    and need equally many ranks.

    Raises ValueError, the same on every rank, for sizes that do not fit or links that cannot be
    read.

    Example::

        mesh = portagpu.machine.placement.device_mesh(tp=4)
        tensor_parallel_group = mesh["tp"].get_group()
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    if not dist.is_initialized():
        raise ValueError("device_mesh needs an initialised process group: call it after the init")
    if gpu is None:
        from portagpu.devices.registry import backend

        gpu = backend()
    rank, world = dist.get_rank(), dist.get_world_size()
    seat = Seat(_machine_id(), gpu.pci, (tp, pp, dp))
    seats = [seat] * world
    dist.all_gather_object(seats, seat)
    members = _by_machine(seats)
    mine = next(ranks for ranks in members if rank in ranks)
    try:
        # before anything is read, and the same on every rank
        shape = _shape(members, seats)
    except ValueError as error:
        raise ValueError(f"device_mesh: {error}") from None
    part: tuple[tuple[int, ...], str | None] = ((), None)
    if rank == mine[0]:
        here = [seats[each].pci for each in mine]
        try:
            part = (_arranged(mine, here, min(shape[0], len(mine))), None)
        except Exception as error:  # noqa: BLE001  # the others wait for this rank
            part = ((), f"rank {rank} cannot read the links of its machine: {error_line(error)}")
    parts: list[tuple[tuple[int, ...], str | None]] = [part] * world
    dist.all_gather_object(parts, part)
    problem = next((each[1] for each in parts if each[1] is not None), None)
    if problem is not None:
        raise ValueError(f"device_mesh: {problem}")
    ranks = [each for group in members for each in parts[group[0]][0]]
    mesh = torch.tensor(mesh_of(ranks, *shape))
    return DeviceMesh(gpu.device.type, mesh, mesh_dim_names=("pp", "dp", "tp"))


def _by_machine(seats: Sequence[Seat]) -> list[list[int]]:
    """The ranks of each machine, in the order of their first ranks."""
    found: dict[str, list[int]] = {}
    for rank, seat in enumerate(seats):
        found.setdefault(seat.machine, []).append(rank)
    return list(found.values())


def _shape(members: Sequence[Sequence[int]], seats: Sequence[Seat]) -> tuple[int, int, int]:
    tp, pp, dp = seats[0].asked
    for rank, seat in enumerate(seats):
        if seat.asked != seats[0].asked:
            raise ValueError(
                f"rank 0 asks for (tp, pp, dp) {seats[0].asked}, rank {rank} for {seat.asked}"
            )
    local = {len(ranks) for ranks in members}
    if len(local) > 1:
        first = next(ranks for ranks in members if len(ranks) == min(local))
        raise ValueError(
            f"machines have {min(local)} to {max(local)} ranks (rank {first[0]} is on one with "
            f"{min(local)}): start equally many on each"
        )
    return sizes(local.pop(), tp, pp, dp, len(members))


def _arranged(ranks: Sequence[int], devices: Sequence[str | None], size: int) -> tuple[int, ...]:
    """The ranks of this machine in the order of the mesh.

    Ranks keep their order where their devices are not known by address, or are shared.
    """
    if None in devices or len(set(devices)) < len(devices):
        return tuple(ranks)
    from portagpu.machine.inventory.sources import Live
    from portagpu.machine.placement.machine import graph_of_machine

    graph = graph_of_machine(Live())
    position = {each.key: number for number, each in enumerate(graph.places)}
    missing = [each for each in devices if each not in position]
    if missing:
        raise ValueError(f"no source shows the device {missing[0]}")
    own = graph.part([position[each or ""] for each in devices])
    return tuple(ranks[at] for at in arrange(own, size))


def _machine_id() -> str:
    """What ranks of one machine share, also in different containers, and other machines do not."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return socket.gethostname()
