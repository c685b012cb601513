"""The placement of a machine, live or recorded, and its JSON document."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import error_line
from portagpu.base.units import count
from portagpu.facts.host.cpu import read_cpu
from portagpu.facts.vendors import vendors
from portagpu.facts.visible import DeviceId, VisibilityError, environment_for
from portagpu.machine.inventory.gpu import product_target
from portagpu.machine.placement.graph import PlaceGraph, gpu_graph, numa_graph
from portagpu.machine.placement.orders import ring_edges, ring_order, rings, tree_order
from portagpu.machine.placement.parallel_groups import arrange, domains, groups, mesh_of, sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from portagpu.devices.contract import Backend
    from portagpu.facts.host.tree import Tree
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.sources import Machine
    from portagpu.machine.placement.graph import Edge
    from portagpu.machine.placement.orders import Ring
    from portagpu.machine.placement.orders import Tree as ReductionTree
    from portagpu.machine.placement.parallel_groups import Domain, Groups

SCHEMA: Final = "portagpu.placement/1"
_NODES: Final = "sys/devices/system/node"
_MAX_PLACES: Final = 256
_MAX_PROBLEMS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a machine's graph says of where ranks belong.

    ``groups`` is None where no sizes were asked for. ``environment`` has the variable that gives
    the devices the order of ``order``, None where none is needed or known.
    """

    graph: PlaceGraph
    domains: tuple[Domain, ...]
    ring: Ring
    rings: tuple[tuple[int, ...], ...]
    tree: ReductionTree
    groups: Groups | None
    environment: Mapping[str, str | None] | None

    @property
    def order(self) -> tuple[int, ...]:
        """The place of each local rank: that of the groups, else that of the ring."""
        return self.ring.order if self.groups is None else self.groups.order


def graph_of_machine(machine: Machine, assumed: Target | None = None) -> PlaceGraph:
    """The graph of a machine's GPUs, or of its NUMA nodes where it has none.

    :param machine: this machine, or a recording of one.
    :param assumed: a product whose facts are assumed for GPUs that cannot be identified.
    :raises ValueError: in one line, where neither is known, or there are too many GPUs.
    """
    cpu = read_cpu(machine.tree)
    topology = machine.topology()
    if not topology.gpus:
        if not any(each.cpus for each in cpu.numa_nodes):
            raise ValueError("no source shows a GPU or a NUMA node: there is no place for a rank")
        return numa_graph(cpu.numa_nodes, _distances(machine.tree))
    if len(topology.gpus) > _MAX_PLACES:
        raise ValueError(
            f"there are {len(topology.gpus)} GPUs: at most {_MAX_PLACES} of one machine are placed"
        )
    inventory = machine.inventory()
    targets: dict[str, Target] = {}
    divided = []
    by_pci = {gpu.pci: gpu for gpu in inventory.gpus if gpu.pci is not None}
    by_uuid = {gpu.uuid: gpu for gpu in inventory.gpus if gpu.uuid is not None}
    for node in topology.gpus:
        gpu = by_pci.get(node.pci or "") or by_uuid.get(node.key)
        target = assumed if gpu is None else product_target(gpu) or assumed
        if target is not None:
            targets[node.key] = target
        if gpu is not None and gpu.parts:
            divided.append(node.key)
    graph = gpu_graph(topology, targets=targets, numa_nodes=cpu.numa_nodes, assumed=assumed)
    remarks = [*graph.remarks, *map(str, inventory.problems[:_MAX_PROBLEMS])]
    if inventory.breaks_off:
        remarks.insert(0, "a source breaks off: there may be more GPUs than these")
    edges = graph.edges
    if divided and len(graph) > len(inventory.gpus):
        remarks.append(
            f"{count(len(divided), 'GPU')} divided into parts: each part is a place, and parts of "
            "one GPU share its links to others"
        )
        edges = {pair: replace(each, own=0) for pair, each in edges.items()}
    elif divided:
        remarks.append(
            f"{count(len(divided), 'GPU')} divided into parts ({', '.join(divided[:3])}): whole "
            "GPUs are placed, and ranks on parts of one GPU share its links"
        )
    return PlaceGraph(graph.places, edges, tuple(remarks))


def place(
    graph: PlaceGraph,
    *,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    nodes: int = 1,
) -> Placement:
    """Where ranks belong on ``nodes`` machines like this one.

    :param graph: the links of one machine.
    :param tp: ranks of a tensor-parallel group; None is 1, or what ``pp`` and ``dp`` leave.
    :param pp: pipeline stages; None is 1, or what ``tp`` and ``dp`` leave.
    :param dp: data-parallel replicas; None is the ranks that are left.
    :param nodes: how many such machines there are.
    :returns: rings, trees and domains over the graph, and groups where a size or several nodes are
        given.
    :raises ValueError: for sizes that do not fit.
    :raises MissingDependency: without networkx.
    """
    asked = any(each is not None for each in (tp, pp, dp)) or nodes > 1
    found = groups(graph, tp, pp, dp, nodes) if asked else None
    ring = ring_order(graph)
    order = ring.order if found is None else found.order
    return Placement(
        graph=graph,
        domains=domains(graph),
        ring=ring,
        rings=rings(graph),
        tree=tree_order(graph),
        groups=found,
        environment=_environment(graph, order),
    )


def document(found: Placement) -> dict[str, Any]:
    """Plain values. Positions count ``places``; bandwidths are bytes a second, one way."""
    graph = found.graph
    return {
        "schema": SCHEMA,
        "places": [
            {
                "key": each.key,
                "name": each.name,
                "kind": "gpu" if each.is_gpu else "numa",
                "numa_node": each.numa_node,
                "cpus": each.cpus,
                "nics": [{"name": name, "path": path} for name, path in each.nics],
                "network_bytes_s": each.network_bytes_s,
            }
            for each in graph.places
        ],
        "edges": [_edge(each) for each in graph.edges.values()],
        "domains": [
            {
                "places": list(each.places),
                "slowest": _edge(each.slowest),
                "complete": each.complete,
            }
            for each in found.domains
        ],
        "ring": {
            "order": list(found.ring.order),
            "edges": [_edge(each) for each in ring_edges(graph, found.ring.order)],
            "slowest": _edge(found.ring.slowest),
            "identity_slowest": _edge(found.ring.identity),
            "basis": found.ring.basis,
        },
        "separate_rings": [list(each) for each in found.rings],
        "tree": {
            "root": found.tree.root,
            "parents": list(found.tree.parents),
            "depth": found.tree.depth,
            "slowest": _edge(found.tree.slowest),
            "bound": _edge(found.tree.bound),
        },
        "groups": _groups(found.groups),
        "order": list(found.order),
        "environment": None if found.environment is None else dict(found.environment),
        "remarks": list(graph.remarks),
    }


def _edge(edge: Edge | None) -> dict[str, Any] | None:
    if edge is None:
        return None
    return {
        "a": edge.a,
        "b": edge.b,
        "path": edge.word,
        "kind": edge.kind,
        "level": edge.level,
        "bandwidth_bytes_s": edge.bandwidth_bytes_s,
        "source": edge.source,
    }


def _groups(found: Groups | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "tp": found.tp,
        "pp": found.pp,
        "dp": found.dp,
        "nodes": found.nodes,
        "mesh_dim_names": ["pp", "dp", "tp"],
        "order": list(found.order),
        "mesh": found.mesh,
        "tensor": found.tensor,
        "pipeline": found.pipeline,
        "data": found.data,
        "slowest": _edge(found.slowest),
        "findings": list(found.findings),
    }


def _environment(graph: PlaceGraph, order: Sequence[int]) -> Mapping[str, str | None] | None:
    """The variable of visible devices, by the vendor's table; None for several vendors."""
    makers = {each.vendor for each in graph.places}
    declared = vendors().get(makers.pop() or "") if len(makers) == 1 else None
    if declared is None or declared.masks is None or list(order) == sorted(order):
        return None
    try:
        changes = environment_for([DeviceId(each) for each in order], declared.masks.name)
    except VisibilityError:
        return None
    return {name: value for name, value in changes.items() if value is not None}


def _distances(tree: Tree) -> dict[int, list[int]]:
    """The firmware's distances of each NUMA node to all, by node."""
    found = {}
    for name in tree.names(_NODES, r"node\d{1,9}"):
        words = (tree.text(f"{_NODES}/{name}/distance") or "").split()
        if words and all(word.isdecimal() and len(word) < 10 for word in words):
            found[int(name.removeprefix("node"))] = [int(word) for word in words]
    return found


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

    Every rank of the default group calls it, with an initialised group. Ranks keep their devices:
    the mesh, and not the visible devices, has the order. One rank of each machine reads that
    machine's links. Machines may differ, and all need the same number of ranks.

    :param tp: ranks of a tensor-parallel group; None is 1, or what ``pp`` and ``dp`` leave.
    :param pp: pipeline stages; None is 1, or what ``tp`` and ``dp`` leave.
    :param dp: data-parallel replicas; None is the ranks that are left.
    :param gpu: this rank's device; by default the current one.
    :returns: torch's mesh over all ranks.
    :raises ValueError: the same on every rank, for sizes that do not fit or links that cannot be
        read.

    Example::

        mesh = portagpu.placement.device_mesh(tp=4)
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
