"""The links, errors and changing values that a record of AMD SMI holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from portagpu.facts.readings import GpuState, Memory, Pcie
from portagpu.facts.readings.model import without_none
from portagpu_rocm.formats._amd import (
    count,
    first_stated,
    generation,
    measure,
    scalar_text,
    size,
)
from portagpu_rocm.formats._amd_smi_records import Record, field, has_value, inner

_NO_PROCESS: Final = "no running processes"
_NO_PAGES: Final = "no bad pages"
# keys of ``limit``; the hotspot's limits are those of the GPU itself
_SENSORS: Final = (("edge", "edge-"), ("hotspot", ""), ("vram", "memory-"))


def pcie(record: Record) -> Pcie:
    """Of the device's own sysfs attributes max_link_speed and max_link_width, and its metrics."""
    return Pcie(
        generation=generation(inner(record, "pcie", "speed")),
        width=_lanes(inner(record, "pcie", "width")),
        device_generation=generation(field(record, "bus", "max_pcie_speed")),
        device_width=_lanes(field(record, "bus", "max_pcie_width")),
        replays=first_stated(
            count(field(record, "pcie", "replay_count")), count(record.get("pcie_replay"))
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
            count(field(record, "ecc", "total_correctable_count")),
            count(record.get("single_bit_ecc")),
        ),
        uncorrected=first_stated(
            count(field(record, "ecc", "total_uncorrectable_count")),
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
        "edge": measure(field(record, "temperature", "edge")),
        "hotspot": first_stated(
            measure(field(record, "temperature", "hotspot")),
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
            measure(field(record, "power", "socket_power")), measure(record.get("power_usage"))
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
            size(field(record, "mem_usage", "used_vram")), size(record.get("vram_used"))
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
    status = scalar_text(field(record, "power", "throttle_status"))
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
