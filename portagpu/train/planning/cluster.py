"""The machines that a plan is for: how many GPUs of which target, and how they are joined."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import Unsupported
from portagpu.devices.collectives.choice import choose
from portagpu.devices.collectives.cost import MAX_GBS, MIN_GBS, Hardware, Question
from portagpu.devices.discovery import cost_model_for
from portagpu.facts.nccl_tests.model import bus_factor

if TYPE_CHECKING:
    from portagpu.devices.collectives.cost import CostModel
    from portagpu.facts.targets import Target

MOST_RANKS: Final = 1 << 16
_MOST_BYTES: Final = 1 << 50
_GB: Final = 1e9
_BOARD: Final = 8
"""GPUs of a machine where nobody says how many: those of the usual boards (OAM, SXM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``nodes`` machines of ``local`` GPUs of one target.

    ``domain`` is how many GPUs the fastest links of a machine join. ``nic_gbs`` is what one GPU
    can send to the network, in GB/s. ``memory`` has the bytes of one GPU. ``remarks`` say what was
    assumed. Raises ValueError for impossible sizes.
    """

    target: Target
    nodes: int
    local: int
    domain: int
    memory: float
    nic_gbs: float | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.nodes, self.local, self.domain) < 1 or self.domain > self.local:
            raise ValueError("machines have at least 1 GPU, and no domain larger than a machine")
        if self.world > MOST_RANKS:
            raise ValueError(f"{self.world:,} ranks: a plan is for at most {MOST_RANKS:,}")
        if not 0 < self.memory <= _MOST_BYTES:
            raise ValueError("a GPU has more than 0 bytes of memory, and at most 1 PiB")
        if self.nic_gbs is not None and not MIN_GBS <= self.nic_gbs <= MAX_GBS:
            raise ValueError(f"a network's bandwidth is from {MIN_GBS:g} to {MAX_GBS:,.0f} GB/s")
        if self.nodes > 1 and self.nic_gbs is None:
            raise ValueError(
                f"{self.nodes} machines need a network: give what one GPU can send, in GB/s "
                "(--nic-gbs 50 for 400 Gb/s)"
            )

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.nodes * self.local


def cluster_of(
    target: Target,
    world: int,
    *,
    nodes: int | None = None,
    domain: int | None = None,
    nic_gbs: float | None = None,
    memory: float | None = None,
) -> Cluster:
    """``world`` GPUs of a target; what is None follows from its facts or is assumed.

    Raises ValueError for a world that machines cannot hold, and where nobody says how much memory
    a GPU has.
    """
    if not 0 < world <= MOST_RANKS:
        raise ValueError(f"a world has at least 1 rank and at most {MOST_RANKS:,}, not {world:,}")
    remarks = []
    if nodes is None:
        nodes = -(-world // _BOARD)
        if nodes > 1:
            remarks.append(f"machines of {world // nodes} GPUs are assumed")
    if nodes < 1 or world % nodes:
        raise ValueError(
            f"{world} ranks cannot be spread evenly over {nodes} machines: give a number of "
            "machines (--nodes) that divides the ranks"
        )
    if memory is None:
        memory = target.value("memory.reported")
        if memory is None and (sold := target.value("memory.size")) is not None:
            memory = sold * _GB
    if memory is None:
        raise ValueError(f"the target {target.id} has no memory size: give a GPU's (--memory)")
    local = world // nodes
    if domain is None:
        topology, links = target.value("link.topology"), target.value("link.count")
        domain = 1 if topology is None else local
        if topology is None and local > 1:
            remarks.append(f"no fact joins the GPUs of {target.id}: they are taken to be apart")
        elif topology == "mesh" and links:
            # each link leads to one other GPU
            domain = min(local, links + 1)
    return Cluster(
        target=target,
        nodes=nodes,
        local=local,
        domain=min(domain, local),
        memory=float(memory),
        nic_gbs=nic_gbs,
        remarks=tuple(remarks),
    )


class Network:
    """Times of collectives on a cluster, by the model of ``portagpu collectives choose``.

    What that model does not cover is a wire's time: bytes through the slowest link. ``bases`` has
    what the answers were based on.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bases: dict[str, None] = {}
        self._hardware = Hardware.of_target(cluster.target)
        self._model: CostModel | None = cost_model_for(cluster.target.vendor)
        # a search asks the same again and again
        self.seconds = cache(self._seconds)

    def _seconds(self, operation: str, size: int, ranks: int, inner: int) -> float | None:
        """Seconds of one call over ``ranks`` that are ``inner`` ranks apart; None if not known."""
        if ranks == 1 or size < 1:
            return 0.0
        local = math.gcd(ranks, max(1, self.cluster.local // inner))
        nodes = ranks // local
        question = Question(
            operation=operation,
            size_bytes=size,
            ranks=ranks,
            nodes=nodes,
            hardware=self._hardware,
            nics=local if nodes > 1 else None,
            nic_gbs=self.cluster.nic_gbs if nodes > 1 else None,
        )
        try:
            found = choose(question, self._model)
        except (Unsupported, ValueError):
            return self._wire(operation, size, ranks, nodes)
        self.bases[str(found.basis)] = None
        return found.best.time_us / 1e6

    def _wire(self, operation: str, size: int, ranks: int, nodes: int) -> float | None:
        """Bytes through the slowest link; those of an all-to-all leave a machine in part only."""
        local, nic = ranks // nodes, self.cluster.nic_gbs
        link = self._link(local) if local > 1 else None
        if (nodes > 1 and nic is None) or (local > 1 and link is None):
            return None
        self.bases["wire: bytes through the slowest link, without latency"] = None
        if operation == "all_to_all":
            inside = size * (local - 1) / ranks / link if link else 0.0
            outside = size * (ranks - local) / ranks / nic if nodes > 1 and nic else 0.0
            return max(inside, outside) / _GB
        slowest = nic if nodes > 1 else link
        return size * (bus_factor(operation, ranks) or 0.0) / ((slowest or math.inf) * _GB)

    def _link(self, ranks: int) -> float | None:
        """GB/s of one GPU to the others of its machine, in one direction."""
        of, value = self._hardware, self.cluster.target.value
        if value("link.topology") == "mesh" and of.links and of.link_gbs:
            return of.link_gbs * min(ranks - 1, of.links)
        found = of.all_links_gbs or value("host_link.per_direction")
        return None if found is None else float(found)
