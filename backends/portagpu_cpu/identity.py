"""What a CPU is: its cores and units, what it does with each dtype, and its description.

What torch does with fp8 is found out by a product of each format: no list of units says it. torch
multiplies fp8 matrices in float32 on a CPU without AMX-INT8, and hands them to oneDNN on one with
it, unless ``torch.backends.mkldnn`` is switched off (pytorch, aten/src/ATen/native/Blas.cpp or
ScaledBlas.cpp, ``_scaled_mm_out_cpu``). There torch refuses the FNUZ formats
(mkldnn/MKLDNNCommon.cpp, ``itensor_view_from_dense`` and ``get_mkldnn_dtype``), and oneDNN 3.7 to
3.12 takes the OCP formats from AVX512_CORE_FP16 on (src/cpu/platform.cpp,
``has_data_type_support``), so that ``ONEDNN_MAX_CPU_ISA`` decides too. torch does not multiply by
itself what is refused there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch

from portagpu.devices.collectives.comm import Comm
from portagpu.devices.contract import Capability, Description
from portagpu.devices.precision import EVERYWHERE, Precision, Support
from portagpu.devices.precision.formats import FP8_NAMES
from portagpu.devices.sizing import Sizing
from portagpu.facts.arch import Arch
from portagpu.facts.host.cpu import read_cpu
from portagpu.facts.host.limits import read_cgroup
from portagpu.facts.targets import identify
from portagpu_cpu.memory import ROOT, can_reset_peak, free_and_total

if TYPE_CHECKING:
    from portagpu.facts.host.cpu import Cpu


FP8: Final = tuple(getattr(torch, name) for name in FP8_NAMES)


class Table(Mapping[torch.dtype, Support]):
    """``known``, and the support of each fp8 dtype, which is found out when it is asked for."""

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[torch.dtype, Support]) -> None:
        self._known = dict(known)

    def __getitem__(self, dtype: torch.dtype) -> Support:
        return fp8_support(dtype) if dtype in FP8 else self._known[dtype]

    def __contains__(self, dtype: object) -> bool:
        return dtype in FP8 or dtype in self._known

    def __iter__(self) -> Iterator[torch.dtype]:
        yield from self._known
        yield from FP8

    def __len__(self) -> int:
        return len(self._known) + len(FP8)

    def __repr__(self) -> str:
        return repr(dict(self))


def fp8_support(dtype: torch.dtype) -> Support:
    """EMULATED where torch's scaled product of this fp8 dtype is right on this CPU, else STORAGE.

    Runs one product of small matrices at the first question, and again where oneDNN was switched
    on or off since.
    """
    return Support.EMULATED if _works(dtype) else Support.STORAGE


def _works(dtype: torch.dtype) -> bool:
    return _works_with(dtype, torch.backends.mkldnn.enabled)


# what torch.compiler.assume_constant_result sets, whose import of torch._dynamo takes a second:
# code that is compiled asks then, and does not trace the product
setattr(_works, "_dynamo_marked_constant", True)  # noqa: B010 - mypy knows no such field


@cache
def _works_with(dtype: torch.dtype, onednn: bool) -> bool:
    del onednn  # a key: it decides who multiplies
    # A thread of its own has none of the caller's modes: a fake tensor mode, a default device or a
    # profile neither changes the answer nor sees it. Threads that OpenMP starts for it end with it,
    # as a later fork would need.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_multiplies, dtype).result()


def _multiplies(dtype: torch.dtype) -> bool:
    """Whether a product of small integers comes out exactly."""
    left = (torch.arange(16 * 32) % 5 - 2).reshape(16, 32)
    right = (torch.arange(16 * 32) % 3 - 1).reshape(16, 32).t()
    one = torch.ones((), dtype=torch.float32)
    fp8 = left.float().to(dtype), right.float().to(dtype)
    try:
        product = torch._scaled_mm(*fp8, one, one, out_dtype=torch.bfloat16)
    except (RuntimeError, TypeError):  # of its kinds NotImplementedError is the first's
        return False
    return torch.equal(product.long(), left @ right)


_CAPABILITIES: Final = frozenset(
    {
        Capability.STREAMS,
        Capability.EVENTS,
        Capability.AUTOCAST,
        Capability.COLLECTIVES,
        Capability.IPC,
    }
)

# Units with arithmetic of their own in the dtype, by the names of portagpu.facts.host.cpu.
# Those of bfloat16 take subnormal numbers for zero (Intel SDM, VDPBF16PS and TDPBF16PS; Arm ARM,
# BFDOT without FEAT_EBF16).
_BF16_UNITS: Final = frozenset({"AVX-512BF16", "AMX-BF16", "BF16", "SVE-BF16", "SME-B16F32"})
# oneDNN adds pairs of int8 products in 16 bits on an x86 CPU without these (oneDNN developer guide,
# Nuances of int8 Computations), or where a variable keeps it from using them.
_INT8_UNITS: Final = frozenset({"AVX-VNNI", "AVX-512VNNI", "AMX-INT8"})
_ISA_VARIABLES: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_ISAS_WITHOUT_VNNI: Final = frozenset({"SSE41", "AVX", "AVX2", "AVX512_CORE"})
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
    :mod:`portagpu_cpu.identity` finds.
    """
    units = {*cpu.vector_units, *cpu.matrix_units}
    has_bf16 = bool(units & _BF16_UNITS)
    table = {
        **dict.fromkeys(_NATIVE, Support.NATIVE),
        torch.bfloat16: Support.NATIVE if has_bf16 else Support.EMULATED,
        torch.float16: Support.NATIVE if units & _FP16_UNITS else Support.EMULATED,
    }
    flushes = frozenset({torch.bfloat16}) if has_bf16 else frozenset()
    return Precision(Table(table), flushes=flushes, saturates=_saturates(cpu.arch, units))


def _saturates(arch: str | None, units: Set[str]) -> frozenset[torch.dtype]:
    """int8 where oneDNN's products of it may saturate."""
    isa = next((os.environ[each] for each in _ISA_VARIABLES if os.environ.get(each)), "")
    vnni = units & _INT8_UNITS and isa.upper() not in _ISAS_WITHOUT_VNNI
    return frozenset() if vnni or arch != "x86-64" else frozenset({torch.int8})


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
