"""One import for training code on NVIDIA, AMD and CPU.

Importing this package imports neither torch nor a vendor's package and opens no device: every name
is loaded from its module on first use and kept.
"""

from __future__ import annotations

from portagpu._version import __version__


def _leave_working_folder_out() -> None:
    """Take off the path what ``python -m portagpu...`` alone has put there: the working folder.

    A file in it, which may be a stranger's recording, would stand in for a module. It stays where
    this package was imported from it, and in every other program.
    """
    import os
    import sys

    # while the module is looked for, "-m" stands where its name stood
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:
        return
    named = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    try:
        here = os.getcwd()  # noqa: PTH109 - importing pathlib is most of this package's import
    except FileNotFoundError:
        return
    from_here = __file__ == os.path.join(here, __name__, "__init__.py")  # noqa: PTH118 - as above
    if named.partition(".")[0] == __name__ and sys.path[:1] == [here] and not from_here:
        del sys.path[0]


_leave_working_folder_out()

# type checkers take this name for true; importing typing would be nearly all of the import's time
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Final

    from portagpu import amp as amp
    from portagpu import memory as memory
    from portagpu import nvtx as nvtx
    from portagpu import parallel as parallel
    from portagpu import planning as planning
    from portagpu import profiler as profiler
    from portagpu.amp import custom_bwd as custom_bwd
    from portagpu.amp import custom_fwd as custom_fwd
    from portagpu.arch import Arch as Arch
    from portagpu.collectives.comm import Comm as Comm
    from portagpu.contract import CONTRACT as CONTRACT
    from portagpu.contract import Backend as Backend
    from portagpu.contract import Capability as Capability
    from portagpu.contract import Description as Description
    from portagpu.contract import Plugin as Plugin
    from portagpu.contract import Status as Status
    from portagpu.errors import BackendNotFound as BackendNotFound
    from portagpu.errors import CollectiveError as CollectiveError
    from portagpu.errors import CollectiveMismatch as CollectiveMismatch
    from portagpu.errors import EmptyCapture as EmptyCapture
    from portagpu.errors import MissingDependency as MissingDependency
    from portagpu.errors import PortagpuError as PortagpuError
    from portagpu.errors import RankLost as RankLost
    from portagpu.errors import TargetNotFound as TargetNotFound
    from portagpu.errors import Unsupported as Unsupported
    from portagpu.functions import CUDAGraph as CUDAGraph
    from portagpu.functions import Event as Event
    from portagpu.functions import ExternalStream as ExternalStream
    from portagpu.functions import GradScaler as GradScaler
    from portagpu.functions import Graph as Graph
    from portagpu.functions import MemPool as MemPool
    from portagpu.functions import Stream as Stream
    from portagpu.functions import annotate as annotate
    from portagpu.functions import autocast as autocast
    from portagpu.functions import can_device_access_peer as can_device_access_peer
    from portagpu.functions import cudart as cudart
    from portagpu.functions import current_device as current_device
    from portagpu.functions import current_stream as current_stream
    from portagpu.functions import default_generators as default_generators
    from portagpu.functions import default_stream as default_stream
    from portagpu.functions import device as device
    from portagpu.functions import device_count as device_count
    from portagpu.functions import device_index as device_index
    from portagpu.functions import device_memory_used as device_memory_used
    from portagpu.functions import device_of as device_of
    from portagpu.functions import dump_memory_snapshot as dump_memory_snapshot
    from portagpu.functions import empty_cache as empty_cache
    from portagpu.functions import get_device_capability as get_device_capability
    from portagpu.functions import get_device_name as get_device_name
    from portagpu.functions import get_device_properties as get_device_properties
    from portagpu.functions import get_rng_state as get_rng_state
    from portagpu.functions import get_rng_state_all as get_rng_state_all
    from portagpu.functions import graph as graph
    from portagpu.functions import graph_pool_handle as graph_pool_handle
    from portagpu.functions import init as init
    from portagpu.functions import initial_seed as initial_seed
    from portagpu.functions import ipc_collect as ipc_collect
    from portagpu.functions import is_available as is_available
    from portagpu.functions import is_bf16_supported as is_bf16_supported
    from portagpu.functions import is_current_stream_capturing as is_current_stream_capturing
    from portagpu.functions import manual_seed as manual_seed
    from portagpu.functions import manual_seed_all as manual_seed_all
    from portagpu.functions import mark as mark
    from portagpu.functions import max_memory_allocated as max_memory_allocated
    from portagpu.functions import max_memory_reserved as max_memory_reserved
    from portagpu.functions import mem_get_info as mem_get_info
    from portagpu.functions import memory_allocated as memory_allocated
    from portagpu.functions import memory_reserved as memory_reserved
    from portagpu.functions import memory_snapshot as memory_snapshot
    from portagpu.functions import memory_stats as memory_stats
    from portagpu.functions import memory_summary as memory_summary
    from portagpu.functions import pin as pin
    from portagpu.functions import profiler_start as profiler_start
    from portagpu.functions import profiler_stop as profiler_stop
    from portagpu.functions import range_pop as range_pop
    from portagpu.functions import range_push as range_push
    from portagpu.functions import record_memory_history as record_memory_history
    from portagpu.functions import region as region
    from portagpu.functions import reset_peak_memory_stats as reset_peak_memory_stats
    from portagpu.functions import seed as seed
    from portagpu.functions import set_device as set_device
    from portagpu.functions import (
        set_per_process_memory_fraction as set_per_process_memory_fraction,
    )
    from portagpu.functions import set_rng_state as set_rng_state
    from portagpu.functions import set_rng_state_all as set_rng_state_all
    from portagpu.functions import set_stream as set_stream
    from portagpu.functions import stream as stream
    from portagpu.functions import supports as supports
    from portagpu.functions import synchronize as synchronize
    from portagpu.functions import use_mem_pool as use_mem_pool
    from portagpu.oom import is_oom as is_oom
    from portagpu.precision import Fp8 as Fp8
    from portagpu.precision import Precision as Precision
    from portagpu.precision import Support as Support
    from portagpu.profiler import profiling as profiling
    from portagpu.registry import available as available
    from portagpu.registry import backend as backend
    from portagpu.registry import is_initialized as is_initialized
    from portagpu.sizing import Launch as Launch
    from portagpu.sizing import Sizing as Sizing
    from portagpu.target import Target as Target

_HOME: Final[dict[str, tuple[str, ...]]] = {
    # as torch.cuda calls its own, and ours beside them
    "portagpu": ("amp", "memory", "nvtx", "parallel", "planning", "profiler"),
    "portagpu.amp": ("custom_bwd", "custom_fwd"),
    "portagpu.arch": ("Arch",),
    "portagpu.collectives.comm": ("Comm",),
    "portagpu.contract": ("CONTRACT", "Backend", "Capability", "Description", "Plugin", "Status"),
    "portagpu.errors": (
        "BackendNotFound",
        "CollectiveError",
        "CollectiveMismatch",
        "EmptyCapture",
        "MissingDependency",
        "PortagpuError",
        "RankLost",
        "TargetNotFound",
        "Unsupported",
    ),
    "portagpu.functions": (
        "CUDAGraph",
        "Event",
        "ExternalStream",
        "GradScaler",
        "Graph",
        "MemPool",
        "Stream",
        "annotate",
        "autocast",
        "can_device_access_peer",
        "cudart",
        "current_device",
        "current_stream",
        "default_generators",
        "default_stream",
        "device",
        "device_count",
        "device_index",
        "device_memory_used",
        "device_of",
        "dump_memory_snapshot",
        "empty_cache",
        "get_device_capability",
        "get_device_name",
        "get_device_properties",
        "get_rng_state",
        "get_rng_state_all",
        "graph",
        "graph_pool_handle",
        "init",
        "initial_seed",
        "ipc_collect",
        "is_available",
        "is_bf16_supported",
        "is_current_stream_capturing",
        "manual_seed",
        "manual_seed_all",
        "mark",
        "max_memory_allocated",
        "max_memory_reserved",
        "mem_get_info",
        "memory_allocated",
        "memory_reserved",
        "memory_snapshot",
        "memory_stats",
        "memory_summary",
        "pin",
        "profiler_start",
        "profiler_stop",
        "range_pop",
        "range_push",
        "record_memory_history",
        "region",
        "reset_peak_memory_stats",
        "seed",
        "set_device",
        "set_per_process_memory_fraction",
        "set_rng_state",
        "set_rng_state_all",
        "set_stream",
        "stream",
        "supports",
        "synchronize",
        "use_mem_pool",
    ),
    "portagpu.oom": ("is_oom",),
    "portagpu.precision": ("Fp8", "Precision", "Support"),
    "portagpu.profiler": ("profiling",),
    "portagpu.registry": ("available", "backend", "is_initialized"),
    "portagpu.sizing": ("Launch", "Sizing"),
    "portagpu.target": ("Target",),
}
_MODULE_OF: Final = {name: module for module, names in _HOME.items() for name in names}
__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604 - the table's keys are the names


if not TYPE_CHECKING:  # so that type checkers report a name that does not exist

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        if module == __name__:  # importing a submodule sets the name
            return import_module(f"{module}.{name}")
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
