"""One device that torch reaches through ``torch.cuda``, every call with its index.

Its description comes from torch's properties and its vendor's data; ranges go through the calls
that torch was built with, whichever vendor's they are.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu.devices.collectives.comm import Comm
from portagpu.devices.contract import Backend, Capability, Description
from portagpu.devices.precision.model import precision_from_facts
from portagpu.devices.rng import launch_wave
from portagpu.devices.sizing.launch import sizing_of_device
from portagpu.devices.training import checked_autocast, run_by_the_compiler
from portagpu.facts.captures.labels import DOMAIN, check, encode
from portagpu.facts.captures.marked_blocks import Annotation, torch_records
from portagpu.facts.targets import identify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from portagpu.devices.contract import Part, Plugin
    from portagpu.facts.arch import Arch
    from portagpu.facts.captures.labels import Color, Label
    from portagpu.facts.captures.marked_blocks import RangeTool


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


def describe_device(
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
    """The description of that device; ``library`` is what "nccl" names in this build."""
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


def nccl_version() -> str | None:
    """What the library that "nccl" names states: "2.27.7"; None where torch was built without it.

    RCCL states the release of NCCL that it is compatible with, and no other number.
    """
    import torch

    try:
        return ".".join(str(part).lstrip(".-") for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return None


def dnn_version_number() -> int | None:
    """The number of ``torch.backends.cudnn.version()``; None where there is no such library."""
    import torch

    try:
        number: int | None = torch.backends.cudnn.version()
    except (AttributeError, RuntimeError):
        return None
    return number


class TorchRanges:
    """``torch.cuda.nvtx``: no domains and no payloads, so both are in the text."""

    def push(self, name: str, labels: Mapping[str, Label], domain: str, color: int | None) -> None:
        del color
        torch.cuda.nvtx.range_push(in_text(name, labels, domain))

    def pop(self, domain: str) -> None:
        del domain
        torch.cuda.nvtx.range_pop()

    def mark(self, name: str) -> None:
        torch.cuda.nvtx.mark(for_c(name))


def in_text(name: str, labels: Mapping[str, Label], domain: str = "") -> str:
    """The text of a range for a tool that takes no more; a name alone is left as it is."""
    return encode(name, labels, domain) if labels or domain else for_c(name)


def for_c(name: str) -> str:
    """``name`` as C can take it: without null characters and lone surrogates."""
    return name.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


class DeviceEvent(torch.cuda.Event):
    """torch's event, whose default stream is its own device's current one.

    ``torch.cuda.Event`` records on the current stream of the *current* device, which need not be
    the device that the event was asked of.
    """

    index: int | None = None

    def record(self, stream: Any = None) -> None:
        """Record the event in ``stream``, by default its device's current one."""
        super().record(torch.cuda.current_stream(self.index) if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        """Order later work on ``stream``, by default its device's current one, after the event."""
        super().wait(torch.cuda.current_stream(self.index) if stream is None else stream)


class TorchGpu(Backend):
    """The primitives of the contract over ``torch.cuda``; objects are torch's own.

    A method without a word here does what the contract's docstring says.

    - ``empty_cache`` frees the caches of every device of the process: torch has no other.
    - ``Stream`` clamps the priority to :meth:`stream_priorities`, as torch does.
    - ``Event`` is a ``torch.cuda.Event``. Two events with nothing between them may be 0 ms apart,
      and on some drivers slightly negative: time at least a millisecond of work.
    - ``Graph`` is a ``torch.cuda.CUDAGraph``; :meth:`graph` is ``torch.cuda.graph`` on this
      device. What may not be captured (a synchronisation, a copy to the host) raises there.
    """

    __slots__ = ("_capture_stream", "_properties", "integrated")

    # half the time of torch.cuda.current_device, which looks first whether CUDA is initialised
    current_index = staticmethod(torch.accelerator.current_device_index)

    def __init__(self, plugin: Plugin, description: Description, properties: Any) -> None:
        super().__init__(plugin, description)
        self._properties = properties
        self._capture_stream: torch.cuda.Stream | None = None
        integrated = getattr(properties, "is_integrated", None)
        self.integrated: bool | None = None if integrated is None else bool(integrated)
        """Whether the GPU shares its memory with a CPU in one package; None where it says not."""

    def activate(self) -> None:
        torch.cuda.set_device(self.index)

    def get_device_properties(self) -> Any:
        return self._properties

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) bytes as the driver sees them, other processes' memory counted."""
        return torch.cuda.mem_get_info(self.index)

    def memory_stats(self) -> Mapping[str, int]:
        return torch.cuda.memory_stats(self.index)

    def reset_peak_memory_stats(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.index)

    def empty_cache(self) -> None:
        """Give unused cached blocks back to the driver, of every device of the process."""
        torch.cuda.empty_cache()

    def generator(self) -> torch.Generator:
        return torch.cuda.default_generators[self.index]

    def stream_priorities(self) -> tuple[int, int]:
        """(least, greatest) priority that streams of this device really have; lower is urgent."""
        with torch.cuda.device(self.index):
            least, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        return least, greatest

    def Stream(self, priority: int = 0) -> Any:  # noqa: N802 - torch's name
        """A new stream of this device; its attribute ``priority`` says what it was clamped to."""
        return torch.cuda.Stream(self.index, priority)

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self.index)

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Put work on ``stream`` inside the block; its device is the current one there."""
        return torch.cuda.stream(stream)

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Any:
        """A ``torch.cuda.Event`` of this device."""
        event = DeviceEvent(enable_timing, blocking, interprocess)  # type: ignore[no-untyped-call]
        event.index = self.index
        return event

    def range_tool(self) -> RangeTool | None:
        """What hands ranges to the vendor's profiler; None where none is attached to the process.

        Here torch's own calls, whether or not anything listens.
        """
        return TorchRanges()

    def annotate(self, name: str) -> Annotation:
        """A range for the vendor's profiler, and for torch's while that records.

        None inside ``torch.compile``, which fuses across the block: the range would be of the
        compilation.
        """
        return Annotation(name, tool=self.range_tool)

    def labelled_block(
        self, name: str, labels: Mapping[str, Label], domain: str = DOMAIN, color: Color = None
    ) -> Annotation:
        check(domain, color, labels)
        return Annotation(name, labels, domain, color, self.range_tool)

    def _range(self, msg: str) -> Annotation:
        return Annotation(msg, domain="", tool=self.range_tool)

    @run_by_the_compiler
    def listens(self) -> bool:
        return torch_records() or self.range_tool() is not None

    def Graph(self) -> Any:  # noqa: N802 - one name for every vendor's graph
        return torch.cuda.CUDAGraph()

    @contextmanager
    def graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture the block's work into ``cuda_graph``, with the options of ``torch.cuda.graph``.

        By default on a stream of this device, the same at every call. ``torch.cuda.graph`` alone
        synchronises the current device, and its own default stream is of the device that was
        current when the process first captured. torch raises what may not be captured.
        """
        if stream is None:
            stream = self._capture_stream = self._capture_stream or self.Stream()
        with (
            torch.cuda.device(self.index),
            torch.cuda.graph(cuda_graph, pool, stream, capture_error_mode),
        ):
            yield cuda_graph

    def autocast(
        self,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> torch.autocast:
        """``torch.autocast`` for GPUs, which takes every dtype: float32 casts to float32."""
        given = (dtype, enabled, cache_enabled)
        return checked_autocast(self.device.type, *given, any_dtype=True)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` in page-locked host memory; torch raises for one that is on a device."""
        return tensor.pin_memory()

    def graph_pool_handle(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def is_current_stream_capturing(self) -> bool:
        with torch.cuda.device(self.index):
            return torch.cuda.is_current_stream_capturing()

    def set_stream(self, stream: Any) -> None:
        """Put work on ``stream`` from now on; its device becomes the current one, as in torch."""
        torch.cuda.set_stream(stream)

    def default_stream(self) -> Any:
        return torch.cuda.default_stream(self.index)

    def ExternalStream(self, stream_ptr: int) -> Any:  # noqa: N802 - torch's name
        """A ``torch.cuda.ExternalStream`` of this device."""
        return torch.cuda.ExternalStream(stream_ptr, self.index)

    def mark(self, msg: str) -> None:
        if not torch.compiler.is_compiling() and (tool := self.range_tool()) is not None:
            tool.mark(msg)

    def memory_summary(self, abbreviated: bool = False) -> str:
        """torch's table of the allocator."""
        return torch.cuda.memory_summary(self.index, abbreviated)

    def memory_snapshot(self, mempool_id: Any = None) -> Any:
        return torch.cuda.memory_snapshot(mempool_id)

    def record_memory_history(self, *arguments: Any, **options: Any) -> None:
        torch.cuda.memory._record_memory_history(*arguments, **options)

    def dump_memory_snapshot(self, filename: str | os.PathLike[str]) -> None:
        torch.cuda.memory._dump_snapshot(os.fspath(filename))

    def MemPool(self, *arguments: Any, **options: Any) -> Any:  # noqa: N802 - torch's name
        with torch.cuda.device(self.index):
            return torch.cuda.MemPool(*arguments, **options)

    def use_mem_pool(self, pool: Any) -> AbstractContextManager[Any]:
        return torch.cuda.use_mem_pool(pool, self.index)

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        torch.cuda.set_per_process_memory_fraction(fraction, self.index)

    def get_device_capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability(self.index)

    def can_device_access_peer(self, peer_device: int) -> bool:
        return torch.cuda.can_device_access_peer(self.index, peer_device)

    def ipc_collect(self) -> None:
        torch.cuda.ipc_collect()

    def profiler_start(self) -> None:
        torch.cuda.profiler.start()

    def profiler_stop(self) -> None:
        torch.cuda.profiler.stop()

    def cudart(self) -> Any:
        return torch.cuda.cudart()

    def random_wave(self) -> int:
        """Elements of one random call up to which other devices may draw the same numbers."""
        return launch_wave(self.sizing)
