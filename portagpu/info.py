"""The document of ``portagpu info``: what is here, what it matches, and what can be used.

Built without torch and without any vendor library.
"""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.errors import TargetError
from portagpu.host import Host, PciGpu, gpus_on_machine, read_host, visibility
from portagpu.target import identify, load_targets, target_problems
from portagpu.torchbuild import TorchBuild, library_versions, torch_build
from portagpu.visible import diagnose, runtimes_on

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA: Final = "portagpu.info/1"
INSTALL_TORCH: Final = "pip install 'portagpu[torch]', or your vendor's torch wheel"

# Docker's default for --shm-size (docker run reference): too small for data loaders and for
# collectives that exchange buffers through shared memory
_SMALL_SHM_BYTES: Final = 64 << 20
_UNUSABLE_DRIVERS: Final = {
    None: "has no kernel driver: load its vendor's driver",
    "vfio-pci": "is bound to vfio-pci, which hands it to virtual machines: bind its own driver",
}
_REMARKS_ON_VARIABLES: Final = {
    "HSA_OVERRIDE_GFX_VERSION": "makes the GPUs pose as another architecture: unset it to trust "
    "what is identified",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One schedulable accelerator, or the CPU where there is none; None is unknown.

    ``parent`` is the PCI address of the GPU of which this is a partition.
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


def collect(root: Path | str = "/", environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The document ``portagpu.info/1`` of the machine below ``root``, ready for JSON."""
    from portagpu.registry import statuses

    host, gpus, build = read_host(root), gpus_on_machine(root), torch_build()
    visible = visibility(environment)
    found = statuses()
    return {
        "schema": SCHEMA,
        "devices": [dataclasses.asdict(device) for device in devices(host, gpus)],
        "backends": [
            {"name": name, "usable": status.usable, "reason": status.reason}
            for name, status in found.items()
        ],
        "host": {
            "usable_cpus": host.usable_cpus,
            "usable_memory_bytes": host.usable_memory_bytes,
            **dataclasses.asdict(host),
        },
        "visible": visible,
        "libraries": {"python": platform.python_version(), **library_versions()}
        | {"portagpu": __version__},
        "torch": dataclasses.asdict(build) if build is not None else None,
        "remarks": [
            *remarks(host, gpus, build, visible, backends=len(found)),
            *_remarks_on_targets(),
        ],
    }


def devices(host: Host, gpus: tuple[PciGpu, ...]) -> tuple[Device, ...]:
    """The schedulable devices: every GPU or each of its partitions, the CPU when there is none."""
    if not gpus:
        return (_cpu(host),)
    return tuple(device for gpu in gpus for device in _gpu(gpu))


def remarks(
    host: Host,
    gpus: tuple[PciGpu, ...],
    build: TorchBuild | None,
    visible: Mapping[str, str],
    backends: int,
) -> list[str]:
    """What a reader should act on, one sentence each."""
    found: list[str] = []
    if build is None:
        found.append(f"torch is not installed: {INSTALL_TORCH}")
    elif build.problem is not None:
        found.append(build.problem)
    elif build.kind == "cpu" and gpus:
        vendors = " and ".join(sorted({gpu.vendor for gpu in gpus}))
        found.append(
            f"torch {build.version} has no GPU build, and this machine has {len(gpus)} GPU(s) of "
            f"{vendors}: install your vendor's torch wheel to use them"
        )
    if backends == 0:
        found.append("no backend is declared: install portagpu with pip, which registers them")
    found.extend(
        f"the GPU at {gpu.pci} {_UNUSABLE_DRIVERS[gpu.driver]}"
        for gpu in gpus
        if gpu.driver in _UNUSABLE_DRIVERS and gpu.arch is None and gpu.device_file is None
    )
    shm = host.limits.shm_bytes
    if shm is not None and shm <= _SMALL_SHM_BYTES:
        found.append(
            f"shared memory (/dev/shm) has {shm >> 20} MiB, too little for several processes: "
            "give the container more (docker run --shm-size, or --ipc=host)"
        )
    found.extend(
        f"{name}={visible[name]} {text}"
        for name, text in _REMARKS_ON_VARIABLES.items()
        if name in visible
    )
    kind = build.kind if build is not None else None
    for runtime in runtimes_on(kind, (gpu.vendor for gpu in gpus)):
        found.extend(problem.message for problem in diagnose(visible, runtime))
    return found


def _remarks_on_targets() -> list[str]:
    try:
        load_targets()
    except TargetError as error:
        return [f"no target is matched: {error}"]
    return [f"the targets of {each.entry_point}: {each.reason}" for each in target_problems()]


def _target(
    vendor: str, arch: str | None, product: str | None, memory: int | None, units: int | None
) -> str | None:
    if arch is None:
        return None
    try:
        target = identify(vendor, arch, product, memory, units)
    except TargetError:
        # said once, among the remarks
        return None
    return target.id if target is not None else None


def _cpu(host: Host) -> Device:
    cpu = host.cpu
    return Device(
        kind="cpu",
        vendor="cpu",
        name=cpu.model_name,
        arch=cpu.arch,
        memory_bytes=host.usable_memory_bytes,
        target=_target(
            "cpu", cpu.arch, cpu.model_name, host.memory.total_bytes, cpu.physical_cores
        ),
    )


def _gpu(gpu: PciGpu) -> tuple[Device, ...]:
    whole = Device(
        kind="gpu",
        vendor=gpu.vendor,
        name=gpu.name,
        arch=gpu.arch,
        uuid=gpu.uuid,
        pci=gpu.pci,
        memory_bytes=gpu.memory_bytes,
        target=_target(gpu.vendor, gpu.arch, gpu.name, gpu.memory_bytes, gpu.unit_count),
    )
    # a partition has no identity of its own that the kernel would show
    return tuple(
        dataclasses.replace(whole, uuid=None, memory_bytes=part.memory_bytes, parent=gpu.pci)
        for part in gpu.partitions
    ) or (whole,)
