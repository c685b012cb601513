"""A device under test: described by its own rank, or from a recording; and the test of its memory.

Of a recording a device is a GPU, each of its slices or partitions, or the CPU if the recording has
a host and no GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from portagpu.base.text import printable
from portagpu.checks.bringup.device_properties import FIELDS
from portagpu.facts.host import read_host
from portagpu.facts.targets import identify
from portagpu.machine.inventory.gpu import product_target
from portagpu.train.exact.memory import PATTERNS, WORD_BYTES, HeldMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

    from portagpu.devices.collectives.comm import Comm
    from portagpu.facts.readings.model import GpuPart
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.gpu import Gpu, Inventory
    from portagpu.machine.inventory.sources import Machine
    from portagpu.runs.world import Rank


class PartFacts(TypedDict):
    """The fields of ``portagpu.devices.contract.Part``."""

    name: str
    product: str | None
    of: int | None


class DeviceFacts(TypedDict):
    """What is known of a device under test, as JSON; what is unknown is None."""

    device: str
    vendor: str | None
    product: str | None
    arch_vendor: str
    arch: str | None
    warp_size: int | None
    unit_count: int | None
    reported: Mapping[str, float]
    """What torch or a recording states of ``FIELDS``."""
    part: PartFacts | None
    memory_bytes: int | None
    uuid: str | None
    pci: str | None
    target: str | None
    target_scope: str | None
    capabilities: list[str] | None
    versions: dict[str, str | None]
    parent: NotRequired[str | None]
    """Of a recorded part: the PCI address of its GPU. What follows needs an open device."""
    backend: NotRequired[str]
    count: NotRequired[int]
    """The number of devices of its backend."""
    integrated: NotRequired[bool | None]
    free_bytes: NotRequired[int]
    comm_library: NotRequired[str]
    comm_version: NotRequired[str | None]
    comm_available: NotRequired[bool | None]
    """Whether this torch has the library; None if the device has none."""
    torch: NotRequired[str]
    contract: NotRequired[list[int]]


@dataclass(frozen=True, slots=True)
class CheckedDevice:
    """One device as its backend describes it, read in its own rank."""

    index: int
    name: str
    """What results call it: "cpu", "cuda:3"."""
    facts: DeviceFacts


def describe(rank: Rank) -> DeviceFacts:
    """The facts of the rank's device."""
    import torch

    gpu, part = rank.gpu, rank.gpu.part
    properties = gpu.get_device_properties()
    free, total = gpu.mem_get_info()
    return {
        "backend": gpu.name,
        "count": gpu.device_count(),
        "device": str(gpu.device),
        "vendor": gpu.vendor,
        "product": gpu.product,
        "arch_vendor": gpu.arch.vendor,
        "arch": gpu.arch.name,
        "warp_size": gpu.arch.warp_size,
        "unit_count": properties.multi_processor_count,
        "reported": _reported_fields(properties),
        "part": {"name": part.name, "product": part.product, "of": part.of} if part else None,
        "integrated": getattr(gpu, "integrated", None),
        "memory_bytes": total,
        "free_bytes": free,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "target": gpu.target.id if gpu.target is not None else None,
        "target_scope": str(gpu.target.scope) if gpu.target is not None else None,
        "capabilities": sorted(gpu.capabilities),
        "versions": dict(gpu.versions),
        "comm_library": gpu.comm.library,
        "comm_version": gpu.comm.version,
        "comm_available": _has_library(gpu.comm),
        "torch": str(torch.__version__),
        "contract": list(gpu.plugin.contract),
    }


def _has_library(comm: Comm) -> bool | None:
    """Whether this torch has the communication library; None if the device has none."""
    import torch.distributed as dist

    if not comm.c10d_name:
        return None
    return dist.is_available() and dist.is_backend_available(comm.c10d_name)


def _reported_fields(properties: Any) -> dict[str, float]:
    """The fields of ``FIELDS`` that torch reports.

    torch reads some of them from the runtime on access, which may raise.
    """
    found = {}
    for name in FIELDS:
        with contextlib.suppress(AttributeError, RuntimeError):
            found[name] = getattr(properties, name)
    return found


def pattern_test(rank: Rank, nbytes: int, seed: int) -> dict[str, Any]:
    """Write patterns over ``nbytes`` of the device's memory and read each back whole.

    Returns the bytes tested, for each of ``PATTERNS`` the number of wrong 8-byte words and the byte
    offset of the first, and the digest of what is wrong, which is empty where nothing is.
    """
    import torch

    words = torch.empty(nbytes // WORD_BYTES, dtype=torch.int64, device=rank.gpu.device)
    return check_memory(words, rank.gpu.synchronize, seed, rank.step)


def check_memory(
    words: torch.Tensor,
    synchronize: Callable[[], None],
    seed: int,
    step: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """The pattern test over contiguous int64 ``words`` of shape (words,)."""
    held = HeldMemory(words, synchronize, seed)
    report: dict[str, Any] = {"bytes": words.nbytes, "patterns": {}}
    digests = []
    for name in PATTERNS:
        step(name)
        held.fill(name)
        wrong = held.wrong(name)
        digests += [f"{name} {wrong.digest()}"] if wrong else []
        report["patterns"][name] = {
            "wrong_words": wrong.count if wrong else 0,
            "first_offset": int(wrong.places[0]) * WORD_BYTES if wrong else None,
        }
    all_of_them = hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
    return {**report, "digest": all_of_them if digests else ""}


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
        "reported": _recorded_fields(gpu.unit_count, gpu.memory_bytes, gpu.state.max_clock_mhz),
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
        "reported": _recorded_fields(part.unit_count, part.memory_bytes, None),
    }


def _recorded_fields(
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
