"""The CPU as a backend: every primitive works, or raises Unsupported."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

from portagpu.devices.contract import Backend
from portagpu.devices.torch_compile import run_by_the_compiler
from portagpu.facts.captures.labels import DOMAIN, check
from portagpu.facts.captures.marked_blocks import Annotation, torch_records
from portagpu_cpu import identity, memory
from portagpu_cpu.queues import CpuEvent, CpuStream, CurrentStream, StreamBlock, cpu_index
from portagpu_cpu.strided import make_contiguous

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from portagpu.devices.contract import Plugin
    from portagpu.facts.captures.labels import Color, Label


class CpuBackend(Backend):
    """This machine's CPU.

    How it differs from a GPU, all in one place:

    - Any index opens the same device, which all ranks share. ``device_count()`` is 1, or as many as
      ``portagpu.base.environment.shared_count`` says; this many ranks have each an index of their
      own.
    - ``current_device()`` is a ``CpuIndex``: a number that torch also takes for a device.
    - Work is done when a call returns: ``synchronize`` has nothing to wait for, and streams order
      work that is already done. Streams and events are this package's own.
    - ``Event`` takes the time on the monotonic clock.
    - ``memory_*`` is the resident memory of the process: PyTorch does not account for CPU tensors.
      ``mem_get_info`` is what the machine, or the container if that is less, leaves free.
    - ``get_device_properties`` is a ``CpuProperties``.
    - The generator is the one that also draws on the host: seeding the device seeds a DataLoader's
      shuffling, which on a GPU it does not.
    - ``Graph`` and ``pin`` raise ``Unsupported``.
    - Collectives of CPU tensors that are not contiguous are done on copies, for all groups of the
      process: Gloo itself does not look at strides, and NCCL and RCCL refuse them.
    - ``GradScaler`` and ``autocast`` are torch's for the CPU, whose default dtype is bfloat16.
    """

    __slots__ = ("_current", "_default_stream", "_properties")

    def __init__(self, plugin: Plugin, index: int) -> None:
        description, self._properties = identity.describe(index)
        super().__init__(plugin, description)
        self._default_stream = CpuStream(self.device)
        self._current = CurrentStream(self._default_stream)
        make_contiguous()

    def current_device(self) -> int:
        """The index of this device, which torch takes as ``device`` too; see ``CpuIndex``.

        Inside ``torch.compile`` it is the plain text "cpu", for which torch 2.11 can write code.
        """
        if torch.compiler.is_compiling():
            return cast("int", self.device.type)
        return cast("int", cpu_index(self.index))

    def activate(self) -> None:
        """torch's calls without a device already use the CPU."""
        torch.cpu.set_device(self.device)

    def get_device_properties(self) -> identity.CpuProperties:
        """The CPU's model, cores, vector and matrix units, and memory."""
        return self._properties

    def synchronize(self) -> None:
        """Work on a CPU is done when its call returns."""
        torch.cpu.synchronize()

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) bytes that this process may use."""
        return memory.free_and_total()

    def memory_stats(self) -> Mapping[str, int]:
        """The process's resident memory in bytes, as allocated and as reserved."""
        current, peak = memory.resident()
        return {
            "allocated_bytes.all.current": current,
            "allocated_bytes.all.peak": peak,
            "reserved_bytes.all.current": current,
            "reserved_bytes.all.peak": peak,
        }

    def reset_peak_memory_stats(self) -> None:
        """Reset the kernel's record of the process's peak resident memory."""
        memory.reset_peak()

    def empty_cache(self) -> None:
        """Give freed memory that the C library still holds back to the kernel."""
        memory.trim()

    def generator(self) -> torch.Generator:
        """torch's default CPU generator."""
        return torch.default_generator

    def Stream(self, priority: int = 0) -> CpuStream:  # noqa: N802 - torch's name
        """A new stream; all have the same real priority."""
        return CpuStream(self.device, priority)

    def current_stream(self) -> CpuStream:
        """The calling thread's current stream."""
        return self._current.stream[-1]

    def stream(self, stream: CpuStream | None) -> AbstractContextManager[Any]:
        """Make ``stream`` the calling thread's current one inside the block."""
        return nullcontext() if stream is None else StreamBlock(self._current, stream)

    def set_stream(self, stream: CpuStream | None) -> None:
        """Make ``stream`` the calling thread's current one."""
        if stream is not None:
            self._current.stream[-1] = stream

    def default_stream(self) -> CpuStream:
        """The stream that every thread starts on."""
        return self._default_stream

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> CpuEvent:
        """A new event on the monotonic clock; ``blocking`` makes no difference on a CPU."""
        del blocking
        return CpuEvent(enable_timing, interprocess)

    def annotate(self, name: str) -> Annotation:
        """``torch.profiler.record_function`` while torch's profiler records; else nothing."""
        return Annotation(name)

    def labelled_block(
        self, name: str, labels: Mapping[str, Label], domain: str = DOMAIN, color: Color = None
    ) -> Annotation:
        """As :meth:`annotate`, with labels and domain in the name."""
        check(domain, color, labels)
        return Annotation(name, labels, domain, color)

    @run_by_the_compiler
    def listens(self) -> bool:
        return torch_records()

    def can_device_access_peer(self, peer_device: int) -> bool:
        """True: whatever index it has, it is the memory of the same CPU."""
        del peer_device
        return True

    def ipc_collect(self) -> None:
        """Memory that processes share is freed when the last of them lets it go."""

    def profiler_start(self) -> None:
        """No profiler waits for it, as on a GPU that none is attached to."""

    def profiler_stop(self) -> None:
        """No profiler waits for it, as on a GPU that none is attached to."""

    def cudart(self) -> CpuRuntime:
        """The calls that start and stop a profiler, of which none is attached."""
        return CpuRuntime()


class CpuRuntime:
    """What scripts call of ``torch.cuda.cudart()``; each returns 0, CUDA's number for success."""

    __slots__ = ()

    def cudaProfilerStart(self) -> int:  # noqa: N802 - CUDA's name
        """No profiler waits for it."""
        return 0

    def cudaProfilerStop(self) -> int:  # noqa: N802 - CUDA's name
        """No profiler waits for it."""
        return 0
