"""The description of a device, from torch's properties and its vendor's data."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu.devices.collectives.comm import Comm
from portagpu.devices.contract import Capability, Description
from portagpu.devices.precision.model import precision_from_facts
from portagpu.devices.sizing.launch import sizing_of_device
from portagpu.facts.targets import identify
from portagpu_torch_gpu.torchlibs import nccl_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Part
    from portagpu.facts.arch import Arch

_REDUCE_OPS: Final = frozenset({"SUM", "AVG", "PRODUCT", "MIN", "MAX"})
"""For floating-point tensors, as ProcessGroupNCCL has them (torch 2.13, ProcessGroupNCCL.cpp)."""

ENGINES: Final = MappingProxyType(
    {
        "ProcessGroupNCCL": "legacy (ProcessGroupNCCL)",
        "ProcessGroupNCCL2": "nccl2 (ProcessGroupNCCL2)",
        "ProcessGroupNCCLLazy": "nccl-lazy (ProcessGroupNCCLLazy)",
        "_BackendWrapper": "torchcomms (_BackendWrapper)",
    }
)
"""What torch may build for "nccl", by class: torch 2.13 and 2.15, distributed_c10d.py."""
ENGINE_VARIABLES: Final = ("TORCH_DIST_USE_NCCL2", "TORCH_DISTRIBUTED_USE_TORCHCOMMS")
"""By which torch chooses: 2.14 builds nccl2 at 1, and 2.15 unless at 0 (pytorch#192281)."""

_ALWAYS: Final = frozenset(
    Capability(name)
    for name in (
        *("streams", "events", "graphs", "peak-memory", "pinned-memory", "autocast"),
        *("external-streams", "allocator", "ipc"),
    )
)


def properties_of(index: int) -> Any:
    """torch's properties of that visible device; opens torch's runtime."""
    torch.cuda.init()
    return torch.cuda.get_device_properties(index)


def describe(
    index: int,
    properties: Any,
    *,
    name: str,
    arch: Arch,
    uuid: str | None,
    pci: str | None,
    part: Part | None,
    library: str,
    versions: Mapping[str, str | None],
    deterministic_env: Mapping[str, str],
) -> Description:
    """The description of that device; ``library`` is the library behind "nccl" in this build."""
    reported = properties.name, properties.total_memory, properties.multi_processor_count
    target = identify(arch.vendor, arch.name, *reported)
    return Description(
        name=name,
        index=index,
        device=torch.device("cuda", index),
        arch=arch,
        product=properties.name or (target.product if target is not None else None),
        vendor=arch.vendor,
        target=target,
        capabilities=_capabilities(),
        precision=precision_from_facts(target, deterministic_env),
        comm=Comm(
            c10d_name="nccl",
            library=library,
            version=nccl_version(),
            device_type="cuda",
            reduce_ops=_REDUCE_OPS,
            # Gloo moves the tensors of the CPU in the same group
            local_env=MappingProxyType({"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}),
            device_ids=(index,),
            engines=ENGINES,
            engine_variables=ENGINE_VARIABLES,
        ),
        sizing=sizing_of_device(properties, target, arch.warp_size),
        uuid=uuid,
        pci=pci,
        part=part,
        versions={"torch": torch.__version__, **versions},
    )


def _capabilities() -> frozenset[Capability]:
    """Capabilities of torch.cuda on any device; COLLECTIVES where torch has the library."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_nccl_available():
        return _ALWAYS | {Capability.COLLECTIVES}
    return _ALWAYS


def pci_address(properties: Any) -> str | None:
    """``domain:bus:device.0``, without the function, which torch leaves out; None where unknown."""
    names = ("domain", "bus", "device")
    parts: list[Any] = [getattr(properties, f"pci_{name}_id", None) for name in names]
    return None if None in parts else "{:04x}:{:02x}:{:02x}.0".format(*parts)


def addresses(identity: str) -> list[list[str | None]]:
    """[PCI address, UUID] of every visible device; ``identity`` names the vendor's module.

    It opens the driver's runtime: run it in a child process. Raises RuntimeError with torch's own
    words where the driver does not work or shows no device: torch's count would be 0.
    """
    torch.cuda.init()
    device_uuid = import_module(identity).device_uuid
    # the driver's own count: that of torch 2.11 stays NVML's, which counts GPUs where MIG cut them
    properties = [properties_of(index) for index in range(torch._C._cuda_getDeviceCount())]
    return [[pci_address(each), device_uuid(each)] for each in properties]
