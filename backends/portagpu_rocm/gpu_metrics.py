"""The binary table ``gpu_metrics`` of the amdgpu driver, revisions 1.0 to 1.8.

Layout, units and names of the fields: Linux ``drivers/gpu/drm/amd/include/kgd_pp_interface.h``
(torvalds/linux @2be02a7c996a), natural alignment, little-endian. The driver fills the table with
ones and writes what the GPU states: a field that is all ones is missing. A revision is no extension
of the one before. Tables 1.9 (a list of attributes), 2.x and 3.x (of processors with graphics) are
not read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.readings.model import without_none

if TYPE_CHECKING:
    from collections.abc import Mapping

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
