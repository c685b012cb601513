"""Diagnostics of ``portagpu info``: one sentence for each problem, with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.base.plugins import install
from portagpu.facts.vendors import vendor_named, vendors
from portagpu.facts.visible import diagnose, relevant_runtimes
from portagpu.facts.visible.mask import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.facts.host import Host
    from portagpu.facts.host.limits import Limits
    from portagpu.facts.host.machine import Settings
    from portagpu.facts.torchbuild import TorchBuild
    from portagpu.machine.inventory import Gpu

_WHERE: Final = "https://pytorch.org/get-started/locally"
# Docker's default for --shm-size (docker run reference): too small for data loaders and for
# collectives that exchange buffers through shared memory
_SMALL_SHM_BYTES: Final = 64 << 20
_UNUSABLE_DRIVERS: Final = {
    None: "has no kernel driver: load its vendor's driver",
    "vfio-pci": "is bound to vfio-pci, which hands it to virtual machines: bind its own driver",
}
_ON_THE_BUS_ALONE: Final = frozenset({"sysfs pci", "pci-id", "dev"})


def install_torch() -> str:
    """What to do where torch is missing."""
    return f"{install('torch')}, or your vendor's torch wheel"


def machine_diagnostics(
    host: Host,
    gpus: Sequence[Gpu],
    build: TorchBuild | None,
    visible: Mapping[str, str],
    settings: Settings,
) -> list[str]:
    """Diagnostics of the machine, the most severe first; empty where there is nothing to do."""
    found = [*_gpu_diagnostics(gpus), *shared_memory_diagnostics(host.limits)]
    found.extend(settings_diagnostics(settings, gpus, len(host.cpu.numa_nodes)))
    disguises = [each for vendor in vendors().values() for each in vendor.disguises.items()]
    found.extend(f"{name}={visible[name]} {text}" for name, text in disguises if name in visible)
    kind = build.kind if build is not None else None
    for runtime in relevant_runtimes(kind, (gpu.vendor for gpu in gpus)):
        found.extend(problem.message for problem in diagnose(visible, runtime))
    return found


def software_diagnostics(
    build: TorchBuild | None, gpus: Sequence[Gpu], backends: Sequence[str], wanted: str | None
) -> Iterable[str]:
    """Whether torch is there and fits the GPUs, and whether there are backends.

    ``wanted`` is the backend that the environment asks for.
    """
    yield from _torch_diagnostics(build, gpus)
    if wanted and wanted not in backends:
        yield (
            f"PORTAGPU_BACKEND={quoted(wanted)} names no backend that is declared: unset it, or "
            f"give one of {', '.join(backends)}"
        )
    if not backends:
        yield "no backend is declared: install portagpu with pip, which registers them"


def _torch_diagnostics(build: TorchBuild | None, gpus: Sequence[Gpu]) -> Iterable[str]:
    """Diagnostics of a torch that is missing or was built for other GPUs."""
    if build is None:
        yield f"torch is not installed: {install_torch()}"
        return
    if build.problem is not None:
        yield build.problem
        return
    # where any build of torch may do, only the status of the backend says what it needs
    builds = {name: each.torch_build for name, each in vendors().items() if each.torch_build}
    known = [gpu for gpu in gpus if gpu.vendor in builds]
    makers = sorted({gpu.vendor for gpu in known})
    others = [vendor for vendor in makers if builds[vendor] != build.kind]
    if not others:
        return
    here = f"{len(known)} GPU(s) of {' and '.join(makers)}"
    wanted = " or ".join(builds[vendor] for vendor in others)
    install = f"install a {wanted} build ({_WHERE}), and keep it with pip's --constraint"
    if build.kind == "cpu":
        yield f"torch {build.version} has no GPU build, and this machine has {here}: {install}"
    elif len(others) == len(makers):
        yield (
            f"torch {build.version} is a {build.kind} build and cannot use the {here}: installing "
            f"something that needs torch may have replaced yours; {install}"
        )
    else:
        yield (
            f"torch {build.version} is a {build.kind} build, and this machine has {here}: those of "
            f"{' and '.join(others)} need a {wanted} build in an environment of their own"
        )


def _gpu_diagnostics(gpus: Sequence[Gpu]) -> Iterable[str]:
    for gpu in gpus:
        vendor = vendor_named(gpu.vendor)
        unusable: dict[str | None, str] = {**_UNUSABLE_DRIVERS}
        unusable.update(vendor.unusable_drivers)
        if gpu.driver in unusable and _ON_THE_BUS_ALONE.issuperset(gpu.sources):
            yield f"the GPU at {gpu.pci} {unusable[gpu.driver]}"
        if gpu.mig_enabled and not gpu.parts:
            yield f"the GPU at {gpu.pci} {vendor.unsliced}"
    same: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        for sentence in gpu.disagreements:
            same.setdefault(sentence, []).append(gpu)
    for sentence, those in same.items():
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        yield (
            f"sources contradict each other on the GPU at {those[0].pci}{more}: {sentence}; "
            "versions that do not belong together are the usual cause"
        )


def shared_memory_diagnostics(limits: Limits) -> Iterable[str]:
    """Whether shared memory is too small for several processes."""
    shm = limits.shm_bytes
    if shm is not None and shm <= _SMALL_SHM_BYTES:
        yield (
            f"shared memory (/dev/shm) has {shm >> 20} MiB, too little for several processes: "
            "give the container more (docker run --shm-size, or --ipc=host)"
        )


def settings_diagnostics(settings: Settings, gpus: Sequence[Gpu], numa_nodes: int) -> Iterable[str]:
    """Kernel settings that the GPUs' vendor or their links need to be different."""
    for tuning in (each.tuning for each in vendors().values() if each.tuning is not None):
        if not any(tuning.product in (gpu.name or "").lower() for gpu in gpus):
            continue
        if tuning.translated and settings.iommu == "translated":
            yield tuning.translated
        if tuning.balancing and settings.numa_balancing and numa_nodes > 1:
            yield tuning.balancing
        if tuning.moved and {"pci=realloc", "pci=realloc=on"} & set(settings.parameters):
            yield tuning.moved
    bridges = settings.acs_redirects
    if bridges and len(gpus) > 1:
        shown = ", ".join(bridges[:3]) + (", ..." if len(bridges) > 3 else "")
        yield (
            f"ACS on {len(bridges)} PCI bridge(s) above GPUs ({shown}) sends traffic between peers "
            "through the CPU, which slows it or makes it hang: disable ACS in the BIOS or with "
            "setpci (NCCL user guide, troubleshooting: PCI Access Control Services)"
        )
