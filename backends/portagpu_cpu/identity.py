"""What a CPU is: its cores and units, what it does with each dtype, and its description."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch

from portagpu.devices.collectives.comm import Comm
from portagpu.devices.contract import Capability, Description
from portagpu.devices.precision import EVERYWHERE, Precision, Support
from portagpu.devices.sizing import Sizing
from portagpu.facts.arch import Arch
from portagpu.facts.host.cgroup import read_cgroup
from portagpu.facts.host.cpu import read_cpu
from portagpu.facts.targets import identify
from portagpu_cpu.fp8 import Table
from portagpu_cpu.memory import ROOT, can_reset_peak, free_and_total

if TYPE_CHECKING:
    from portagpu.facts.host.cpu import Cpu

_CAPABILITIES: Final = frozenset(
    {
        Capability.STREAMS,
        Capability.EVENTS,
        Capability.AUTOCAST,
        Capability.COLLECTIVES,
        Capability.IPC,
    }
)

# Units with arithmetic of their own in the dtype, by the names of portagpu.facts.host.features.
# Those of bfloat16 take subnormal numbers for zero (Intel SDM, VDPBF16PS and TDPBF16PS; Arm ARM,
# BFDOT without FEAT_EBF16).
_BF16_UNITS: Final = frozenset({"AVX-512BF16", "AMX-BF16", "BF16", "SVE-BF16", "SME-B16F32"})
_FP16_UNITS: Final = frozenset({"AVX-512FP16", "AMX-FP16", "NEON-FP16", "SME-F16F32"})

_NATIVE: Final = tuple(getattr(torch, name) for name in EVERYWHERE)

_REDUCE_OPS: Final = frozenset({"SUM", "AVG", "PRODUCT", "MIN", "MAX"})
"""For floating-point tensors, as ProcessGroupGloo of torch 2.13 has them."""


@dataclass(frozen=True, slots=True)
class CpuProperties:
    """What ``get_device_properties`` answers on a CPU: torch's field names, and what a CPU adds.

    ``multi_processor_count`` is the number of CPUs that this process may use, ``warp_size`` is 1;
    a unit that the kernel does not show is absent, and unknown numbers are None.
    """

    name: str
    vendor: str | None
    total_memory: int
    multi_processor_count: int
    warp_size: int
    sockets: int | None
    physical_cores: int | None
    logical_cpus: int | None
    vector_units: tuple[str, ...]
    vector_bits: int | None
    matrix_units: tuple[str, ...]


def read_properties(cpu: Cpu) -> CpuProperties:
    """The properties of this machine's CPU."""
    return CpuProperties(
        name=cpu.model_name or cpu.arch or os.uname().machine,
        vendor=cpu.vendor,
        total_memory=free_and_total()[1],
        multi_processor_count=usable_cpus(),
        warp_size=1,
        sockets=cpu.sockets,
        physical_cores=cpu.physical_cores,
        logical_cpus=cpu.logical_cpus,
        vector_units=cpu.vector_units,
        vector_bits=cpu.vector_bits,
        matrix_units=cpu.matrix_units,
    )


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, or the container's quota if less."""
    cpus = len(os.sched_getaffinity(0))
    quota = read_cgroup(ROOT).cpu_quota_cpus
    return max(1, cpus if quota is None else min(cpus, int(quota)))


def precision(cpu: Cpu) -> Precision:
    """What this CPU does with each dtype: by its units, and in fp8 by running it when asked.

    No fp8 instructions are claimed: products of fp8 are emulated or refused, as
    :mod:`portagpu_cpu.fp8` finds.
    """
    units = {*cpu.vector_units, *cpu.matrix_units}
    has_bf16 = bool(units & _BF16_UNITS)
    table = {
        **dict.fromkeys(_NATIVE, Support.NATIVE),
        torch.bfloat16: Support.NATIVE if has_bf16 else Support.EMULATED,
        torch.float16: Support.NATIVE if units & _FP16_UNITS else Support.EMULATED,
    }
    flushes = frozenset({torch.bfloat16}) if has_bf16 else frozenset()
    return Precision(Table(table), flushes=flushes)


def describe(index: int) -> tuple[Description, CpuProperties]:
    """The description of this machine's CPU, and its properties."""
    cpu = read_cpu(ROOT)
    properties = read_properties(cpu)
    arch = Arch("cpu", cpu.arch or os.uname().machine, 1)
    capabilities = _CAPABILITIES
    if can_reset_peak():
        capabilities |= {Capability.PEAK_MEMORY}
    description = Description(
        name="cpu",
        index=index,
        device=torch.device("cpu"),
        arch=arch,
        product=cpu.model_name,
        vendor=cpu.vendor,
        target=identify("cpu", arch.name, cpu.model_name),
        capabilities=capabilities,
        precision=precision(cpu),
        comm=Comm(
            c10d_name="gloo",
            library="Gloo",
            version=None,  # Gloo states no version; it is the one inside this torch
            device_type="cpu",
            reduce_ops=_REDUCE_OPS,
            local_env=MappingProxyType({"GLOO_SOCKET_IFNAME": "lo"}),
            engines=MappingProxyType({"ProcessGroupGloo": "Gloo"}),
        ),
        # a core runs one thread, which is one block of one thread
        sizing=Sizing(
            warp_size=1,
            unit_count=properties.multi_processor_count,
            max_threads_per_block=1,
            max_threads_per_unit=1,
            max_blocks_per_unit=1,
        ),
        versions={"torch": torch.__version__, "driver": None, "kernel": os.uname().release},
    )
    return description, properties
