"""The document of ``portagpu info``: devices, their targets, and usable backends.

It needs no torch. Vendors' libraries are probed in child processes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import TargetError
from portagpu.checks.diagnostics import machine_diagnostics, software_diagnostics
from portagpu.devices.registry import VARIABLE
from portagpu.facts.host import Host, read_host, visibility
from portagpu.facts.host.machine import read_settings
from portagpu.facts.targets import identify
from portagpu.machine.inventory.gpu import product_target
from portagpu.machine.inventory.sources import Live
from portagpu.runs.judges.gpu_health import declaration_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from portagpu.facts.targets import Target
    from portagpu.machine.inventory import Gpu
    from portagpu.machine.inventory.sources import Machine

SCHEMA: Final = "portagpu.info/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulableDevice:
    """One schedulable accelerator, or the CPU where there is none; None is unknown.

    Of a partition or slice, ``parent`` is the PCI address of its GPU and ``profile`` its kind
    ("CPX", "3g.40gb"). ``driver`` is the kernel driver's name, ``device_file`` the file that a
    process opens.
    """

    kind: str
    vendor: str
    name: str | None = None
    arch: str | None = None
    uuid: str | None = None
    pci: str | None = None
    memory_bytes: int | None = None
    target: str | None = None
    parent: str | None = None
    profile: str | None = None
    numa_node: int | None = None
    driver: str | None = None
    driver_version: str | None = None
    device_file: str | None = None


def collect(
    root: Path | str = "/",
    environment: Mapping[str, str] | None = None,
    *,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """The document ``portagpu.info/1`` of a machine, ready for JSON.

    :param root: The root of the machine's files.
    :param environment: Its variables; by default those of this process.
    :param machine: The machine instead of the one below ``root``, such as a recording.
    :returns: Devices, backends, host, versions and diagnostics; sizes are in bytes.
    """
    machine = machine or Live(root, environment)
    inventory, host, build = machine.inventory(), read_host(machine.tree), machine.torch()
    gpus, visible, found = inventory.gpus, visibility(machine.environment), machine.backends()
    wanted = machine.environment.get(VARIABLE)
    # of a recorded log not even the CPU is known
    shown = bool(gpus) or machine.software_known or host.cpu.logical_cpus is not None
    settings = read_settings(machine.tree, (gpu.pci for gpu in gpus if gpu.pci is not None))
    return {
        "schema": SCHEMA,
        "devices": [dataclasses.asdict(each) for each in devices(host, gpus) if shown],
        "backends": [
            {"name": name, "usable": status.usable, "reason": status.reason}
            for name, status in found.items()
        ],
        "host": {
            "usable_cpus": host.usable_cpus,
            "usable_memory_bytes": host.usable_memory_bytes,
            **dataclasses.asdict(host),
            "settings": dataclasses.asdict(settings),
        },
        "visible": visible,
        "libraries": dict(machine.libraries()),
        "torch": dataclasses.asdict(build) if build is not None else None,
        "gpus": [_gpu_document(gpu) for gpu in gpus],
        "events": [dataclasses.asdict(event) for event in inventory.events],
        "versions": dict(inventory.versions),
        "sources": list(inventory.kinds),
        "software_known": machine.software_known,
        "remarks": [
            *(
                software_diagnostics(build, gpus, tuple(found), wanted)
                if machine.software_known
                else ()
            ),
            *machine_diagnostics(host, gpus, build, visible, settings),
            *inventory.problems,
            *declaration_problems(),
        ],
    }


def _gpu_document(gpu: Gpu) -> dict[str, Any]:
    """The GPU without its processes, of which the number stays: they are a user's."""
    document = dataclasses.asdict(gpu)
    del document["state"]["process_list"]
    return document


def devices(host: Host, gpus: Sequence[Gpu]) -> tuple[SchedulableDevice, ...]:
    """The schedulable devices: every GPU or each of its parts, the CPU when there is none."""
    if not gpus:
        return (_cpu_device(host),)
    return tuple(device for gpu in gpus for device in _gpu_devices(gpu))


def _target_id(match: Callable[[], Target | None]) -> str | None:
    try:
        target = match()
    except TargetError:
        # said once, among the remarks
        return None
    return target.id if target is not None else None


def _cpu_device(host: Host) -> SchedulableDevice:
    cpu = host.cpu
    return SchedulableDevice(
        kind="cpu",
        vendor="cpu",
        name=cpu.model_name,
        arch=cpu.arch,
        memory_bytes=host.usable_memory_bytes,
        target=_target_id(
            lambda: identify(
                "cpu", cpu.arch or "", cpu.model_name, host.memory.total_bytes, cpu.physical_cores
            )
        ),
    )


def _gpu_devices(gpu: Gpu) -> tuple[SchedulableDevice, ...]:
    whole = SchedulableDevice(
        kind="gpu",
        vendor=gpu.vendor,
        name=gpu.name,
        arch=gpu.arch,
        uuid=gpu.uuid,
        pci=gpu.pci,
        memory_bytes=gpu.memory_bytes,
        target=_target_id(lambda: product_target(gpu)),
        numa_node=gpu.numa_node,
        driver=gpu.driver,
        driver_version=gpu.driver_version,
        device_file=gpu.device_file,
    )
    return tuple(
        dataclasses.replace(
            whole,
            uuid=part.uuid,
            memory_bytes=part.memory_bytes,
            parent=gpu.pci,
            profile=part.profile,
            device_file=part.device_file,
        )
        for part in gpu.parts
    ) or (whole,)
