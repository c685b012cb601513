"""A GPU's reading from any output of AMD SMI, and the links between GPUs.

Its JSON, text and CSV are one tree of keys (``amdsmi_cli/amdsmi_logger.py``: the text is the JSON
with keys in upper case, the CSV the same without sections), so each form is read into *records*:
mappings of lower-case keys, one a GPU. Keys of ROCm 6.0 to 7.14 (``amdsmi_commands.py``, the
tool's CHANGELOG).

Of ``amd-smi topology`` and ``amd-smi xgmi``, ``numa_bw`` and ``bandwidth`` are "<least>-<most>" in
MB/s of 10^6 bytes, as the KFD counts them (``amdsmi_minmax_bandwidth_get``; "0-0" and "N/A" are not
stated). ``bit_rate`` is of one lane and ``max_bandwidth`` of one link, both in Gb/s; a maximum of
the type (65535, 4294967295) is AMD SMI's way before ROCm 7.12 to say that there is no xGMI link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from portagpu.facts.formats import pci_address, stated
from portagpu.facts.readings import End, GpuState, Link, Memory, Node, Pcie, Reading
from portagpu.facts.readings.model import without_none
from portagpu_rocm.formats._amd import (
    VENDOR,
    count,
    first_stated,
    generation,
    gfx_arch,
    measure,
    product_name,
    runtime_uuid,
    scalar_text,
    size,
    unique_id_from_uuid,
)

Record = Mapping[str, object]


def merge(records: Iterable[Record]) -> list[dict[str, object]]:
    """One record a GPU, of which a later one's values count; sections are joined."""
    found: dict[str, dict[str, object]] = {}
    for record in records:
        name = scalar_text(record.get("gpu")) or scalar_text(record.get("gpu_id"))
        if name is None:
            continue
        merged = found.setdefault(name, {"gpu": name})
        for key, value in record.items():
            old = merged.get(key)
            if isinstance(old, dict) and isinstance(value, Mapping):
                old.update(value)
            elif has_value(value) or key not in merged:
                merged[key] = dict(value) if isinstance(value, Mapping) else value
    return list(found.values())


def has_value(value: object) -> bool:
    """Whether ``value`` is anything but one of the tool's ways to say that it has none."""
    return value is not None and (not isinstance(value, str) or stated(value) is not None)


def inner(record: Record, section: str, key: str) -> object:
    inner = record.get(section)
    return inner.get(key) if isinstance(inner, Mapping) else None


def value_in(record: Record, section: str, key: str) -> object:
    """The value in its section or, as CSV has it, without one."""
    return inner(record, section, key) if section in record else record.get(key)


Facts = dict[str, object]

OF_PROCESSES: Final = frozenset({"gpu", "process_list"})
"""Keys of a record that is of a GPU's processes alone."""
KINDS: Final = {"XGMI": "xgmi", "PCIE": "pcie"}
_UP: Final = {"U": True, "UP": True, "D": False, "DOWN": False, "X": False, "DISABLED": False}
_ACCESS: Final = {"ENABLED": True, "DISABLED": False, "TRUE": True, "FALSE": False}
_WORDS: Final = ("link_type", "status", "link_status")
_EXTRA: Final = ("coherent", "atomics", "dma", "bi_dir", "read", "write")
# keys of ``topology --json`` before ROCm 6.2, and what they are called since
_OLD_KEYS: Final = {
    "link_accessibility": "link_status",
    "weight": "weight",
    "hops": "num_hops",
    "link_type": "link_type",
    "numa_bandwidth": "bandwidth",
}


@dataclass(frozen=True, slots=True)
class _Ends:
    """The GPUs that records name, each time by number, by address or by both."""

    by_key: dict[str, End] = field(default_factory=dict)
    keys: dict[tuple[str | None, str | None], str | None] = field(default_factory=dict)

    def key(self, entry: Record) -> str | None:
        """The key of the GPU that ``entry`` names; None where it names none."""
        named = (scalar_text(entry.get("gpu")), scalar_text(entry.get("bdf")))
        if named not in self.keys:
            self.keys[named] = self._add(count(named[0]), pci_address(named[1]))
        return self.keys[named]

    def _add(self, index: int | None, pci: str | None) -> str | None:
        if index is None and pci is None:
            return None
        key = f"GPU{index}" if index is not None else f"{pci}"
        old = self.by_key.get(key)
        if old is None or old.pci is None:
            self.by_key[key] = End(Node.GPU, key, pci, index)
        return key


def links(records: Iterable[Record], source: str) -> tuple[Link, ...]:
    """Every link of the records, one for each direction that is stated; else every port."""
    records, ends = tuple(records), _Ends()
    found: dict[tuple[str, str], Facts] = {}
    for record in records:
        start = ends.key(record)
        if start is None:
            continue
        for other, facts in _peers(record, ends):
            if other != start:
                found.setdefault((start, other), {}).update(facts)
    named = ends.by_key
    if not found:
        owners = ((record, ends.key(record)) for record in records)
        return tuple(
            link for record, key in owners if key for link in _ports(record, named[key], source)
        )
    made = (_link(named[a], named[b], facts, source) for (a, b), facts in found.items())
    return tuple(link for link in made if link is not None)


def _ports(record: Record, end: End, source: str) -> Iterable[Link]:
    """The links at a GPU's ports, which are not stated to lead anywhere."""
    states = (scalar_text(record.get("xgmi_ports")) or "").split()
    for number, state in enumerate(states if "U" in states else ()):
        if state in ("U", "D"):
            other, extra = End(Node.UNKNOWN, "not stated"), {"link": str(number)}
            up = state == "U"
            yield Link(source=source, a=end, b=other, kind="xgmi", count=1, up=up, extra=extra)


def _peers(record: Record, ends: _Ends) -> Iterable[tuple[str, Facts]]:
    metrics = record.get("link_metrics")
    shared: Facts = {}
    if isinstance(metrics, Mapping):
        shared = {key: metrics.get(key) for key in ("bit_rate", "max_bandwidth", "link_type")}
    for source, common in ((record, {}), (metrics, shared)):
        entries = source.get("links") if isinstance(source, Mapping) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and (key := ends.key(entry)) is not None:
                facts = common | entry
                yield key, {name: facts[name] for name in facts if scalar_text(facts[name])}
    for old, new in _OLD_KEYS.items():
        column = record.get(old)
        for name, value in column.items() if isinstance(column, Mapping) else ():
            match = re.fullmatch(r"gpu_(\d{1,6})", name)
            if match is not None and scalar_text(value) is not None:
                key = ends.key({"gpu": match.group(1)})
                if key is not None:
                    yield key, {new: value}


def _link(a: End, b: End, facts: Facts, source: str) -> Link | None:
    words = {key: (scalar_text(facts.get(key)) or "").upper() for key in _WORDS}
    if not facts.keys() - {"gpu", "bdf"} or words["link_type"] == "SELF":
        return None
    rate, whole = measure(facts.get("bit_rate")), measure(facts.get("max_bandwidth"))
    return Link(
        source=source,
        a=a,
        b=b,
        kind=KINDS.get(words["link_type"], "unknown"),
        width=round(whole / rate) if rate and whole else None,
        speed_gbit_s=rate,
        bandwidth_bytes_s=most_bandwidth(scalar_text(facts.get("bandwidth")))
        or (whole * 1e9 / 8 if whole else None),
        weight=count(facts.get("weight")),
        hops=count(facts.get("num_hops")),
        up=_UP.get(words["status"]),
        peer_access=_ACCESS.get(words["link_status"]),
        extra={key: f"{scalar_text(facts[key])}" for key in _EXTRA if key in facts},
    )


def most_bandwidth(text: str | None) -> float | None:
    """Bytes a second of the most in "50000-100000" MB/s; None for 0, which is not stated."""
    match = re.fullmatch(r"\d{1,12}-(\d{1,12})", text or "")
    return int(match.group(1)) * 1e6 or None if match is not None else None


_NO_PROCESS: Final = "no running processes"
_NO_PAGES: Final = "no bad pages"
# keys of ``limit``; the hotspot's limits are those of the GPU itself
_SENSORS: Final = (("edge", "edge-"), ("hotspot", ""), ("vram", "memory-"))


def pcie(record: Record) -> Pcie:
    """Of the device's own sysfs attributes max_link_speed and max_link_width, and its metrics."""
    return Pcie(
        generation=generation(inner(record, "pcie", "speed")),
        width=_lanes(inner(record, "pcie", "width")),
        device_generation=generation(value_in(record, "bus", "max_pcie_speed")),
        device_width=_lanes(value_in(record, "bus", "max_pcie_width")),
        replays=first_stated(
            count(value_in(record, "pcie", "replay_count")), count(record.get("pcie_replay"))
        ),
    )


def _lanes(value: object) -> int | None:
    lanes = count(value)
    return lanes if lanes is not None and 1 <= lanes <= 32 else None


def memory(record: Record) -> Memory:
    blocks = record.get("ecc_blocks")
    by_block = {
        name.upper(): (
            count(block.get("correctable_count")),
            count(block.get("uncorrectable_count")),
        )
        for name, block in (blocks.items() if isinstance(blocks, Mapping) else ())
        if isinstance(block, Mapping)
    }
    ras = inner(record, "ras", "ecc_block_state")
    umc = scalar_text(ras.get("umc")) if isinstance(ras, Mapping) else None
    pages = {key: _pages(record.get(key)) for key in ("retired", "pending", "un_res")}
    return Memory(
        ecc_enabled={"ENABLED": True, "DISABLED": False}.get(umc or ""),
        corrected=first_stated(
            count(value_in(record, "ecc", "total_correctable_count")),
            count(record.get("single_bit_ecc")),
        ),
        uncorrected=first_stated(
            count(value_in(record, "ecc", "total_uncorrectable_count")),
            count(record.get("double_bit_ecc")),
        ),
        by_block=by_block,
        retired_pages={
            name: number
            for name, number in (("retired", pages["retired"]), ("unreservable", pages["un_res"]))
            if number is not None
        },
        pending=pages["pending"] > 0 if pages["pending"] is not None else None,
    )


def _pages(value: object) -> int | None:
    """How many pages an entry of ``bad-pages`` lists: a sentence, one page or several."""
    if isinstance(value, str):
        return 0 if value.strip().lower().startswith(_NO_PAGES) else None
    if isinstance(value, Mapping):
        address = value.get("page_address")
        return len(address) if isinstance(address, list) else int(address is not None)
    return len(value) if isinstance(value, list) else None


def state(record: Record) -> GpuState:
    clocks, usage = record.get("clock"), record.get("usage")
    clocks = clocks if isinstance(clocks, Mapping) else {}
    limits = record.get("limit")
    limits = limits if isinstance(limits, Mapping) else {}
    graphics = [block for name, block in clocks.items() if re.fullmatch(r"gfx(_\d+)?", name)]
    memory = [block for name, block in clocks.items() if re.fullmatch(r"mem(_\d+)?", name)]
    temperatures = {
        "edge": measure(value_in(record, "temperature", "edge")),
        "hotspot": first_stated(
            measure(value_in(record, "temperature", "hotspot")),
            measure(record.get("hotspot_temperature")),
        ),
        "mem": first_stated(
            measure(inner(record, "temperature", "mem")),
            measure(record.get("memory_temperature")),
        ),
    }
    return GpuState(
        temperatures_c=without_none(temperatures),
        limits_c=without_none(
            {
                f"{prefix}{what}": measure(limits.get(f"{what}_{sensor}_temperature")) or None
                for sensor, prefix in _SENSORS
                for what in ("slowdown", "shutdown")
            }
        ),
        power_w=first_stated(
            measure(value_in(record, "power", "socket_power")), measure(record.get("power_usage"))
        ),
        power_limit_w=first_stated(
            measure(limits.get("socket_power")),
            measure(inner(limits, "ppt0", "socket_power_limit")),
            measure(record.get("power_cap")),
        ),
        clock_mhz=first_stated(
            _highest(graphics, "clk", "cur_clk"), measure(record.get("gfx_clock"))
        ),
        max_clock_mhz=_highest(graphics, "max_clk"),
        memory_clock_mhz=first_stated(
            _highest(memory, "clk", "cur_clk"), measure(record.get("mem_clock"))
        ),
        max_memory_clock_mhz=_highest(memory, "max_clk"),
        utilization_percent=first_stated(
            *(measure(usage.get(key)) for key in ("gfx_activity", "gfx_usage"))
            if isinstance(usage, Mapping)
            else (measure(record.get("gfx_activity")), measure(record.get("gfx"))),
        ),
        memory_used_bytes=first_stated(
            size(value_in(record, "mem_usage", "used_vram")), size(record.get("vram_used"))
        ),
        throttling=_throttling(record),
        processes=_processes(record),
    )


def _highest(blocks: list[object], *keys: str) -> float | None:
    """The highest of the clocks: a GPU of several dies has one each."""
    values = (
        first_stated(*(measure(block.get(key)) for key in keys))
        for block in blocks
        if isinstance(block, Mapping)
    )
    return max((value for value in values if value is not None), default=None)


def _throttling(record: Record) -> tuple[str, ...] | None:
    """The throttle reasons that are active, or were for a part of the last interval."""
    section = record.get("throttle")
    states: dict[str, bool] = {}
    for key, value in (section if isinstance(section, Mapping) else record).items():
        name, _, what = key.partition("_violation_")
        if what == "status" and (words := _words(value) & {"ACTIVE", "NOT ACTIVE"}):
            states[name] = states.get(name, False) or "ACTIVE" in words
        elif what == "activity" and (percent := measure(value)) is not None:
            states[name] = states.get(name, False) or percent > 0
    status = scalar_text(value_in(record, "power", "throttle_status"))
    if status in {"THROTTLED", "UNTHROTTLED"} and not any(states.values()):
        states["throttled"] = status == "THROTTLED"
    return tuple(name for name, active in states.items() if active) if states else None


def _words(value: object) -> set[str]:
    """The words of a status, of a list of them, or of one list a partition ("[ACTIVE, N/A]")."""
    if isinstance(value, Mapping):
        return set().union(*(_list_words(inner) for inner in value.values()))
    return _list_words(value)


def _list_words(value: object) -> set[str]:
    if isinstance(value, str):
        return {word.strip().upper() for word in value.strip("[]").split(",")}
    if not isinstance(value, list):
        return set()
    inner = (entry if isinstance(entry, list) else [entry] for entry in value)
    return {word.strip().upper() for entry in inner for word in entry if isinstance(word, str)}


def _processes(record: Record) -> int | None:
    listed = first_stated(record.get("process_list"), record.get("process_info"))
    if listed is None:
        return None
    number = 0
    for entry in listed if isinstance(listed, list) else [listed]:
        info = entry.get("process_info", entry) if isinstance(entry, Mapping) else entry
        if isinstance(info, Mapping):
            number += has_value(info.get("pid"))
        elif not (isinstance(info, str) and info.strip().lower().startswith(_NO_PROCESS)):
            return None
    return number


def reading(record: Record, source: str) -> Reading:
    """One GPU's record as a Reading."""
    uuid = scalar_text(first_stated(record.get("uuid"), record.get("gpu_uuid")))
    hip_uuid = scalar_text(record.get("hip_uuid"))
    unique_id = first_stated(
        count(value_in(record, "asic", "asic_serial")),
        unique_id_from_uuid(hip_uuid),
        _unique_id(uuid),
    )
    unique_id = unique_id or None
    bdf = first_stated(record.get("bdf"), record.get("gpu_bdf"), value_in(record, "bus", "bdf"))
    return Reading(
        source=source,
        vendor=VENDOR,
        index=count(record.get("gpu")),
        pci=pci_address(scalar_text(bdf)),
        uuid=hip_uuid if unique_id_from_uuid(hip_uuid) is not None else runtime_uuid(unique_id),
        unique_id=unique_id,
        name=product_name(scalar_text(value_in(record, "asic", "market_name"))),
        arch=gfx_arch(scalar_text(value_in(record, "asic", "target_graphics_version"))),
        device_id=count(value_in(record, "asic", "device_id")),
        subsystem_id=count(value_in(record, "asic", "subsystem_id")),
        memory_bytes=first_stated(
            size(inner(record, "vram", "size")),
            size(value_in(record, "mem_usage", "total_vram")),
            size(record.get("vram_total")),
        ),
        unit_count=count(value_in(record, "asic", "num_compute_units")),
        numa_node=count(inner(record, "numa", "node")),
        driver=scalar_text(inner(record, "driver", "name")),
        firmware=_firmware(record),
        compute_partition=_partition(
            record, "compute_partition", "accelerator_partition", "accelerator_type"
        ),
        memory_partition=_partition(record, "memory_partition", "current", "memory"),
        pcie=pcie(record),
        memory=memory(record),
        state=state(record),
        extra=_extra(record, uuid),
    )


def driver_version(record: Record) -> str | None:
    """The version of the kernel driver that a record of ``static`` states."""
    return scalar_text(inner(record, "driver", "version"))


def _unique_id(uuid: str | None) -> int | None:
    """The serial number in AMD SMI's own UUID.

    ``amd_smi_uuid.cc``: the serial's highest byte is the first, the next one follows the variant,
    the lower six stand at the end; function and device id are between.
    """
    match = re.fullmatch(
        r"([0-9a-f]{2})[0-9a-f]{2}[0-9a-f]{4}-0000-1[0-9a-f]{3}-[89ab][0-9a-f]([0-9a-f]{2})-"
        r"([0-9a-f]{12})",
        (uuid or "").lower(),
    )
    return int("".join(match.groups()), 16) if match is not None else None


def _partition(record: Record, *keys: str) -> str | None:
    section = record.get("partition")
    values: list[object] = [section.get(key) for key in keys] if isinstance(section, dict) else []
    values += [inner(record, "memory_partition", key) for key in keys]
    name = first_stated(*(scalar_text(value) for value in values), scalar_text(record.get(keys[0])))
    return name.rstrip("*") if name is not None else None


def _firmware(record: Record) -> dict[str, str]:
    found: dict[str, str] = {}
    listed = record.get("fw_list")
    entries = listed.values() if isinstance(listed, Mapping) else listed
    for entry in entries if isinstance(entries, Iterable) and not isinstance(entries, str) else ():
        if isinstance(entry, Mapping):
            name, version = scalar_text(entry.get("fw_id")), scalar_text(entry.get("fw_version"))
            if name is not None and version is not None:
                found[name] = version
    vbios = scalar_text(inner(record, "vbios", "version"))
    return found | ({"VBIOS": vbios} if vbios is not None else {})


def _extra(record: Record, uuid: str | None) -> dict[str, str]:
    values = {
        "amd-smi uuid": uuid if re.fullmatch(r"[0-9a-fA-F-]{36}", uuid or "") else None,
        "kfd_id": scalar_text(record.get("kfd_id")),
        "node_id": scalar_text(record.get("node_id")),
        "partition_id": first_stated(
            scalar_text(record.get("partition_id")),
            scalar_text(inner(record, "partition", "partition_id")),
        ),
        "oam_id": scalar_text(value_in(record, "asic", "oam_id")),
        "vram_usage": scalar_text(record.get("vram_usage")),
        "xgmi_ports": scalar_text(record.get("xgmi_ports")),
        "xgmi_err": scalar_text(record.get("xgmi_err")),
        "deferred_errors": scalar_text(value_in(record, "ecc", "total_deferred_count")),
    }
    return without_none(values)
