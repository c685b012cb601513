"""The training surface as functions, over the current device.

Each takes what torch's function of that name takes and hands it to the backend; ``device`` is an
index, a ``torch.device`` or its string, and None means the current device. An index that no device
has raises IndexError, and a device of another type than the backend's ValueError. A call of a
capability that the device does not claim raises Unsupported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ContextDecorator, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from portagpu.devices.objects import Event as Event
from portagpu.devices.objects import ExternalStream as ExternalStream
from portagpu.devices.objects import Graph as Graph
from portagpu.devices.objects import MemPool as MemPool
from portagpu.devices.objects import Stream as Stream
from portagpu.devices.objects import makes
from portagpu.devices.registry import (
    answer,
    backend,
    handle_for,
    select,
    without_opening,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from os import PathLike
    from types import TracebackType
    from typing import TypeAlias

    import torch

    from portagpu.devices.training import NoAutocast

    DeviceLike: TypeAlias = int | str | torch.device | None

_F = TypeVar("_F", bound="Callable[..., Any]")


def _memory(name: str, device: DeviceLike) -> int:
    unopened = without_opening()
    if unopened is not None:
        found: int = getattr(unopened, name)(device)
        return found
    return int(getattr(backend() if device is None else handle_for(device), name)())


def is_available() -> bool:
    """False exactly when ``backend()`` would raise; never raises itself.

    Before a device is open it may be torch's answer, which opens none.
    """
    try:
        unopened = without_opening()
        if unopened is not None:
            return bool(unopened.is_available())
        backend()
    except Exception:  # noqa: BLE001 - whatever keeps a device from opening makes it unavailable
        return False
    return True


def device(device: DeviceLike = None) -> torch.device:
    """The current device as a ``torch.device``, or the one asked for."""
    return (backend() if device is None else handle_for(device)).device


def device_count() -> int:
    """The number of devices of the current backend; 1 on a CPU, so that a script still trains."""
    found: int = answer("device_count")
    return found or backend().device_count()


def current_device() -> int:
    """The index of the current device; torch takes it as ``device`` too, on a CPU as well."""
    return backend().current_device()


def set_device(device: int | str | torch.device) -> None:
    """Change what ``backend()`` returns next; handles that exist do not change.

    On a CPU any index names the one device that all ranks of the machine share. A negative index
    changes nothing, as in torch, where launchers pass -1 for "not distributed".
    """
    if isinstance(device, int) and device < 0:
        backend()
        return
    select(device)


def synchronize(device: DeviceLike = None) -> None:
    """Wait until all work on the device is done."""
    (backend() if device is None else handle_for(device)).synchronize()


def empty_cache() -> None:
    """Give cached memory of the current device back to the system."""
    answer("empty_cache")


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator, on a GPU when it is opened."""
    answer("manual_seed", seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generator of every device of the current backend, on a GPU when it opens."""
    unopened = without_opening()
    if unopened is not None:
        unopened.manual_seed_all(seed)
        return
    current = backend()
    for index in range(current.device_count()):
        (current if index == current.index else handle_for(index)).manual_seed(seed)


def seed() -> int:
    """Seed the current device's generator from the system's randomness; returns the seed."""
    return backend().seed()


def initial_seed() -> int:
    """The seed that the current device's default generator was last given."""
    return backend().initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """The state of the device's default generator: a uint8 CPU tensor of shape (n,)."""
    return (backend() if device is None else handle_for(device)).get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Put the device's default generator into that state.

    :param new_state: what :func:`get_rng_state` gave on the same backend: a uint8 CPU tensor of
        shape (n,).
    :param device: the device; by default the current one.
    """
    (backend() if device is None else handle_for(device)).set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The generator states of every device of the current backend, in order of index."""
    current = backend()
    count = current.device_count()
    if count == 1:
        return [current.get_rng_state()]
    return [handle_for(index).get_rng_state() for index in range(count)]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Put the generators of the backend's devices into those states, in order of index."""
    for index, state in enumerate(new_states):
        handle_for(index).set_rng_state(state)


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that this process's tensors hold on the device; resident memory on a CPU."""
    return _memory("memory_allocated", device)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The peak of ``memory_allocated`` in bytes since the start or the last reset."""
    return _memory("max_memory_allocated", device)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that this process's allocator holds on the device; resident memory on a CPU."""
    return _memory("memory_reserved", device)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The peak of ``memory_reserved`` in bytes since the start or the last reset."""
    return _memory("max_memory_reserved", device)


def memory_stats(device: DeviceLike = None) -> Mapping[str, int]:
    """This process's memory on the device in bytes, under torch's keys; none before it is open."""
    if (unopened := without_opening()) is not None:
        found: Mapping[str, int] = unopened.memory_stats(device)
        return found
    return (backend() if device is None else handle_for(device)).memory_stats()


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Start the peaks again from the current values."""
    (backend() if device is None else handle_for(device)).reset_peak_memory_stats()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) memory of the device in bytes."""
    return (backend() if device is None else handle_for(device)).mem_get_info()


def get_device_properties(device: DeviceLike = None) -> Any:
    """torch's properties object of the device, or one with its field names."""
    return (backend() if device is None else handle_for(device)).get_device_properties()


def get_device_name(device: DeviceLike = None) -> str:
    """The product's name as the device reports it, never empty (``Backend.get_device_name``)."""
    return (backend() if device is None else handle_for(device)).get_device_name()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 arithmetic runs on the current device."""
    return backend().is_bf16_supported(including_emulation)


@makes(Event)
def _event(
    enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
) -> Event:
    made: Event = answer("Event", enable_timing, blocking, interprocess)
    return made


@makes(Stream)
def _stream(device: DeviceLike = None, priority: int = 0) -> Stream:
    return (backend() if device is None else handle_for(device)).Stream(priority)


@makes(Graph)
def _graph() -> Graph:
    return backend().Graph()


CUDAGraph = Graph
"""torch's name of it."""


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that work on the device is put on now."""
    return (backend() if device is None else handle_for(device)).current_stream()


def stream(stream: Any) -> AbstractContextManager[Any]:
    """Put work on that stream inside the block; None changes nothing."""
    return nullcontext() if stream is None else backend().stream(stream)


def graph(
    cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
) -> AbstractContextManager[Any]:
    """Capture the block's work into a graph.

    :param cuda_graph: a :class:`portagpu.Graph`, which holds the captured work after the block.
    :param pool: memory to share: what ``graph_pool_handle()`` or another graph's ``pool()`` gave;
        None is a pool of its own.
    :param stream: the stream that captures; by default a side stream of the device.
    :param capture_error_mode: "global", "thread_local" or "relaxed": which threads' unsafe calls
        end the capture with an error, as in ``torch.cuda.graph``.
    :returns: a context manager.
    :raises Unsupported: where the device has no graphs.
    """
    return backend().graph(cuda_graph, pool, stream, capture_error_mode)


def autocast(
    dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> torch.autocast | NoAutocast:
    """``torch.autocast`` for the current device.

    The order is ``torch.autocast``'s after the device type; ``torch.cuda.amp.autocast`` has
    ``enabled`` first, so write it as a keyword.

    :param dtype: float16 or bfloat16; by default torch's for the device: float16 on a GPU, bfloat16
        on a CPU. float32 casts nothing.
    :param enabled: whether anything is cast; False is a block that changes nothing.
    :param cache_enabled: whether casts of weights are kept inside the block; None is torch's
        setting.
    :returns: a context manager.
    :raises TypeError: for a bool as ``dtype``.
    :raises ValueError: for another dtype.
    :raises Unsupported: where the device has no autocast, unless ``enabled`` is False.
    """
    made: torch.autocast | NoAutocast = answer("autocast", dtype, enabled, cache_enabled)
    return made


def GradScaler(  # noqa: N802 - torch's name
    init_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    enabled: bool = True,
) -> torch.amp.GradScaler:
    """``torch.amp.GradScaler`` for the current device, with torch's options and defaults.

    :param init_scale: the factor of the loss at first.
    :param growth_factor: by what the factor is multiplied after ``growth_interval`` steps in a row
        without infinities and NaN.
    :param backoff_factor: by what it is multiplied after a step with one.
    :param growth_interval: the number of these steps.
    :param enabled: False scales nothing, on every device.
    :raises TypeError: for a device as the first argument, which ``torch.amp.GradScaler`` takes.
    :raises Unsupported: where the device has no autocast, unless ``enabled`` is False.
    """
    given = (init_scale, growth_factor, backoff_factor, growth_interval, enabled)
    made: torch.amp.GradScaler = answer("GradScaler", *given)
    return made


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in page-locked host memory; raises Unsupported where there is none."""
    return backend().pin(tensor)


def supports(capability: str) -> bool:
    """Whether the current device claims that capability: ``pg.supports("pinned-memory")``.

    Raises ValueError with the known ones for another word.
    """
    return backend().supports(capability)


def init() -> None:
    """Open the current device, which the first call of any function does as well."""
    backend()


class device_index(ContextDecorator):  # noqa: N801 - the name of torch.accelerator's
    """Make that device the current one inside the block; None and a negative index change nothing.

    What ``torch.cuda.device`` does, under the name that ``torch.accelerator`` gives it: a block
    ``with pg.device(i)`` is one of torch.device, which moves torch's factories and no other call.
    """

    def __init__(self, device: DeviceLike) -> None:
        self._device = None if isinstance(device, int) and device < 0 else device
        self._before: list[int] = []

    def _recreate_cm(self) -> device_index:
        return device_index(self._device)

    def __enter__(self) -> None:
        if self._device is not None:
            before = backend().index
            select(self._device)
            self._before.append(before)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._device is not None:
            select(self._before.pop())


def device_of(obj: torch.Tensor) -> device_index:
    """Make the device of that tensor the current one inside the block, if it is of this backend."""
    where = obj.device
    ours = where.type == backend().device.type and where.index is not None
    return device_index(where.index if ours else None)


def set_stream(stream: Stream | None) -> None:
    """Put the work of this thread on that stream from now on; None changes nothing."""
    if stream is not None:
        backend().set_stream(stream)


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that work on the device is put on where nobody chose another."""
    return (backend() if device is None else handle_for(device)).default_stream()


@makes(ExternalStream)
def _external_stream(stream_ptr: int, device: DeviceLike = None) -> Stream:
    return (backend() if device is None else handle_for(device)).ExternalStream(stream_ptr)


def graph_pool_handle() -> Any:
    """A pool of memory that graphs can share; raises Unsupported where the device has none."""
    return backend().graph_pool_handle()


def is_current_stream_capturing() -> bool:
    """Whether a graph is being captured from the current stream."""
    return backend().is_current_stream_capturing()


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The memory of this process on the device, as a text for people.

    :param device: the device; by default the current one.
    :param abbreviated: whether torch's table is abbreviated; a device with a table of its own
        ignores it.
    :returns: a table of several lines.
    """
    return (backend() if device is None else handle_for(device)).memory_summary(abbreviated)


def memory_snapshot(mempool_id: Any = None) -> Any:
    """What the allocator holds, as torch lists it; raises Unsupported where there is none."""
    return backend().memory_snapshot(mempool_id)


def record_memory_history(*arguments: Any, **options: Any) -> None:
    """``torch.cuda.memory._record_memory_history``: begin or end to record allocations.

    :param arguments: as torch's: first ``enabled``, where None ends the recording.
    :param options: as torch's, such as ``max_entries``.
    :raises Unsupported: where the device has no such history.
    """
    backend().record_memory_history(*arguments, **options)


def dump_memory_snapshot(filename: str | PathLike[str]) -> None:
    """``torch.cuda.memory._dump_snapshot``; raises Unsupported where there is none."""
    backend().dump_memory_snapshot(filename)


@makes(MemPool)
def _mem_pool(*arguments: Any, **options: Any) -> Any:
    return backend().MemPool(*arguments, **options)


def use_mem_pool(pool: Any, device: DeviceLike = None) -> AbstractContextManager[Any]:
    """Allocate from a pool inside the block.

    :param pool: a :class:`portagpu.MemPool`.
    :param device: the device; by default the current one.
    :returns: a context manager.
    :raises Unsupported: where the device has no pools.
    """
    return (backend() if device is None else handle_for(device)).use_mem_pool(pool)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limit this process to a part of the device's memory.

    :param fraction: the part, from 0 to 1; torch raises its out-of-memory error above it.
    :param device: the device; by default the current one.
    :raises Unsupported: where the device cannot limit it.
    """
    (backend() if device is None else handle_for(device)).set_per_process_memory_fraction(fraction)


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes of the device's memory that are in use, by whatever process."""
    return (backend() if device is None else handle_for(device)).device_memory_used()


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """torch's (major, minor) of the device; raises Unsupported where it has none.

    CUDA's compute capability or the numbers of AMD's gfx name, which do not compare: to choose by
    what a device can do ask ``supports``, ``is_bf16_supported`` or ``backend().precision``.
    """
    return (backend() if device is None else handle_for(device)).get_device_capability()


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether ``device`` reads the memory of ``peer_device`` without going through the host.

    :param device: the device that reads; None is the current one.
    :param peer_device: the device whose memory is read.
    :raises Unsupported: where the backend does not say it.
    """
    return handle_for(device).can_device_access_peer(handle_for(peer_device).index)


def ipc_collect() -> None:
    """Free memory of tensors that other processes have released."""
    backend().ipc_collect()


def cudart() -> Any:
    """The runtime's calls as ``torch.cuda.cudart`` names them; on a CPU those of the profiler."""
    return backend().cudart()


class _Generators(Sequence["torch.Generator"]):
    """The default generator of every device, by index: ``torch.cuda.default_generators``."""

    def __len__(self) -> int:
        return device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | list[torch.Generator]:
        chosen = range(len(self))[index]  # raises IndexError, and counts negative ones from the end
        if isinstance(chosen, range):
            return [handle_for(each).generator() for each in chosen]
        return handle_for(chosen).generator()


default_generators: Final = _Generators()
