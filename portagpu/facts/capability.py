"""Capabilities of a device beyond plain tensors."""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """A capability of a device beyond plain tensors.

    A capability that a backend claims must work; one that it does not claim must raise
    :class:`portagpu.Unsupported` from every call named here. The conformance suite checks both.
    """

    STREAMS = "streams"
    """``Stream``, ``stream``, ``current_stream``, and since contract 1.2 ``set_stream`` and
    ``default_stream``: ordered queues of work, of which each thread has its own current one."""
    EVENTS = "events"
    """``Event``: points in a stream, with times where ``enable_timing=True``. A device without
    STREAMS may have it."""
    GRAPHS = "graphs"
    """``Graph``, ``graph``, and since contract 1.2 ``graph_pool_handle`` and
    ``is_current_stream_capturing``: work that is captured once and replayed. With COLLECTIVES a
    graph may hold collectives too."""
    PEAK_MEMORY = "peak-memory"
    """``reset_peak_memory_stats``: the peaks of ``memory_stats`` start again from now."""
    PINNED_MEMORY = "pinned-memory"
    """``pin``: page-locked host memory, whose tensors say so in ``is_pinned()``."""
    AUTOCAST = "autocast"
    """``autocast`` and ``GradScaler``: mixed precision. With ``enabled=False`` both work on every
    device, and change nothing."""
    COLLECTIVES = "collectives"
    """``comm``: process groups over the vendor's communication library. A wait with a limit raises
    RuntimeError there, and a group can be aborted and made again. A device without a library has
    ``Comm.none(device.type)``."""
    EXTERNAL_STREAMS = "external-streams"
    """``ExternalStream``: streams of other libraries. Since contract 1.2."""
    ALLOCATOR = "allocator"
    """``memory_snapshot``, ``record_memory_history``, ``dump_memory_snapshot``, ``MemPool``,
    ``use_mem_pool`` and ``set_per_process_memory_fraction``: torch's caching allocator. Since
    contract 1.2."""
    IPC = "ipc"
    """``ipc_collect``, and tensors of the device that ``torch.multiprocessing`` hands to another
    process without a copy. Since contract 1.2."""
