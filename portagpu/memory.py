"""``torch.cuda.memory``, for the current device of any vendor."""

from __future__ import annotations

from portagpu.devices.functions import MemPool as MemPool
from portagpu.devices.functions import (
    device_memory_used,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from portagpu.devices.functions import dump_memory_snapshot as _dump_snapshot
from portagpu.devices.functions import record_memory_history as _record_memory_history

__all__ = [
    "MemPool",
    "_dump_snapshot",
    "_record_memory_history",
    "device_memory_used",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]
