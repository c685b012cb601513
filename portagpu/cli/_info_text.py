"""The sections of ``portagpu info`` as text, made from its document."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from portagpu.base.text import printable
from portagpu.base.units import UNKNOWN, count, size
from portagpu.cli._info_gpus import gpu_rows
from portagpu.facts.host.tree import format_cpu_list
from portagpu.facts.visible import quoted

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
        said = [each["meaning"] or "not documented", each["action"] or ""]
        rows.append(
            (pci or "device unknown", f"{' '.join(words).strip()}: {'; '.join(filter(None, said))}")
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
