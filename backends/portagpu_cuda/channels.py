"""The channels that NCCL's search finds in a graph of the machine (``src/graph/search.cc``).

If the user does not give them, they are estimated from the number and kind of links: NVLink counts
in full, every GPU has its own share of the network ports below one PCIe switch, and PCIe without
NVLink has no other traffic. The addresses of the sources are in ``tables/cost_model.toml``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from portagpu.devices.collectives.cost import Graph, Input
from portagpu_torch_gpu.collective_costs import fit_count, search

MAX_HEADS: Final = 32
"""NCCL_MAX_NVLS_ARITY of src/include/device.h."""
MAX_CHANNELS: Final = 64
HOPPER: Final = 90
BLACKWELL: Final = 100


@dataclass(frozen=True, slots=True)
class Machine:
    """What the search sees. ``fabric_gbs`` is of all links of a GPU to the others of the job, None
    without NVLink between them; ``pair_gbs`` of the widest path between two GPUs."""

    nodes: int
    local: int
    """Ranks of a node."""
    capability: int
    fabric_gbs: float | None
    pair_gbs: float
    pci_gbs: float
    switched: bool
    nics: int
    nic_gbs: float
    inputs: tuple[Input, ...]

    @property
    def total_gbs(self) -> float:
        return self.pci_gbs if self.fabric_gbs is None else max(self.fabric_gbs, self.pci_gbs)

    @property
    def generation(self) -> int:
        """The index of tables by generation of GPUs."""
        return sum(self.capability >= least for least in (80, HOPPER, BLACKWELL))


def ring_graph(machine: Machine, speeds: list[float]) -> Graph:
    total, local = machine.total_gbs, machine.local
    if machine.nodes == 1:
        fits = [(each, fit_count(total, each)) for each in speeds]
        count, speed = search(fits, machine.pair_gbs, total)
    else:
        # a ring leaves the node from another GPU than the one where it came in: of n rings,
        # n * (local - 1) / local pass each GPU's links
        inside = math.inf if local == 1 else total * local / (local - 1)
        fits = [
            (each, min(_port_channels(machine, each), _count_or_all(inside, each)))
            for each in speeds
        ]
        count, speed = search(fits, _port(machine), total if local > 1 else math.inf)
    count, speed = _duplicate(count, speed, machine)
    faster = [each for each in speeds if each > speed and each * count <= total]
    if machine.nodes == 1 and faster:
        speed = max(faster)
    return Graph(count, speed, speed, "estimated from links and ports, as the search tries speeds")


def _duplicate(count: int, speed: float, machine: Machine) -> tuple[int, float]:
    """``ncclTopoDupChannels``."""
    if speed < 25 or (machine.capability > 80 and speed < 50 and count > 4):
        return count, speed
    most = min(2 * count, MAX_CHANNELS // 2)
    return most, speed / -(-most // count)


def tree_graph(machine: Machine, speeds: list[float], ring: Graph) -> Graph:
    """As many channels as the ring has, within the node up to twice as fast as between nodes."""
    local, count = machine.local, ring.channels
    inside = machine.total_gbs * (local / (local - 1) if local > 1 else math.inf)
    how = "estimated as for the ring"
    if machine.nodes == 1:
        speed = next((s for s in speeds if s <= machine.pair_gbs and s * count <= inside), 0.1)
        return Graph(count, speed, speed, how)
    if not machine.nic_gbs:
        return Graph(count, ring.intra_gbs, ring.inter_gbs, ring.how)
    between = next(
        (
            s
            for s in speeds
            if s <= _port(machine) and _port_channels(machine, s) >= count and s * count <= inside
        ),
        ring.inter_gbs,
    )
    within = between
    for faster in reversed([s for s in speeds if s > between]):
        if within >= 2 * between or (local > 1 and faster * count > inside):
            break
        within = faster
    return Graph(count, within, between, how)


def nvls_graph(machine: Machine, speeds: list[float]) -> Graph:
    """Each GPU is the head of one channel, and sends once for each head and twice for its own."""
    local = machine.local
    none = Graph(0, 0.0, 0.0, "estimated: no NVSwitch that reduces")
    if not machine.switched or machine.fabric_gbs is None or machine.capability < HOPPER:
        return none
    heads = min(local, MAX_HEADS, machine.nics if machine.nodes > 1 else local)
    limit = _port(machine) if machine.nodes > 1 and machine.nic_gbs else machine.fabric_gbs
    best, speed = 0, 0.0
    for each in speeds:
        if each > limit or (best and each / speed <= 0.49):
            continue
        count = min(heads, fit_count(machine.fabric_gbs, each) - 1)
        if machine.nodes == 1 and count < heads:
            continue
        if count > best or count * each > best * speed:
            best, speed = count, each
        if best == heads:
            break
    if best < 1:
        return none
    between = speed
    for faster in reversed([s for s in speeds if s > speed]):
        if between >= 2 * speed or (machine.nodes > 1 and faster > limit):
            break
        between = faster
    return Graph(best, speed, between, "estimated from links and ports, as the search tries speeds")


def _port(machine: Machine) -> float:
    """The widest path from a GPU to a network port."""
    return min(machine.nic_gbs, machine.pci_gbs)


def _port_channels(machine: Machine, speed: float) -> int:
    """Channels of that speed that the ports carry; the search compares whole GB/s."""
    return machine.nics * fit_count(machine.nic_gbs, max(int(speed), 0.1))


def _count_or_all(total: float, speed: float) -> int:
    return MAX_CHANNELS if math.isinf(total) else fit_count(total, speed)
