"""Readings of GPUs from the amdgpu driver's files below /sys, without a library.

Files and units: Linux ``Documentation/gpu/amdgpu/thermal.rst`` (hwmon, ``*_busy_percent``,
``gpu_metrics``), ``driver-misc.rst`` (memory, replays) and ``ras.rst``. Sensors have the names of
the tool amd-smi.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats.pci import hexadecimal
from portagpu.facts.host.gpus import PCI_DEVICES, pci_gpus
from portagpu.facts.host.kfd import rocr_uuid
from portagpu.facts.pcie import GENERATION
from portagpu.facts.readings import End, Findings, GpuState, Link, Memory, Node, Pcie, Reading
from portagpu.facts.readings.model import without_none
from portagpu_rocm.gpu_metrics import GpuMetrics, read_metrics

if TYPE_CHECKING:
    from portagpu.facts.host import Tree

KIND: Final = "amdgpu"
_VENDOR: Final = "amd"
_SENSORS: Final = {"edge": "edge", "junction": "hotspot", "mem": "mem"}
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
        name = _SENSORS.get(tree.text(f"{base}_label") or "")
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
