"""The text of ``portagpu info``: sections of rows, or the links between GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import printable
from portagpu.base.units import UNKNOWN, count, size
from portagpu.facts.host.tree import format_cpu_list
from portagpu.facts.visible import quoted
from portagpu.machine.inventory.routes import domains, hives, nearest_nics, routes
from portagpu.machine.inventory.topology import FABRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console, RenderableType

    from portagpu.machine.inventory.routes import Route
    from portagpu.machine.inventory.topology import Topology, TopologyNode


_EMPTY: Final = "set and empty"
_MASK_CHARACTERS: Final = 120
"""A longer mask is cut; the JSON document has all of it."""
_Rows = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A title, and rows of (label, text)."""

    title: str
    rows: tuple[tuple[str, str], ...]


def sections(document: dict[str, Any]) -> tuple[Section, ...]:
    """The sections in reading order; a section without content is left out."""
    known = document["software_known"]
    libraries = document["libraries"] | document["versions"]
    host_shown = known or document["host"]["cpu"]["logical_cpus"] is not None
    parts: list[tuple[str, _Rows]] = [
        ("Devices", _devices(document)),
        ("Backends", _backends(document["backends"]) if known else []),
        ("Events", _events(document["events"])),
        ("Host", _host(document["host"]) if host_shown else []),
        ("Torch", _torch(document["torch"]) if known else []),
        ("Libraries", [("", _libraries(libraries))] if libraries else []),
        ("Visible devices", _visible(document["visible"]) if known else []),
        ("Remarks", [("-", text) for text in document["remarks"]]),
    ]
    return tuple(
        Section(title, tuple((printable(label), printable(text)) for label, text in rows))
        for title, rows in parts
        if rows
    )


def _devices(document: dict[str, Any]) -> _Rows:
    if document["gpus"]:
        return gpu_rows(document["gpus"], document["devices"])
    rows: _Rows = []
    for number, device in enumerate(document["devices"]):
        facts = [f"{device['name'] or 'unnamed'} ({device['arch'] or 'architecture unknown'})"]
        if device["memory_bytes"] is not None:
            facts.append(size(device["memory_bytes"]))
        facts.append(f"target {device['target'] or UNKNOWN}")
        rows.append((f"{device['kind']} {number}", ", ".join(facts)))
    return rows or [("", "none is shown")]


def _events(events: list[dict[str, Any]]) -> _Rows:
    """The logged errors, once per kind and device, with the vendor's advice."""
    counted = Counter((each["pci"], each["code"]) for each in events)
    kinds = {(each["pci"], each["code"]): each for each in events}
    rows: _Rows = []
    for (pci, code), each in kinds.items():
        words = [code, f"{counted[pci, code]} times" if counted[pci, code] > 1 else ""]
        texts = [each["meaning"] or "not documented", each["action"] or ""]
        rows.append(
            (
                pci or "device unknown",
                f"{' '.join(words).strip()}: {'; '.join(filter(None, texts))}",
            )
        )
    return rows


def _backends(backends: list[dict[str, Any]]) -> _Rows:
    return [
        (each["name"], f"{'usable' if each['usable'] else 'not usable'}: {each['reason']}")
        for each in backends
    ] or [("", "none declared")]


def _host(host: dict[str, Any]) -> _Rows:
    cpu, memory, limits = host["cpu"], host["memory"], host["limits"]
    return [
        ("CPU", _cpu(cpu)),
        ("Cores", _cores(cpu, host["usable_cpus"])),
        ("Units", _units(cpu)),
        ("Caches", ", ".join(_cache(each) for each in cpu["caches"]) or UNKNOWN),
        ("NUMA", "; ".join(_node(each) for each in cpu["numa_nodes"]) or UNKNOWN),
        ("Memory", _memory(memory)),
        ("Kernel", f"{host['kernel']['release'] or UNKNOWN} ({host['kernel']['machine']})"),
        ("Container", _container(limits)),
        ("Limits", _limits(limits)),
        ("Settings", _settings(host["settings"])),
        *_sensors(host["sensors"]),
    ]


def _cpu(cpu: dict[str, Any]) -> str:
    level = f", level v{cpu['x86_64_level']}" if cpu["x86_64_level"] else ""
    return f"{cpu['model_name'] or UNKNOWN} ({cpu['vendor'] or UNKNOWN}, {cpu['arch']}{level})"


def _cores(cpu: dict[str, Any], usable: int | None) -> str:
    return ", ".join(
        (
            count(cpu["sockets"], "socket"),
            count(cpu["physical_cores"], "core"),
            count(cpu["logical_cpus"], "logical CPU"),
            f"{usable if usable is not None else UNKNOWN} usable",
        )
    )


def _units(cpu: dict[str, Any]) -> str:
    width = f" ({cpu['vector_bits']} bit)" if cpu["vector_bits"] else ""
    vector = " ".join(cpu["vector_units"]) or UNKNOWN
    return f"{vector}{width}; matrix: {' '.join(cpu['matrix_units']) or 'none shown'}"


def _cache(cache: dict[str, Any]) -> str:
    suffix = {"data": "d", "instruction": "i"}.get(cache["kind"], "")
    return f"L{cache['level']}{suffix} {cache['instances']} x {size(cache['size_bytes'])}"


def _node(node: dict[str, Any]) -> str:
    cpus = f"CPUs {format_cpu_list(tuple(node['cpus']))}" if node["cpus"] else "no CPU"
    return f"node {node['index']}: {cpus}, {size(node['memory_bytes'])}"


def _memory(memory: dict[str, Any]) -> str:
    swap = memory["swap_total_bytes"]
    parts = [size(memory["total_bytes"]), f"{size(memory['available_bytes'])} available"]
    parts.append("no swap" if swap == 0 else f"swap {size(swap)}")
    if memory["huge_pages_total"]:
        pages = f"{memory['huge_pages_total']} huge pages"
        parts.append(f"{pages} of {size(memory['huge_page_size_bytes'])}")
    return ", ".join(parts)


def _container(limits: dict[str, Any]) -> str:
    group = limits["cgroup"]
    word = {True: "yes", False: "no", None: UNKNOWN}[limits["container"]]
    kind = f" ({limits['container_kind']})" if limits["container_kind"] else ""
    quota, most = group["cpu_quota_cpus"], group["memory_max_bytes"]
    bounds = [
        f"cgroup v{group['version']}" if group["version"] else "no cgroup seen",
        f"{quota:g} CPUs" if quota is not None else "no CPU quota",
        f"memory {size(most)}" if most is not None else "no memory limit",
    ]
    return f"{word}{kind}; {', '.join(bounds)}"


def _limits(limits: dict[str, Any]) -> str:
    def bound(name: str, in_bytes: bool = False) -> str:
        value = limits["ulimits"][name]
        if value is None:
            return UNKNOWN
        return size(value) if in_bytes and isinstance(value, int) else str(value)

    return ", ".join(
        (
            f"open files {bound('open_files')}",
            f"processes {bound('processes')}",
            f"stack {bound('stack_bytes', True)}",
            f"locked memory {bound('locked_memory_bytes', True)}",
            f"shared memory {size(limits['shm_bytes'])}",
        )
    )


def _settings(settings: dict[str, Any]) -> str:
    acs = settings["acs_redirects"]
    words = [
        f"IOMMU {settings['iommu'] or UNKNOWN}",
        f"NUMA balancing {_switch(settings['numa_balancing'])}",
        f"huge pages {settings['huge_pages'] or UNKNOWN}",
    ]
    if acs is not None:
        words.append(f"ACS redirects on {count(len(acs), 'bridge')}" if acs else "no ACS redirects")
    if settings["parameters"]:
        words.append(f"booted with {' '.join(settings['parameters'])}")
    return ", ".join(words)


def _switch(value: bool | None) -> str:
    return {True: "on", False: "off", None: UNKNOWN}[value]


def _sensors(sensors: dict[str, Any]) -> _Rows:
    clocks, load = sensors["clocks"], sensors["load_average"]
    values = clocks["by_cpu_mhz"]
    rows: _Rows = [("Clocks", UNKNOWN)]
    if values:
        text = f"median {median(values):.0f} MHz, {min(values):.0f} to {max(values):.0f}"
        rows = [("Clocks", f"{text} ({clocks['source']})")]
    hottest = max(sensors["temperatures"], key=lambda each: each["celsius"], default=None)
    if hottest is not None:
        name = hottest["label"] or hottest["sensor"]
        rows.append(("Hottest", f"{hottest['celsius']:.0f} C ({name})"))
    throttled = sensors["throttling"]["core_count"]
    if throttled is not None:
        rows.append(("Throttling", f"{count(throttled, 'time')} since boot, over all cores"))
    rows.append(("Load", " ".join(f"{each:.2f}" for each in load) if load else UNKNOWN))
    return rows


def _torch(build: dict[str, Any] | None) -> _Rows:
    if build is None:
        return [("", "not installed")]
    if build["problem"] is not None:
        return [("", f"broken: {build['problem']}")]
    toolkits = [f"{key} {build[key]}" for key in ("cuda", "hip", "xpu") if build[key]]
    built = f"{build['kind']} build{' (' + ', '.join(toolkits) + ')' if toolkits else ''}"
    location = build["location"] or UNKNOWN
    return [("Build", f"{build['version']}, {built}"), ("Location", location)]


def _libraries(libraries: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in libraries.items())


def _visible(visible: dict[str, str]) -> _Rows:
    rows = [
        (
            name,
            value if 0 < len(value) <= _MASK_CHARACTERS else quoted(value) if value else _EMPTY,
        )
        for name, value in visible.items()
    ]
    return rows or [("", "not restricted: none of the variables is set")]


def gpu_rows(gpus: list[dict[str, Any]], devices: list[dict[str, Any]]) -> _Rows:
    """Rows of (label, text); ``devices`` are those of ``gpus``, in the same order."""
    rows: _Rows = []
    numbered, first = [], 0
    for gpu in gpus:
        many = len(gpu["parts"]) or 1
        numbered.append((gpu, first, devices[first]["target"] if first < len(devices) else None))
        first += many
    for lines, group in groupby(numbered, key=lambda each: _common_lines(each[0], each[2])):
        same = list(group)
        product = lines[0] if len(same) > 1 else lines[0].replace(" each,", ",")
        rows.append((count(len(same), "GPU"), product))
        rows.extend(("", line) for line in lines[1:] if line)
        for gpu, number, _ in same:
            rows.extend(_gpu_rows(gpu, number))
    return rows


def _common_lines(gpu: dict[str, Any], target: str | None) -> tuple[str, ...]:
    """The lines that GPUs of one product, driver and mode have in common."""
    arch = gpu["arch"] or "architecture unknown"
    product = [f"{gpu['name'] or 'unnamed ' + gpu['vendor']} ({arch})"]
    if gpu["memory_bytes"] is not None:
        product.append(f"{size(gpu['memory_bytes'])} each")
    product.append(f"target {target or UNKNOWN}")
    driver = [word for word in (gpu["driver"], gpu["driver_version"]) if word]
    modes = [mode for mode in (gpu["compute_partition"], gpu["memory_partition"]) if mode]
    state = [
        f"driver {' '.join(driver)}" if driver else "no driver shown",
        "/".join(modes),
        {True: "MIG on", False: "MIG off", None: ""}[gpu["mig_enabled"]],
        _link(gpu["pcie"]),
        f"known from {', '.join(gpu['sources'])}",
    ]
    return ", ".join(product), ", ".join(filter(None, state))


def _link(link: dict[str, Any]) -> str:
    """The fastest stated link, because an idle GPU slows down its present one."""
    for kind in ("max_", "device_", ""):
        generation, width = link[f"{kind}generation"], link[f"{kind}width"]
        if generation is not None:
            lanes = width if width is not None else link["width"]
            return f"PCIe {generation}" + (f" x{lanes}" if lanes is not None else "")
    return ""


def _gpu_rows(gpu: dict[str, Any], number: int) -> Iterable[tuple[str, str]]:
    parts = gpu["parts"]
    node = gpu["numa_node"]
    words = [
        gpu["pci"] or "PCI address unknown",
        gpu["uuid"] or "UUID unknown",
        f"NUMA node {node}" if node is not None else "",
    ]
    if not parts:
        yield f"gpu {number}", _columns(words)
        return
    last = number + len(parts) - 1
    named = [part["uuid"] for part in parts]
    label = f"gpu {number}" if last == number else f"gpu {number}-{last}"
    if any(named):
        yield "", _columns(words)
        for index, part in enumerate(parts, number):
            yield (
                f"gpu {index}",
                _columns([part["profile"] or "part", part["uuid"] or "", _part_size(part)]),
            )
    else:
        profiles = " and ".join(dict.fromkeys(part["profile"] or "part" for part in parts))
        sizes = "; ".join(dict.fromkeys(filter(None, map(_part_size, parts))))
        words.append(f"{len(parts)} x {profiles}" + (f" of {sizes}" if sizes else ""))
        yield label, _columns(words)


def _part_size(part: dict[str, Any]) -> str:
    words = []
    if part["memory_bytes"] is not None:
        words.append(size(part["memory_bytes"]))
    if part["unit_count"] is not None:
        words.append(count(part["unit_count"], "unit"))
    return ", ".join(words)


def _columns(words: list[str]) -> str:
    return "  ".join(filter(None, words))


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
    console.print(_gpu_table(topology, gpus))
    if len(gpus) > 1:
        console.print()
        widest = max(len(word) for word in (*words.values(), "GPU000"))
        fits = (len(gpus) + 1) * (widest + 2) <= console.width
        console.print(_link_matrix(gpus, words) if fits else _peer_ranges(gpus, between, words))
        console.print(_link_legend(set(words.values())))
    for line in _group_lines(topology, gpus):
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


def _gpu_table(topology: Topology, gpus: tuple[TopologyNode, ...]) -> RenderableType:
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


def _link_matrix(
    gpus: tuple[TopologyNode, ...], words: Mapping[tuple[str, str], str]
) -> RenderableType:
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


def _peer_ranges(
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


def _link_legend(words: set[str]) -> RenderableType:
    from rich.text import Text

    fabrics = dict(each.legend for each in FABRICS.values() if each.legend is not None)
    known = {next((f for f in fabrics if w.startswith(f.rstrip("#"))), w) for w in words}
    legend = {**fabrics, **_WORDS}
    return Text(
        "; ".join(f"{word}: {legend[word]}" for word in legend if word in known), style="dim"
    )


def _group_lines(topology: Topology, gpus: tuple[TopologyNode, ...]) -> list[str]:
    position = {gpu.key: number for number, gpu in enumerate(gpus)}

    def numbers(keys: tuple[str, ...]) -> str:
        return format_cpu_list(tuple(sorted(position[key] for key in keys)))

    found = [f"Fastest domain: GPU {numbers(group)}" for group in domains(topology)]
    found += [f"Hive {hive}: GPU {numbers(group)}" for hive, group in hives(topology).items()]
    return [printable(line) for line in found]
