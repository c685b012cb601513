"""The topology as text: a matrix if it fits the terminal, else ranges of peers for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.base.text import printable
from portagpu.facts.host.tree import format_cpu_list
from portagpu.machine.inventory.routes import domains, hives, nearest_nics, routes
from portagpu.machine.inventory.topology import FABRICS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console, RenderableType

    from portagpu.machine.inventory.routes import Route
    from portagpu.machine.inventory.topology import Topology, TopologyNode

_UNKNOWN: Final = "?"
_WORDS: Final = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge",
    "NODE": "PCIe host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
    _UNKNOWN: "no source says",
}


def show_topology(console: Console, topology: Topology) -> None:
    """Print the GPUs, their links, groups, NICs, and contradictions between sources."""
    from rich.text import Text

    gpus = topology.gpus
    if not gpus:
        console.print("No source shows a GPU.")
        return
    between = routes(topology)
    words = {pair: _word(route) for pair, route in between.items()}
    console.print(_devices(topology, gpus))
    if len(gpus) > 1:
        console.print()
        widest = max(len(word) for word in (*words.values(), "GPU000"))
        fits = (len(gpus) + 1) * (widest + 2) <= console.width
        console.print(_matrix(gpus, words) if fits else _ranges(gpus, between, words))
        console.print(_legend(set(words.values())))
    for line in _groups(topology, gpus):
        console.print(Text(line))
    for problem in topology.problems:
        console.print(Text(f"contradiction: {printable(problem)}", style="yellow"))


def _word(route: Route) -> str:
    word = printable(route.path or route.kind or "") or _UNKNOWN
    fabric = FABRICS.get(route.kind or "")
    uncounted = fabric is not None and fabric.counted is None
    return f"{word}x{route.count}" if uncounted and (route.count or 0) > 1 else word


def _rate(route: Route) -> str:
    rate = route.bandwidth_bytes_s
    return "" if rate is None else f" {rate / 1e9:.0f} GB/s"


def _devices(topology: Topology, gpus: tuple[TopologyNode, ...]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    near = nearest_nics(topology)
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(title, style="bold") for title in ("", "GPU", "NUMA", "nearest NIC")))
    for number, gpu in enumerate(gpus):
        nics = ", ".join(nic.name for nic in near.get(gpu.key, ()))
        name = gpu.key if gpu.name == gpu.key else f"{gpu.key} {gpu.name}"
        node = _UNKNOWN if gpu.numa_node is None else str(gpu.numa_node)
        table.add_row(
            *(Text(printable(text)) for text in (f"GPU{number}", name, node, nics or _UNKNOWN))
        )
    return table


def _matrix(gpus: tuple[TopologyNode, ...], words: Mapping[tuple[str, str], str]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_row("", *(Text(f"GPU{number}", style="bold") for number in range(len(gpus))))
    for number, gpu in enumerate(gpus):
        cells = [
            "X" if gpu is other else words.get((gpu.key, other.key)) or words[other.key, gpu.key]
            for other in gpus
        ]
        table.add_row(Text(f"GPU{number}", style="bold"), *(Text(cell) for cell in cells))
    return table


def _ranges(
    gpus: tuple[TopologyNode, ...],
    between: Mapping[tuple[str, str], Route],
    words: Mapping[tuple[str, str], str],
) -> RenderableType:
    """A row for each GPU: the numbers of its peers, by kind of link."""
    from rich.table import Table
    from rich.text import Text

    peers: dict[str, dict[str, list[int]]] = {gpu.key: {} for gpu in gpus}
    position = {gpu.key: number for number, gpu in enumerate(gpus)}
    for (a, b), word in words.items():
        title = word + _rate(between[a, b])
        peers[a].setdefault(title, []).append(position[b])
        peers[b].setdefault(title, []).append(position[a])
    table = Table.grid(padding=(0, 2))
    for number, gpu in enumerate(gpus):
        ways = sorted(peers[gpu.key].items(), key=lambda way: way[0])
        text = "; ".join(f"{word}: {format_cpu_list(tuple(sorted(to)))}" for word, to in ways)
        table.add_row(Text(f"GPU{number}", style="bold"), Text(text))
    return table


def _legend(words: set[str]) -> RenderableType:
    from rich.text import Text

    fabrics = dict(each.legend for each in FABRICS.values() if each.legend is not None)
    known = {next((f for f in fabrics if w.startswith(f.rstrip("#"))), w) for w in words}
    legend = {**fabrics, **_WORDS}
    return Text(
        "; ".join(f"{word}: {legend[word]}" for word in legend if word in known), style="dim"
    )


def _groups(topology: Topology, gpus: tuple[TopologyNode, ...]) -> list[str]:
    position = {gpu.key: number for number, gpu in enumerate(gpus)}

    def numbers(keys: tuple[str, ...]) -> str:
        return format_cpu_list(tuple(sorted(position[key] for key in keys)))

    found = [f"Fastest domain: GPU {numbers(group)}" for group in domains(topology)]
    found += [f"Hive {hive}: GPU {numbers(group)}" for hive, group in hives(topology).items()]
    return [printable(line) for line in found]
