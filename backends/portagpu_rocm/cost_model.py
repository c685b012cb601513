"""RCCL's cost model, from its source: ``ncclTopoTuneModel`` and the topologies that select a model.

The constants and the addresses of the sources are in ``tables/cost_model.toml``. RCCL compares the
machine's graph of xGMI links, network ports and NUMA nodes with a list of known topologies. The one
that matches states the number of a tuning model; no name of an architecture does. Where a topology
matches, the channels together have the bandwidth of all xGMI links of a GPU, also between nodes:
the network's bandwidth is not part of the model then.

Imports neither torch nor a library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.collectives.cost import Graph, Input, Prediction, Question
from portagpu_torch_gpu.collective_costs import (
    ROOTED,
    SHARED,
    TableModel,
    candidates,
    fit_count,
    graph_input,
    log2_floor,
    ring_latency,
    search,
    steps,
    time_us,
    tree_latency,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OPTIONS: Final = {
    "tuning": ("auto", "0", "1", "2", "3", "4", "5"),
    "cpu": ("amd", "intel", "other"),
    "numa": ("2", "4"),
}
"""Settings of the model; the first value is the default. ``numa`` is the number of NUMA nodes with
GPUs, and "other" any maker of CPUs that is neither."""
_ALGORITHMS: Final = ("Tree", "Ring")
"""The others of the table need switches that reduce."""
_CORRECTIONS: Final = 27
_LL_ROOTED: Final = 1.65
_SEVERAL: Final = "estimated from links and ports, as the search tries speeds"


@dataclass(frozen=True, slots=True)
class _Machine:
    """What the library sees: the bandwidth of all links between the GPUs of the job, the graph of
    every algorithm, and the topology that matches, {} where none does."""

    arch: str
    fabric: bool
    graph: Graph
    tuning: int
    topology: Mapping[str, Any]
    inputs: tuple[Input, ...]

    @property
    def ll128(self) -> bool:
        """Whether LL128 is enabled: the library also wants xGMI between all GPUs of the node."""
        return self.arch.startswith("gfx90a") and bool(self.topology.get("ll128"))


class RcclModel(TableModel):
    """Times of RCCL's algorithms and protocols for one collective."""

    def predict(self, question: Question) -> Prediction:
        """Everything that is enabled by default for ``question``; raises as ``CostModel`` says."""
        settings = self.settings(question, _OPTIONS)
        for name in question.graphs:
            if name not in _ALGORITHMS:
                raise ValueError(
                    f"{self.library} runs {' and '.join(_ALGORITHMS)}: give the channels of one of "
                    f"these, not of {name}"
                )
        machine = self._machine(question, settings)
        times = [*_enabled(self.table, question, settings, machine)]
        return Prediction(
            candidates=candidates(question, times),
            inputs=machine.inputs,
            counts_network=not machine.topology,
        )

    def _machine(self, question: Question, settings: Mapping[str, str]) -> _Machine:
        hardware = question.hardware
        assert hardware is not None  # noqa: S101 - settings() has refused it
        table, local, arch = self.table, question.ranks // question.nodes, hardware.arch
        speed, how = self._link(arch)
        count = hardware.links
        peers_of = table["links"]["peers"].get(arch, {})
        peers = min(int(peers_of.get(str(local), count or 0)), local - 1)
        inputs = [Input("host CPU", settings["cpu"], _origin(question, "cpu"))]
        total = peers * speed
        if total:
            inputs.append(Input("links to the other GPUs", f"{peers} x {speed:g} GB/s", how))
            inputs.append(Input("GPUs that the links join", str(local), "estimated: all of a node"))
        lane = table["links"]["pci_lane"].get(str(hardware.pcie_generation), 0.0)
        pci = lane * (hardware.pcie_lanes or 0) or 24.0
        if local > 1 and not total:
            inputs.append(Input("PCIe", f"{pci:g} GB/s", "estimated: all GPUs below one switch"))
        nics = question.nics or local
        ports = 0 if question.nodes == 1 else nics
        if question.nodes > 1:
            how = "given" if question.nics else "estimated: one for each GPU"
            inputs.append(Input("network ports of a node", str(nics), how))
        matching = [
            each
            for each in table["topologies"]
            if (each["gpus"], each["peers"], each["ports"]) == (local, peers, ports)
        ]
        if len({each["numa"] for each in matching}) > 1:
            numa = settings["numa"]
            inputs.append(Input("NUMA nodes with GPUs", numa, _origin(question, "numa")))
            matching = [each for each in matching if str(each["numa"]) == numa]
        topology = matching[0] if matching else {}
        given = question.graphs.get("Ring") or question.graphs.get("Tree")
        graph = given or self._graph(question, total or pci, total, pci, topology, nics)
        inputs.append(graph_input("Ring and Tree", graph))
        asked = settings["tuning"]
        tuning = int(topology.get("tuning", 0)) if asked == "auto" else int(asked)
        names = " or ".join(topology.get("names", ())) or "no known topology"
        how = "given" if asked != "auto" else f"estimated: the machine matches {names}"
        inputs.append(Input("tuning model", str(tuning), how))
        return _Machine(arch, bool(total), graph, tuning, topology, tuple(inputs))

    def _link(self, arch: str) -> tuple[float, str]:
        links = self.table["links"]
        for prefix, speed in links["xgmi"].items():
            if arch.startswith(prefix):
                return float(speed), "a fact of the target, at the library's own bandwidth"
        for prefix, speed in links["xgmi_newer"].items():
            if arch.startswith(prefix):
                return float(
                    speed
                ), f"estimated: {self.library} {self.version} does not know {arch}"
        return float(links["xgmi"]["other"]), "a fact of the target, at the library's own bandwidth"

    def _graph(
        self,
        question: Question,
        inside: float,
        fabric: float,
        pci: float,
        topology: Mapping[str, Any],
        nics: int,
    ) -> Graph:
        local, several = question.ranks // question.nodes, question.nodes > 1
        if topology:
            # parseGraph of src/graph/rome_models.cc: the bandwidth of all links, divided
            channels = max(1, 4 * int(topology["peers"]))
            each = fabric / channels
            return Graph(channels, each, each, "estimated: all links of a GPU together")
        nic = question.nic_gbs or 0.0
        speeds = self.table["speeds"]["inter" if several else "intra"]
        if not several:
            most = fabric / (local - 1) if fabric else pci
            fits = [(each, fit_count(inside, each)) for each in speeds]
        else:
            most = min(nic, pci)
            within = inside * local / (local - 1) if local > 1 else math.inf
            fits = [
                (
                    each,
                    min(
                        nics * fit_count(nic, max(int(each), 0.1)),
                        64 if local == 1 else fit_count(within, each),
                    ),
                )
                for each in speeds
            ]
        count, speed = search(fits, most, inside)
        if speed >= 25 and count < 32:
            # ncclTopoDupChannels
            count, speed = 2 * count, speed / 2
        return Graph(count, speed, speed, _SEVERAL)


def _enabled(
    table: Mapping[str, Any], question: Question, settings: Mapping[str, str], machine: _Machine
) -> Iterator[tuple[str, str, float]]:
    """(algorithm, protocol, time); without NVSwitch and SHARP only Tree and Ring are left."""
    for algorithm, protocol, bandwidth in _bandwidths(table, question, machine):
        bandwidth *= _correction(table, question, machine, algorithm, protocol)
        if bandwidth > 0:
            latency = _latency(table, question, settings, machine, algorithm, protocol)
            yield algorithm, protocol, time_us(latency, question.size_bytes, bandwidth)


def _bandwidths(
    table: Mapping[str, Any], question: Question, machine: _Machine
) -> Iterator[tuple[str, str, float]]:
    """(algorithm, protocol, ``comm->bandwidths``) of what is enabled."""
    operation, nodes = question.operation, question.nodes
    ratios = table["models"][str(machine.tuning)]["bandwidth_ratio"]
    ratio = ratios["few_nodes" if nodes <= 2 else "many_nodes"]
    single = nodes == 1 and machine.arch.startswith("gfx94")
    graph = machine.graph
    each = graph.intra_gbs if nodes <= 2 else graph.inter_gbs
    bus = machine.topology.get("base_bandwidth") or graph.channels * each
    for algorithm in _ALGORITHMS:
        if algorithm == "Tree" and (operation in SHARED or operation in ROOTED):
            continue
        for at, protocol in enumerate(table["protocols"]):
            if algorithm == "Tree" and protocol == "Simple" and single:
                continue
            if protocol == "LL" and machine.arch.startswith("gfx12"):
                continue
            if protocol == "LL128" and not machine.ll128:
                continue
            found = bus * ratio[algorithm][at]
            if protocol == "LL" and operation in ROOTED and single:
                found *= _LL_ROOTED
            count = steps(operation, question.ranks)
            found *= question.ranks / count if algorithm == "Ring" else 0.5
            yield algorithm, protocol, found


def _latency(
    table: Mapping[str, Any],
    question: Question,
    settings: Mapping[str, str],
    machine: _Machine,
    algorithm: str,
    protocol: str,
) -> float:
    """``comm->latencies``. Both transports of the library state a network latency of 0."""
    at = table["protocols"].index(protocol)
    base = table["base_latency"][algorithm][at]
    links = table["models"][str(machine.tuning)]["link_latency"]
    within = "fabric" if machine.fabric else "pci"
    nodes, operation = question.nodes, question.operation
    intra, inter = links[within][algorithm][at], links["net"][algorithm][at]
    if algorithm == "Tree":
        return tree_latency(question.ranks // nodes, nodes, base, intra, inter)
    if operation in ROOTED:
        return float(base + links[within if nodes == 1 else "net"]["Ring"][at])
    between = nodes - 1
    if operation == "all_reduce":
        # nInterSteps; NCCL has 2 * (nNodes - 1)
        between = 2 * nodes if nodes > 1 else 0
    if nodes > 1:
        overhead = table["net_overhead"][settings["cpu"]] * (3 if protocol == "Simple" else 1)
        intra = max(intra, overhead)
    return ring_latency(steps(operation, question.ranks), between, base, intra, inter)


def _correction(
    table: Mapping[str, Any], question: Question, machine: _Machine, algorithm: str, protocol: str
) -> float:
    """The factor of ``ncclTopoGetAlgoTime``. Below 64 B the library reads before its table: 1."""
    at = log2_floor(question.size_bytes >> 6)
    if at < 0 or (algorithm == "Ring" and question.nodes == 1):
        return 1.0
    factors = table["models"][str(machine.tuning)]["correction"][algorithm][protocol]
    return float(factors[min(at, _CORRECTIONS - 1)])


def _origin(question: Question, name: str) -> str:
    return "given" if name in question.options else "estimated: not given"


MODEL: Final = RcclModel("amd")
