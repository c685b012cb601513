"""The runtimes whose masks are known, as data: what a layer does is in its fields, and its source.

Nothing but this table knows a vendor. CUDA's reader is closed: its row is NVIDIA's documentation,
and for what that leaves open torch's own reader, whose authors compared it with driver 525.60.13
(pytorch/pytorch#92315). ROCm's rows are read from its sources.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from portagpu.visible.model import (
    Blanks,
    MaskRules,
    Numbers,
    Repeated,
    Runtime,
    TorchRules,
    UuidMatch,
    VisibilityError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html;
# one MIG slice a process: MIG user guide, "Device Enumeration", and the run in pytorch#92315
_CUDA: Final = MaskRules(
    layer="CUDA",
    variables=("CUDA_VISIBLE_DEVICES",),
    numbers=Numbers.LEADING,
    blanks=Blanks.AT_NUMBERS,
    repeated=Repeated.HIDES_ALL,
    uuid_prefixes=("GPU-", "MIG-"),
    uuid_match=UuidMatch.ONE_THAT_STARTS,
    uuid_case_counts=True,
    one_kind=True,
    slice_prefix="MIG-",
    most_slices=1,
)

# RvdFilter in ROCm/rocm-systems, projects/rocr-runtime, core/runtime/amd_filter_device.cpp @92bf721
_ROCR: Final = MaskRules(
    layer="ROCr",
    variables=("ROCR_VISIBLE_DEVICES",),
    numbers=Numbers.C_LITERAL,
    blanks=Blanks.EVERYWHERE,
    repeated=Repeated.ENDS,
    uuid_prefixes=("GPU-",),
    uuid_match=UuidMatch.ONE_THAT_STARTS,
    uuid_case_counts=False,
    uuid_characters=(5, 20),
    # token.at(0) throws, and hsa_init returns the error
    empty_entry_fails=True,
)

# Device::init in ROCm/rocm-systems, projects/clr, rocclr/device/rocm/rocdevice.cpp @01280b9, over
# the values that rocclr/utils/flags.cpp keeps: an empty one becomes " " since ROCm 5.6 (ROCm/clr
# b5799c4), which is no number. UUIDs since ROCm 6.2 (ROCm/clr 52db98e).
_HIP: Final = MaskRules(
    layer="HIP",
    variables=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    numbers=Numbers.PLAIN,
    blanks=Blanks.NOWHERE,
    repeated=Repeated.SKIPPED,
    uuid_prefixes=("GPU-",),
    uuid_match=UuidMatch.FIRST_THAT_STARTS,
    uuid_case_counts=True,
    removes_quotes=True,
    empty_hides_since="ROCm 5.6",
    uuids_since="ROCm 6.2",
)

RULES: Final[Mapping[str, MaskRules]] = MappingProxyType(
    {rules.layer: rules for rules in (_CUDA, _ROCR, _HIP)}
)
"""The layers by name."""

# torch: torch/cuda/__init__.py of 2.13, _parse_visible_devices and _device_count_nvml or _amdsmi
RUNTIMES: Final[Mapping[str, Runtime]] = MappingProxyType(
    {
        "cuda": Runtime(
            name="cuda",
            vendor="nvidia",
            layers=(_CUDA,),
            torch=TorchRules(variables=("CUDA_VISIBLE_DEVICES",), asks_for=("MIG-",)),
            child_variable="CUDA_VISIBLE_DEVICES",
            leaving=MappingProxyType({}),
            unread=MappingProxyType({}),
            foreign=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
        ),
        "rocm": Runtime(
            name="rocm",
            vendor="amd",
            layers=(_ROCR, _HIP),
            torch=TorchRules(
                variables=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
                counted="ROCR_VISIBLE_DEVICES",
                bare_uuids=True,
            ),
            child_variable="HIP_VISIBLE_DEVICES",
            # ROCm's page of variables has it up to 7.1.1 and no longer in 10.1
            leaving=MappingProxyType(
                {"CUDA_VISIBLE_DEVICES": "which ROCm's documentation no longer lists"}
            ),
            # Device::init reads it only where IS_HIP is false; AMD's page on GPU isolation says
            # that it applies to HIP too
            unread=MappingProxyType(
                {
                    "GPU_DEVICE_ORDINAL": "OpenCL reads it, HIP's source does not, whatever its "
                    "documentation says"
                }
            ),
            foreign=(),
        ),
    }
)
"""The runtimes by the name of the torch build that uses them."""


def runtime_of(name: str) -> Runtime:
    """The runtime of that name; raises VisibilityError for one that is not known."""
    try:
        return RUNTIMES[name]
    except KeyError:
        raise VisibilityError(
            f"no runtime is called {name!r}: choose one of {', '.join(RUNTIMES)}"
        ) from None


def runtimes_on(build: str | None, vendors: Iterable[str]) -> tuple[str, ...]:
    """The runtimes that matter to a torch build of that kind and to GPUs of those vendors."""
    present = set(vendors)
    return tuple(
        name for name, runtime in RUNTIMES.items() if name == build or runtime.vendor in present
    )
