"""The public names, each with its module, for type checkers and to load on first use."""







from portagpu.amp import custom_bwd as custom_bwd
from portagpu.amp import custom_fwd as custom_fwd
from portagpu.facts.arch import Arch as Arch
from portagpu.devices.collectives.comm import Comm as Comm
from portagpu.devices.contract import CONTRACT as CONTRACT
from portagpu.devices.contract import Backend as Backend
from portagpu.devices.contract import Capability as Capability
from portagpu.devices.contract import Description as Description
from portagpu.devices.contract import Plugin as Plugin
from portagpu.devices.contract import Status as Status
from portagpu.base.errors import BackendNotFound as BackendNotFound
from portagpu.base.errors import CollectiveError as CollectiveError
from portagpu.base.errors import CollectiveMismatch as CollectiveMismatch
from portagpu.base.errors import EmptyCapture as EmptyCapture
from portagpu.base.errors import MissingDependency as MissingDependency
from portagpu.base.errors import PortagpuError as PortagpuError
from portagpu.base.errors import RankLost as RankLost
from portagpu.base.errors import TargetNotFound as TargetNotFound
from portagpu.base.errors import Unsupported as Unsupported
from portagpu.devices.functions import CUDAGraph as CUDAGraph
from portagpu.devices.functions import Event as Event
from portagpu.devices.functions import ExternalStream as ExternalStream
from portagpu.devices.functions import GradScaler as GradScaler
from portagpu.devices.functions import Graph as Graph
from portagpu.devices.functions import MemPool as MemPool
from portagpu.devices.functions import Stream as Stream
from portagpu.devices.annotations import annotate as annotate
from portagpu.devices.functions import autocast as autocast
from portagpu.devices.functions import can_device_access_peer as can_device_access_peer
from portagpu.devices.functions import cudart as cudart
from portagpu.devices.functions import current_device as current_device
from portagpu.devices.functions import current_stream as current_stream
from portagpu.devices.functions import default_generators as default_generators
from portagpu.devices.functions import default_stream as default_stream
from portagpu.devices.functions import device as device
from portagpu.devices.functions import device_count as device_count
from portagpu.devices.functions import device_index as device_index
from portagpu.devices.functions import device_memory_used as device_memory_used
from portagpu.devices.functions import device_of as device_of
from portagpu.devices.functions import dump_memory_snapshot as dump_memory_snapshot
from portagpu.devices.functions import empty_cache as empty_cache
from portagpu.devices.functions import get_device_capability as get_device_capability
from portagpu.devices.functions import get_device_name as get_device_name
from portagpu.devices.functions import get_device_properties as get_device_properties
from portagpu.devices.functions import get_rng_state as get_rng_state
from portagpu.devices.functions import get_rng_state_all as get_rng_state_all
from portagpu.devices.functions import graph as graph
from portagpu.devices.functions import graph_pool_handle as graph_pool_handle
from portagpu.devices.functions import init as init
from portagpu.devices.functions import initial_seed as initial_seed
from portagpu.devices.functions import ipc_collect as ipc_collect
from portagpu.devices.functions import is_available as is_available
from portagpu.devices.functions import is_bf16_supported as is_bf16_supported
from portagpu.devices.functions import is_current_stream_capturing as is_current_stream_capturing
from portagpu.devices.functions import manual_seed as manual_seed
from portagpu.devices.functions import manual_seed_all as manual_seed_all
from portagpu.devices.annotations import mark as mark
from portagpu.devices.functions import max_memory_allocated as max_memory_allocated
from portagpu.devices.functions import max_memory_reserved as max_memory_reserved
from portagpu.devices.functions import mem_get_info as mem_get_info
from portagpu.devices.functions import memory_allocated as memory_allocated
from portagpu.devices.functions import memory_reserved as memory_reserved
from portagpu.devices.functions import memory_snapshot as memory_snapshot
from portagpu.devices.functions import memory_stats as memory_stats
from portagpu.devices.functions import memory_summary as memory_summary
from portagpu.devices.functions import pin as pin
from portagpu.devices.annotations import profiler_start as profiler_start
from portagpu.devices.annotations import profiler_stop as profiler_stop
from portagpu.devices.annotations import range_pop as range_pop
from portagpu.devices.annotations import range_push as range_push
from portagpu.devices.functions import record_memory_history as record_memory_history
from portagpu.devices.annotations import region as region
from portagpu.devices.functions import reset_peak_memory_stats as reset_peak_memory_stats
from portagpu.devices.functions import seed as seed
from portagpu.devices.functions import set_device as set_device
from portagpu.devices.functions import set_per_process_memory_fraction as set_per_process_memory_fraction
from portagpu.devices.functions import set_rng_state as set_rng_state
from portagpu.devices.functions import set_rng_state_all as set_rng_state_all
from portagpu.devices.functions import set_stream as set_stream
from portagpu.devices.functions import stream as stream
from portagpu.devices.functions import supports as supports
from portagpu.devices.functions import synchronize as synchronize
from portagpu.devices.functions import use_mem_pool as use_mem_pool
from portagpu.devices.oom import is_oom as is_oom
from portagpu.devices.precision import Fp8 as Fp8
from portagpu.devices.precision import Precision as Precision
from portagpu.devices.precision import Support as Support
from portagpu.profiler import profiling as profiling
from portagpu.devices.registry import available as available
from portagpu.devices.registry import backend as backend
from portagpu.devices.registry import is_initialized as is_initialized
from portagpu.devices.sizing import Launch as Launch
from portagpu.devices.sizing import Sizing as Sizing
from portagpu.facts.targets import Target as Target

__version__: str

__all__: list[str]
