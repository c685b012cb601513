"""NCCL's cost model, from its source: ``ncclTopoTuneModel`` and what it needs of the graph search.

The constants and the addresses of the sources are in ``tables/cost_model.toml``. Two parts:

- times of every algorithm and protocol (``src/graph/tuning.cc``), and what is enabled;
- the channels that the search finds in a graph of the machine (``channels.py``).

Imports neither torch nor a library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.collectives.cost import Graph, Input, Prediction, Question, Shots
from portagpu_cuda.channels import (
    BLACKWELL,
    HOPPER,
    MAX_CHANNELS,
    MAX_HEADS,
    Machine,
    nvls_graph,
    ring_graph,
    tree_graph,
)
from portagpu_torch_gpu.collective_costs import (
    ROOTED,
    SHARED,
    TableModel,
    candidates,
    graph_input,
    log2_floor,
    number_of_arch,
    ring_latency,
    steps,
    time_us,
    tree_latency,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OPTIONS: Final = {
    "cpu": ("intel", "amd", "other"),
    "nvls": ("on", "off"),
    "collnet": ("off", "on"),
    "pat": ("auto", "on", "off"),
}
"""Settings of the model; the first value is the default. ``cpu`` is the maker of the host's CPU,
and "other" any that is neither, such as one of Arm."""
_TREE_CORRECTIONS, _NVLS_TREE_CORRECTIONS = 23, 24
_DIRECT_RANKS: Final = 8
"""NCCL_MAX_DIRECT_ARITY + 1."""


class NcclModel(TableModel):
    """Times of NCCL's algorithms and protocols for one collective."""

    def predict(self, question: Question) -> Prediction:
        """Everything that is enabled by default for ``question``; raises as ``CostModel`` says."""
        settings = self.settings(question, _OPTIONS)
        machine = self._machine(question, settings)
        graphs = self._graphs(question, machine)
        times = _Times(self.table, question, settings, machine, graphs)
        found = candidates(question, [*times.enabled()])
        used = dict.fromkeys(each.algorithm for each in found)
        inputs = (*machine.inputs, *(graph_input(each, graphs[each]) for each in used))
        shots = None if question.algorithms else times.shots()
        return Prediction(candidates=found, inputs=inputs, shots=shots)

    def _machine(self, question: Question, settings: Mapping[str, str]) -> Machine:
        hardware = question.hardware
        assert hardware is not None  # noqa: S101 - settings() has refused it
        capability = number_of_arch(hardware.arch)
        links = self.table["links"]
        how = "given" if "cpu" in question.options else "estimated: not given"
        inputs = [Input("host CPU", settings["cpu"], how)]
        fabric = None
        local = question.ranks // question.nodes
        generation = _nearest(links["nvlink"], capability)
        raw = hardware.link_gbs or links["nvlink_raw"][generation]
        count, how = hardware.links, f"a fact of {hardware.target}"
        if count is None and hardware.all_links_gbs is not None:
            count = round(hardware.all_links_gbs / raw)
            how = f"estimated: all links have {hardware.all_links_gbs:g} GB/s, one has {raw:g}"
        bridge = "bridge" in (hardware.link_kind or "")
        if local > 1 and count and not (bridge and local > 2):
            speed = links["nvlink"][generation]
            fabric = count * speed
            inputs.append(Input("links", f"{count} x {speed:g} GB/s", how))
            inputs.append(Input("GPUs that the links join", str(local), "estimated: all of a node"))
        pair = fabric or 0.0
        if fabric is not None and not hardware.switched and local > 2:
            pair = fabric / (local - 1)
            inputs.append(
                Input("links of a pair", f"{pair:g} GB/s", "estimated: every pair has as many")
            )
        lane = links["pci_lane"].get(str(hardware.pcie_generation), 0.0)
        pci = lane * (hardware.pcie_lanes or 0)
        if not pci:
            # GB200 and GH200: the GPU reaches the CPU over NVLink-C2C, and ports over it
            pci = 48.0
            inputs.append(Input("host link", f"{pci:g} GB/s", "estimated: not a fact, as PCIe 5"))
        nics = question.nics or local
        nic = question.nic_gbs or 0.0
        if question.nodes > 1 and nic:
            how = "given" if question.nics else "estimated: one for each GPU"
            inputs.append(Input("network ports of a node", f"{nics} x {nic:g} GB/s", how))
        if local > 1 and fabric is None:
            inputs.append(
                Input("PCIe", f"{pci:g} GB/s", "estimated: all GPUs below one switch, no NVLink")
            )
        return Machine(
            question.nodes,
            local,
            capability,
            fabric,
            pair or pci,
            pci,
            hardware.switched,
            nics,
            nic,
            tuple(inputs),
        )

    def _graphs(self, question: Question, machine: Machine) -> Mapping[str, Graph]:
        """The graph of every algorithm; given ones stay, also for algorithms that share them."""
        given = question.graphs
        several = question.nodes > 1
        speeds = self.table["speeds"]["inter" if several else "intra"]
        tried = speeds[_nearest(speeds, machine.capability)]
        if several and not machine.nic_gbs:
            ring = given.get("Ring") or next(iter(given.values()))
        else:
            ring = given.get("Ring") or ring_graph(machine, tried)
        tree = given.get("Tree") or tree_graph(machine, tried, ring)
        nvls = given.get("NVLS") or given.get("NVLSTree") or nvls_graph(machine, tried)
        return {
            "Ring": ring,
            "Tree": tree,
            "PAT": given.get("PAT") or tree,
            "NVLS": nvls,
            "NVLSTree": given.get("NVLSTree") or nvls,
            "CollNetChain": given.get("CollNetChain") or tree,
            "CollNetDirect": given.get("CollNetDirect") or nvls,
        }


class _Times:
    """Latencies, bandwidths and what is enabled, for one question on one machine."""

    def __init__(
        self,
        table: Mapping[str, Any],
        question: Question,
        settings: Mapping[str, str],
        machine: Machine,
        graphs: Mapping[str, Graph],
    ) -> None:
        self.table, self.settings, self.machine, self.graphs = table, settings, machine, graphs
        self.operation, self.size = question.operation, question.size_bytes
        self.ranks, self.nodes, self.local = question.ranks, machine.nodes, machine.local
        self.ppn = question.ranks / machine.nodes
        self.by_nodes = min(self.nodes, 3) - 1
        self.intra = "fabric" if machine.fabric_gbs is not None else "pci"
        self.link = self.intra if self.nodes == 1 else "net"

    def enabled(self) -> Iterator[tuple[str, str, float]]:
        """(algorithm, protocol, time) of what has a bandwidth."""
        for algorithm in self.table["algorithms"]:
            for at, protocol in enumerate(self.table["protocols"]):
                if not self._is_enabled(algorithm, protocol):
                    continue
                bandwidth = self._bandwidth(algorithm, at)
                if bandwidth > 0:
                    latency = self._latency(algorithm, at)
                    latency, bandwidth = self._corrected(algorithm, protocol, latency, bandwidth)
                    yield algorithm, protocol, time_us(latency, self.size, bandwidth)

    def _is_enabled(self, algorithm: str, protocol: str) -> bool:
        """What ``ncclTopoTuneModel`` leaves out or disables, and ``updateCollCostTable``."""
        machine = self.machine
        reduces_all, shared = self.operation == "all_reduce", self.operation in SHARED
        collnet = self.settings["collnet"] == "on"
        graph = self.graphs[algorithm]
        simple = protocol == "Simple"
        if graph.channels < 1:
            return False
        if algorithm == "Ring":
            allowed = True
        elif self.operation in ROOTED:
            allowed = False
        elif algorithm == "Tree":
            allowed = reduces_all
        elif algorithm == "PAT":
            allowed = shared and simple and self._pat()
        elif algorithm in {"NVLS", "NVLSTree"}:
            allowed = simple and graph.channels > 1 and self.settings["nvls"] == "on"
            allowed &= reduces_all or self.local <= MAX_HEADS
            if algorithm == "NVLSTree":
                allowed &= reduces_all and self.nodes > 1
            else:
                allowed &= self.nodes == 1 or collnet
                # a network that gathers in its switches is not assumed
                allowed &= self.nodes == 1 or reduces_all
        else:
            allowed = collnet and simple and self.local <= _DIRECT_RANKS
            allowed &= reduces_all or (algorithm == "CollNetDirect" and self.nodes == 1)
            allowed &= algorithm == "CollNetChain" or machine.switched
        if protocol == "LL128" and allowed:
            # paths: up to one NVLink hop within the node; between nodes a PCIe switch is assumed
            allowed = machine.capability >= 70 and (self.intra == "fabric" or self.local == 1)
        return allowed

    def _pat(self) -> bool:
        setting = self.settings["pat"]
        return self.machine.capability >= 60 and (
            setting == "on" or (setting == "auto" and self.nodes == self.ranks)
        )

    def _most(self, name: str) -> float:
        """A bandwidth of the table, by generation and number of nodes."""
        return float(self.table["bandwidth"][name][self.machine.generation][self.by_nodes])

    def _bandwidth(self, algorithm: str, at: int) -> float:
        """``comm->bandwidths``: of the algorithm, not of the bus."""
        graph, protocol = self.graphs[algorithm], self.table["protocols"][at]
        channels, ppn, nodes = graph.channels, self.ppn, self.nodes
        reduces_all = self.operation == "all_reduce"
        collnet = algorithm.startswith("CollNet")
        speed = graph.intra_gbs if nodes <= 2 or collnet else graph.inter_gbs
        if algorithm in {"NVLS", "NVLSTree"}:
            efficiency = self.table["bandwidth"]["nvls_efficiency"][self.machine.generation]
            within = graph.intra_gbs * efficiency * (channels - 1) / channels
            within *= 2 if reduces_all else (ppn - 1) / ppn
            between = graph.inter_gbs * (2 if nodes <= 2 and algorithm == "NVLSTree" else 1)
            speed = min(within, between)
            if algorithm == "NVLSTree":
                speed = min(speed, self._most("nvls_tree_channel"))
        bus = channels * speed
        if algorithm == "Ring" and protocol == "LL":
            bus = min(self._ll_most(), bus * 0.5)
        elif algorithm == "Ring" and protocol == "LL128":
            bus = min(bus * 0.92, channels * self._most("ring_ll128_channel"))
        elif algorithm == "Tree":
            bus = min(bus * 0.92, channels * self._most("tree_channel"))
            if protocol == "LL":
                bus = min(bus / 3.8, self._ll_most())
            elif protocol == "LL128":
                share = 7 / 9 if nodes == 1 else 120 / 128
                bus = min(bus * share, channels * self._most("tree_ll128_channel"))
            if self._plain_tree():
                bus *= 0.85
        elif algorithm == "PAT":
            bus *= 0.75
        elif algorithm == "CollNetDirect":
            if reduces_all:
                factor = ppn / channels
                bus /= factor - (factor - 1) / 2
                bus *= 0.85 if self.machine.capability >= HOPPER else 1
            else:
                bus = ppn * min(graph.intra_gbs, graph.inter_gbs * 0.9)
        if algorithm != "Ring" and self.operation in SHARED:
            return bus
        if algorithm in {"Ring", "NVLS", "NVLSTree"}:
            return bus * self.ranks / steps(self.operation, self.ranks)
        return bus * 0.5

    def _plain_tree(self) -> bool:
        """Whether the search ends with NCCL_TOPO_PATTERN_TREE.

        It does with one GPU. From Hopper on it prefers a plain tree to wider paths, and a balanced
        one needs two GPUs below the PCIe switch of each port. The times in the log of
        NVIDIA/nccl#1453 have this factor.
        """
        hopper = self.machine.capability >= HOPPER
        return self.local == 1 or (hopper and self.nodes > 1 and self.machine.nics >= self.local)

    def _ll_most(self) -> float:
        """Within a node by the GPU, between nodes by the CPU."""
        row = self.machine.generation
        if self.nodes > 1:
            row = 1 if self.settings["cpu"] == "amd" else 0
        return float(self.table["bandwidth"]["ll_most"][row][self.by_nodes])

    def _latency(self, algorithm: str, at: int) -> float:
        """``comm->latencies``. Both transports of NCCL state a network latency of 0."""
        table, nodes, local = self.table, self.nodes, self.local
        base = table["base_latency"][algorithm][at]
        intra = table["link_latency"][self.intra][algorithm][at]
        of = "Tree" if self.ppn == 1 else algorithm
        inter = table["link_latency"]["net"][of][at]
        if algorithm == "Ring" and self.operation in ROOTED:
            return float(base + table["link_latency"][self.link]["Ring"][at])
        if algorithm == "Ring":
            if nodes > 1:
                overhead = table["net_overhead"][self.settings["cpu"]]
                intra = max(intra, overhead * (3 if table["protocols"][at] == "Simple" else 1))
            between = (nodes - 1) * (2 if self.operation == "all_reduce" else 1)
            return ring_latency(steps(self.operation, self.ranks), between, base, intra, inter)
        if algorithm == "Tree":
            return tree_latency(local, nodes, base, intra, inter)
        if algorithm == "NVLS":
            return float(intra + (inter if nodes > 1 else 0))
        if algorithm == "NVLSTree":
            return float(base + intra + 2 * log2_floor(nodes) * inter)
        if algorithm == "PAT":
            return float(base + log2_floor(nodes) * (inter / 3.5) + self.ranks * 2.8)
        if algorithm == "CollNetDirect":
            within = min(1, local - 1) * intra + (local - 1) * 0.4
            return float(base + 2 * within + inter)
        return float(base + 2 * (local - 1) * intra + inter)

    def _corrected(
        self, algorithm: str, protocol: str, latency: float, bandwidth: float
    ) -> tuple[float, float]:
        """The corrections of ``ncclTopoGetAlgoTime``, which are for all-reduce alone."""
        if self.operation != "all_reduce":
            return latency, bandwidth
        size, machine = self.size, self.machine
        at = log2_floor(size >> 6)
        x86 = self.settings["cpu"] != "other"
        known = {"Tree": _TREE_CORRECTIONS, "NVLSTree": _NVLS_TREE_CORRECTIONS}.get(algorithm, 0)
        if algorithm == "NVLSTree" and not (machine.capability >= BLACKWELL and x86):
            known = 0
        if 0 <= at < known:
            bandwidth *= self.table["tree_correction"][protocol][at]
        plateau = algorithm == "Ring" and protocol == "Simple" and self.nodes > 1
        # whole numbers, as in C
        if plateau and size // (self._channels() * self.ranks) >= 64:
            latency *= 1.9 if machine.capability < 80 else 1.4
        return latency, bandwidth

    def _channels(self) -> int:
        """``comm->nChannels``: every searched channel twice (src/graph/connect.cc)."""
        ring = self.graphs["Ring"]
        channels = min(MAX_CHANNELS, 2 * ring.channels)
        fast = self.machine.capability >= HOPPER and self.nodes > 1 and ring.intra_gbs > 45
        return 2 * channels if fast and channels < 16 else channels

    def shots(self) -> Shots | None:
        """The kernel of ``ncclSymkPickKernel`` for an all-reduce within one NVLink domain."""
        ranks = self.ranks
        if self.operation != "all_reduce" or self.nodes > 1 or self.intra != "fabric":
            return None
        table, size = self.table["symmetric"], self.size
        new = int(self.machine.capability >= BLACKWELL)
        block, peak = (table[name][new] * _GIB_PER_US for name in ("block_bandwidth", "peak"))
        top = table["multicast_peak"][new] * _GIB_PER_US
        multicast = self.machine.switched and ranks > 2 and self.machine.capability >= HOPPER
        few = -(-table["multicast_blocks"][new] // ranks)
        ll, rest = table["one_shot_latency"][new], table["two_shot_latency"][new]
        gathered, scattered = ranks * size * 9, 2 * size * (ranks - 1) // ranks
        kernels = [("AllReduce_AGxLL_R", gathered, ll, _BLOCKS, 1.0, peak)]
        if multicast:
            kernels.append(("AllReduce_AGxLLMC_R", gathered, ll, _BLOCKS, 1.1, peak))
        if size >= 2 << 30:
            kernels.clear()
        kernels.append(("AllReduce_RSxLD_AGxST", scattered, rest, _BLOCKS, 1.0, peak))
        if multicast:
            reduced = size // ranks + size
            kernels.append(("AllReduce_RSxLDMC_AGxSTMC", reduced, rest, few, float(ranks), top))
        best: tuple[float, float, str] | None = None
        for name, moved, latency, most, multiplier, ceiling in kernels:
            taken, blocks = _symmetric_time(moved, latency, most, block, multiplier, ceiling)
            weighed = taken * (1 + 0.025 * blocks)
            if best is None or weighed < best[0]:
                best = weighed, taken, name
        if best is None or size >= 64 << 30:
            return None
        return Shots(
            name="one-shot" if "_AGxLL" in best[2] else "two-shot",
            kernel=best[2],
            time_us=best[1],
            condition=f"NCCL {table['since']} or newer, sums of floating-point numbers in buffers "
            "of a symmetric memory window (ncclCommWindowRegister)",
        )


_GIB_PER_US: Final = (1 << 30) / 1e6
"""GBps of src/sym_kernels.cc, in bytes a microsecond."""
_BLOCKS: Final = 64
"""ncclSymkMaxBlocks."""


def _symmetric_time(
    moved: int, latency: float, most: int, block: float, multiplier: float, ceiling: float
) -> tuple[float, int]:
    """Microseconds and blocks: the fewest that are within 2.5 % of the most."""
    fastest = _symmetric_model(moved, latency, most, block, multiplier, ceiling)
    for blocks in range(1, most):
        taken = _symmetric_model(moved, latency, blocks, block, multiplier, ceiling)
        if taken <= 1.025 * fastest:
            return taken, blocks
    return fastest, most


def _symmetric_model(
    moved: int, latency: float, blocks: int, block: float, multiplier: float, ceiling: float
) -> float:
    bandwidth = ceiling - block * math.log1p(
        math.expm1(ceiling / block) * math.exp(-blocks * block * multiplier / block)
    )
    over = moved / bandwidth - 1
    return latency + (over if over >= 100 else math.log1p(math.exp(over)))


def _nearest(by_capability: Mapping[str, Any], capability: int) -> str:
    """The key with the largest capability that is at most this one, else the smallest."""
    keys = sorted(by_capability, key=int)
    return max((key for key in keys if int(key) <= capability), key=int, default=keys[0])


MODEL: Final = NcclModel("nvidia")
