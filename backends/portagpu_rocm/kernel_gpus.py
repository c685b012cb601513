"""Readings of GPUs from the amdgpu driver's files below /sys, without a library.

Files and units: Linux ``Documentation/gpu/amdgpu/thermal.rst`` (hwmon, ``*_busy_percent``,
``gpu_metrics``), ``driver-misc.rst`` (memory, replays) and ``ras.rst``. Sensors have the names of
the tool amd-smi.

``gpu_metrics`` is a binary table, of which revisions 1.0 to 1.8 are read. Layout, units and names
of its fields: Linux ``drivers/gpu/drm/amd/include/kgd_pp_interface.h`` (torvalds/linux
@2be02a7c996a), natural alignment, little-endian. The driver fills the table with ones and writes
what the GPU states: a field that is all ones is missing. A revision does not extend the one before.
Tables 1.9 (a list of attributes), 2.x and 3.x (of processors with graphics) are not read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.formats.pci import hexadecimal
from portagpu.facts.host.gpus import PCI_DEVICES, pci_gpus, rocr_uuid
from portagpu.facts.pcie import GENERATION
from portagpu.facts.readings import End, Findings, GpuState, Link, Memory, Node, Pcie, Reading
from portagpu.facts.readings.model import without_none

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.host import Tree


_HEADER: Final = struct.Struct("<HBB")  # structure_size, format_revision, content_revision
_ENERGY_UNIT_J: Final = 2.0**-16  # "15.259uJ (2^-16) units", stated since revision 1.4
_LINKS: Final = 8  # NUM_XGMI_LINKS
_ENGINES: Final = 8  # MAX_GFX_CLKS

# name -> (format of struct, offset); of a whole table the bytes that are not read are left out
_FIRST: Final = {
    "temperature_edge": "H4",
    "temperature_hotspot": "H6",
    "temperature_mem": "H8",
    "temperature_vrgfx": "H10",
    "temperature_vrsoc": "H12",
    "temperature_vrmem": "H14",
    "average_gfx_activity": "H16",
    "average_umc_activity": "H18",
    "average_socket_power": "H22",
    "current_gfxclk": "H54",
    "current_uclk": "H58",
    "current_fan_speed": "H72",
    "pcie_link_width": "H74",
    "pcie_link_speed": "H76",
}
_SECOND: Final = {
    "temperature_hotspot": "H4",
    "temperature_mem": "H6",
    "temperature_vrsoc": "H8",
    "curr_socket_power": "H10",
    "average_gfx_activity": "H12",
    "average_umc_activity": "H14",
}
_RESIDENCIES: Final = (
    "accumulation_counter",
    "prochot_residency_acc",
    "ppt_residency_acc",
    "socket_thm_residency_acc",
    "vr_thm_residency_acc",
    "hbm_thm_residency_acc",
)
_PCIE: Final = (
    "pcie_l0_to_recov_count_acc",
    "pcie_replay_count_acc",
    "pcie_replay_rover_count_acc",
)


def _run(names: tuple[str, ...], form: str, start: int) -> dict[str, str]:
    """Fields of one format that lie side by side."""
    size = struct.calcsize(f"<{form}")
    return {name: f"{form}{start + number * size}" for number, name in enumerate(names)}


_SEVENTH: Final = {
    **_SECOND,
    "energy_accumulator": "Q24",
    **_run(_RESIDENCIES, "I", 40),
    "pcie_link_width": "H68",
    "pcie_link_speed": "H70",
    **_run(_PCIE, "Q", 104),
    **_run(("pcie_nak_sent_count_acc", "pcie_nak_rcvd_count_acc"), "I", 128),
    "xgmi_link_status": f"{_LINKS}H264",
    "current_gfxclk": f"{_ENGINES}H296",
    "current_uclk": "H336",
}
_TABLES: Final[Mapping[int, tuple[int, Mapping[str, str]]]] = {
    # content_revision -> (sizeof, fields)
    0: (
        80,
        {
            **_run(tuple(_FIRST)[:6], "H", 16),
            "average_gfx_activity": "H28",
            "average_umc_activity": "H30",
            "average_socket_power": "H34",
            "current_gfxclk": "H54",
            "current_uclk": "H58",
            "current_fan_speed": "H72",
            "pcie_link_width": "B74",
            "pcie_link_speed": "B75",
        },
    ),
    1: (96, _FIRST),
    2: (104, _FIRST),
    3: (120, {**_FIRST, "indep_throttle_status": "Q112"}),
    4: (
        288,
        {
            **_SECOND,
            "energy_accumulator": "Q24",
            "pcie_link_width": "H48",
            "pcie_link_speed": "H50",
            **_run(_PCIE, "Q", 80),
            "current_gfxclk": f"{_ENGINES}H240",
            "current_uclk": "H280",
        },
    ),
    5: (
        360,
        {
            **_SECOND,
            "energy_accumulator": "Q88",
            "pcie_link_width": "H112",
            "pcie_link_speed": "H114",
            **_run(_PCIE, "Q", 144),
            **_run(("pcie_nak_sent_count_acc", "pcie_nak_rcvd_count_acc"), "I", 168),
            "current_gfxclk": f"{_ENGINES}H312",
            "current_uclk": "H352",
        },
    ),
    6: (
        1664,
        {
            **_SECOND,
            "energy_accumulator": "Q16",
            **_run(_RESIDENCIES, "I", 32),
            "pcie_link_width": "H60",
            "pcie_link_speed": "H62",
            **_run(_PCIE, "Q", 96),
            **_run(("pcie_nak_sent_count_acc", "pcie_nak_rcvd_count_acc"), "I", 120),
            "current_gfxclk": f"{_ENGINES}H264",
            "current_uclk": "H304",
        },
    ),
    7: (2208, _SEVENTH),
    8: (3360, _SEVENTH),
}
_SENSORS: Final = {
    "temperature_edge": "edge",
    "temperature_hotspot": "hotspot",
    "temperature_mem": "mem",
    "temperature_vrgfx": "vrgfx",
    "temperature_vrsoc": "vrsoc",
    "temperature_vrmem": "vrmem",
}
# reasons by the names of the tool amd-smi
_REASONS: Final = {
    "prochot_residency_acc": "prochot",
    "ppt_residency_acc": "ppt",
    "socket_thm_residency_acc": "socket_thermal",
    "vr_thm_residency_acc": "vr_thermal",
    "hbm_thm_residency_acc": "hbm_thermal",
}
_PCIE_ERRORS: Final = {
    "pcie_l0_to_recov_count_acc": "l0_to_recovery",
    "pcie_replay_rover_count_acc": "replay_roll_over",
    "pcie_nak_sent_count_acc": "nak_sent",
    "pcie_nak_rcvd_count_acc": "nak_received",
}
# SMU_THROTTLER_*_BIT of drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h
_THROTTLERS: Final = {
    **dict(enumerate(("ppt0", "ppt1", "ppt2", "ppt3", "spl", "fppt", "sppt", "sppt_apu"))),
    **dict(
        enumerate(
            ("tdc_gfx", "tdc_soc", "tdc_mem", "tdc_vdd", "tdc_cvip", "edc_cpu", "edc_gfx", "apcc"),
            start=16,
        )
    ),
    **dict(
        enumerate(
            (
                *("temp_gpu", "temp_core", "temp_mem", "temp_edge", "temp_hotspot", "temp_soc"),
                *("temp_vr_gfx", "temp_vr_soc", "temp_vr_mem0", "temp_vr_mem1"),
                *("temp_liquid0", "temp_liquid1", "vrhot0", "vrhot1", "prochot_cpu", "prochot_gfx"),
            ),
            start=32,
        )
    ),
    56: "ppm",
    57: "fit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetrics:
    """What the table states; None is missing.

    Temperatures are in degrees Celsius by sensor; ``clock_mhz`` is of the fastest of a GPU's
    graphics engines; ``link_gt_s`` is the transfer rate of PCI Express. ``throttled_ticks`` counts
    by reason, in periods of the firmware, of which ``ticks`` have passed. ``links_up`` are the
    states of xGMI links by number.
    """

    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    power_w: float | None = None
    energy_j: float | None = None
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    fan_rpm: float | None = None
    throttling: tuple[str, ...] | None = None
    throttled_ticks: Mapping[str, int] = field(default_factory=dict)
    ticks: int | None = None
    link_gt_s: float | None = None
    link_width: int | None = None
    replays: int | None = None
    link_errors: Mapping[str, int] = field(default_factory=dict)
    links_up: Mapping[int, bool] = field(default_factory=dict)


def read_metrics(data: bytes) -> GpuMetrics | None:
    """The table in ``data``; None for one that is cut off or of a revision that is not known."""
    if len(data) < _HEADER.size:
        return None
    size, form, content = _HEADER.unpack_from(data)
    least, fields = _TABLES.get(content, (0, {}))
    if form != 1 or not fields or not least <= size <= len(data):
        return None
    found = {name: _values(data, place) for name, place in fields.items()}
    one = without_none({name: values[0] for name, values in found.items()})
    clocks = found["current_gfxclk"]
    speed, energy = one.get("pcie_link_speed"), one.get("energy_accumulator")
    status = one.get("indep_throttle_status")
    return GpuMetrics(
        temperatures_c=_named(one, _SENSORS),
        power_w=one.get("curr_socket_power", one.get("average_socket_power")),
        energy_j=energy * _ENERGY_UNIT_J if energy is not None else None,
        utilization_percent=one.get("average_gfx_activity"),
        memory_utilization_percent=one.get("average_umc_activity"),
        clock_mhz=max((c for c in clocks if c is not None), default=None),
        memory_clock_mhz=one.get("current_uclk"),
        fan_rpm=one.get("current_fan_speed"),
        throttling=None
        if status is None
        else tuple(name for bit, name in _THROTTLERS.items() if status >> bit & 1),
        throttled_ticks=_named(one, _REASONS),
        ticks=one.get("accumulation_counter"),
        link_gt_s=speed / 10 if speed is not None else None,
        link_width=one.get("pcie_link_width"),
        replays=one.get("pcie_replay_count_acc"),
        link_errors=_named(one, _PCIE_ERRORS),
        links_up={
            number: state == 1
            for number, state in enumerate(found.get("xgmi_link_status", ()))
            if state in (0, 1)
        },
    )


def _values(data: bytes, place: str) -> tuple[int | None, ...]:
    """The numbers at a place such as "8H264"; None for all ones."""
    at = place.rstrip("0123456789")
    form, offset = at, int(place[len(at) :])
    absent = (1 << 8 * struct.calcsize(f"<{form[-1]}")) - 1
    found = struct.unpack_from(f"<{form}", data, offset)
    return tuple(None if value == absent else value for value in found)


def _named(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: values[name] for name, new in names.items() if name in values}


KIND: Final = "amdgpu"
_VENDOR: Final = "amd"
_HWMON_SENSORS: Final = {"edge": "edge", "junction": "hotspot", "mem": "mem"}
# (sensor, file) -> what happens there
_LIMITS: Final = {
    ("hotspot", "crit"): "slowdown",
    ("hotspot", "emergency"): "shutdown",
    ("mem", "crit"): "memory-slowdown",
}
_HIGHEST_PWM: Final = 255  # Documentation/hwmon/sysfs-interface.rst
_ERROR_COUNT: Final = re.compile(r"(\w{1,30})_err_count")
_PAGE_STATES: Final = {"R": "retired", "F": "unreservable", "P": "pending"}


def kernel_findings(tree: Tree, only: str | None = None, *, changing: bool = False) -> Findings:
    """Of the GPU at the PCI address ``only`` or of all that the driver's files describe.

    Links are for samples alone, with ``changing``: their other ends are not known.
    """
    readings, links = [], list[Link]()
    for gpu in pci_gpus(tree).values():
        folder = f"{PCI_DEVICES}/{gpu.pci}"
        if gpu.vendor != _VENDOR or gpu.pci is None or only not in (None, gpu.pci):
            continue
        metrics = read_metrics(tree.data(f"{folder}/gpu_metrics") or b"") or GpuMetrics()
        reading = _reading(tree, folder, gpu.pci, metrics)
        # PCI alone, without a driver, states nothing that changes
        if reading.state != GpuState():
            readings.append(reading)
            links += _links(gpu.pci, metrics) if changing else []
    return Findings(kind=KIND, readings=tuple(readings), links=tuple(links))


def _reading(tree: Tree, folder: str, pci: str, metrics: GpuMetrics) -> Reading:
    unique_id = hexadecimal(tree.text(f"{folder}/unique_id")) or None
    replays = tree.integer(f"{folder}/pcie_replay_count")
    speed = metrics.link_gt_s
    return Reading(
        source=KIND,
        vendor=_VENDOR,
        pci=pci,
        uuid=rocr_uuid(unique_id),
        unique_id=unique_id,
        name=tree.text(f"{folder}/product_name") or None,
        memory_bytes=tree.integer(f"{folder}/mem_info_vram_total") or None,
        pcie=Pcie(
            generation=GENERATION.get(speed) if speed is not None else None,
            width=metrics.link_width,
            replays=metrics.replays if metrics.replays is not None else replays,
            errors=metrics.link_errors,
        ),
        memory=_memory(tree, f"{folder}/ras"),
        state=_state(tree, folder, metrics),
    )


def _state(tree: Tree, folder: str, metrics: GpuMetrics) -> GpuState:
    chip = next(
        (f"{folder}/hwmon/{name}" for name in tree.names(f"{folder}/hwmon", r"hwmon\d+")), ""
    )
    degrees, limits = _temperatures(tree, chip)
    power = _first(tree, chip, "power1_input", "power1_average")
    cap, pwm = tree.integer(f"{chip}/power1_cap"), tree.integer(f"{chip}/pwm1")
    core, memory = (_first(tree, chip, f"freq{number}_input") for number in (1, 2))
    busy = tree.integer(f"{folder}/gpu_busy_percent")
    memory_busy = tree.integer(f"{folder}/mem_busy_percent")
    fan = tree.integer(f"{chip}/fan1_input")
    return GpuState(
        temperatures_c={**metrics.temperatures_c, **degrees},
        limits_c=limits,
        power_w=power / 1e6 if power is not None else metrics.power_w,
        power_limit_w=cap / 1e6 if cap is not None else None,
        energy_j=metrics.energy_j,
        clock_mhz=core / 1e6 if core is not None else metrics.clock_mhz,
        memory_clock_mhz=memory / 1e6 if memory is not None else metrics.memory_clock_mhz,
        utilization_percent=busy if busy is not None else metrics.utilization_percent,
        memory_utilization_percent=memory_busy
        if memory_busy is not None
        else metrics.memory_utilization_percent,
        memory_used_bytes=tree.integer(f"{folder}/mem_info_vram_used"),
        fan_percent=pwm / _HIGHEST_PWM * 100 if pwm is not None else None,
        fan_rpm=fan if fan is not None else metrics.fan_rpm,
        throttling=metrics.throttling,
        throttled_ticks=metrics.throttled_ticks,
        ticks=metrics.ticks,
    )


def _first(tree: Tree, chip: str, *names: str) -> int | None:
    found = (tree.integer(f"{chip}/{name}") for name in names)
    return next((value for value in found if value is not None), None)


def _temperatures(tree: Tree, chip: str) -> tuple[dict[str, float], dict[str, float]]:
    """(degrees by sensor, the sensors' limits by what happens there)."""
    degrees, limits = dict[str, float](), dict[str, float | None]()
    for file in tree.names(chip, r"temp\d+_label") if chip else ():
        base = f"{chip}/{file.removesuffix('_label')}"
        name = _HWMON_SENSORS.get(tree.text(f"{base}_label") or "")
        value = tree.integer(f"{base}_input")
        if name is None or value is None:
            continue
        degrees[name] = value / 1000
        for (sensor, what), happens in _LIMITS.items():
            if sensor == name and (stated := tree.integer(f"{base}_{what}")):
                limits[happens] = stated / 1000
    return degrees, without_none(limits)


def _memory(tree: Tree, folder: str) -> Memory:
    """Errors of each block since the driver was loaded, and bad pages of the GPU's life."""
    blocks: dict[str, tuple[int | None, int | None]] = {}
    for file in tree.names(folder, _ERROR_COUNT.pattern):
        lines = tree.fields(f"{folder}/{file}")
        counts = [
            int(text) if (text := lines.get(key, "")).isdecimal() else None for key in ("ce", "ue")
        ]
        if counts != [None, None]:
            blocks[file.removesuffix("_err_count").upper()] = (counts[0], counts[1])
    listed = tree.text(f"{folder}/gpu_vram_bad_pages")
    if listed is None:
        return Memory(by_block=blocks)
    states = [_PAGE_STATES.get(line.rpartition(":")[2].strip()) for line in listed.splitlines()]
    return Memory(
        by_block=blocks,
        retired_pages={name: states.count(name) for name in ("retired", "unreservable")},
        pending="pending" in states,
    )


def _links(pci: str, metrics: GpuMetrics) -> list[Link]:
    """xGMI links and whether they are up; the table does not say to which GPU each one leads."""
    return [
        Link(
            source=KIND,
            a=End(Node.GPU, pci, pci),
            b=End(Node.UNKNOWN, "not stated"),
            kind="xgmi",
            count=1,
            up=up,
            extra={"link": str(number)},
        )
        for number, up in metrics.links_up.items()
    ]
