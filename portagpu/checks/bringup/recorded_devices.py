"""The devices of a recording, described with the same keys as live devices.

A device is a GPU, each of its slices or partitions, or the CPU if the recording has a host and no
GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.base.text import printable
from portagpu.checks.bringup.context import CheckedDevice
from portagpu.facts.host import read_host
from portagpu.facts.targets import identify
from portagpu.machine.inventory.gpu import product_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from portagpu.checks.bringup.device import DeviceFacts
    from portagpu.facts.readings.model import GpuPart
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.gpu import Gpu, Inventory
    from portagpu.machine.inventory.sources import Machine


def recorded_devices(machine: Machine, inventory: Inventory) -> list[CheckedDevice]:
    """Every device that the recording shows, each with a unique name."""
    described = list(_gpus(inventory.gpus)) or list(_cpu(machine))
    called = _distinct_names(facts["device"] for facts in described)
    return [
        CheckedDevice(index, name, {**facts, "device": name})
        for index, (name, facts) in enumerate(zip(called, described, strict=True))
    ]


def device_names(gpus: Iterable[Gpu]) -> list[str]:
    """Each GPU's name in results: its address, UUID, number in a source, or position."""
    return _distinct_names(
        gpu.pci or gpu.uuid or f"GPU{next(iter(gpu.indices.values()), place)}"
        for place, gpu in enumerate(gpus)
    )


def _distinct_names(names: Iterable[str]) -> list[str]:
    """``names`` as results write them; a duplicate gets its position appended."""
    found: dict[str, None] = {}
    for place, text in enumerate(names):
        name = printable(text) or "GPU"
        while name in found:
            name = f"{name} ({place})"
        found[name] = None
    return list(found)


def equal_parts(gpu: Gpu, target: Target | None) -> int | None:
    """The number of equal parts of the GPU, by the units of each; None if unknown."""
    units = {part.unit_count for part in gpu.parts}
    all_units = target.value("exec.unit_count") if target is not None else None
    each = units.pop() if len(units) == 1 else None
    return all_units // each if each and all_units and all_units % each == 0 else None


def _gpus(gpus: tuple[Gpu, ...]) -> Iterator[DeviceFacts]:
    for name, gpu in zip(device_names(gpus), gpus, strict=True):
        target = product_target(gpu)
        if not gpu.parts:
            yield _facts(gpu, name, target)
        of = equal_parts(gpu, target)
        for place, part in enumerate(gpu.parts):
            number = place if part.index is None else part.index
            yield _part_facts(gpu, f"{name} part {number}", part, number, of)


def _facts(gpu: Gpu, name: str, target: Target | None) -> DeviceFacts:
    return {
        "device": name,
        "vendor": gpu.vendor,
        "product": gpu.name,
        "arch_vendor": gpu.vendor,
        "arch": gpu.arch,
        "warp_size": gpu.warp_size,
        "unit_count": gpu.unit_count,
        "reported": _reported_fields(gpu.unit_count, gpu.memory_bytes, gpu.state.max_clock_mhz),
        "part": None,
        "memory_bytes": gpu.memory_bytes,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "parent": None,
        "target": target.id if target is not None else None,
        "target_scope": str(target.scope) if target is not None else None,
        "capabilities": None,
        "versions": {"driver": gpu.driver_version},
    }


def _part_facts(gpu: Gpu, name: str, part: GpuPart, number: int, of: int | None) -> DeviceFacts:
    profile = part.profile or gpu.compute_partition or str(number)
    return {
        **_facts(gpu, name, None),
        "part": {"name": profile, "product": gpu.name, "of": of},
        "uuid": part.uuid,
        "parent": gpu.pci,
        "memory_bytes": part.memory_bytes,
        "unit_count": part.unit_count,
        "reported": _reported_fields(part.unit_count, part.memory_bytes, None),
    }


def _reported_fields(
    units: int | None, memory_bytes: int | None, clock_mhz: float | None
) -> dict[str, float]:
    """The same in torch's fields and units; unknown values are left out."""
    stated = {
        "multi_processor_count": units,
        "total_memory": memory_bytes,
        "clock_rate": None if clock_mhz is None else 1000 * clock_mhz,
    }
    return {field: value for field, value in stated.items() if value is not None}


def _cpu(machine: Machine) -> Iterator[DeviceFacts]:
    """The CPU, if the machine's files show one."""
    host = read_host(machine.tree)
    cpu = host.cpu
    if cpu.logical_cpus is None or cpu.arch is None:
        return
    target = identify("cpu", cpu.arch, cpu.model_name, host.memory.total_bytes, cpu.physical_cores)
    yield {
        "device": "cpu",
        "vendor": "cpu",
        "product": cpu.model_name,
        "arch_vendor": "cpu",
        "arch": cpu.arch,
        "warp_size": None,
        "unit_count": cpu.physical_cores,
        "reported": {},
        "part": None,
        "memory_bytes": host.usable_memory_bytes,
        "uuid": None,
        "pci": None,
        "parent": None,
        "target": target.id if target is not None else None,
        "target_scope": str(target.scope) if target is not None else None,
        "capabilities": None,
        "versions": {},
    }
