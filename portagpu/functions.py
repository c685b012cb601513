"""The training surface as functions, over the current device.

Each takes what torch's function of that name takes and hands it to the backend; ``device`` is an
index, a ``torch.device`` or its string, and None means the current device.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from portagpu.registry import at, backend, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    import torch

    DeviceLike: TypeAlias = int | str | torch.device | None


def is_available() -> bool:
    """False exactly when ``backend()`` would raise; never raises itself."""
    try:
        backend()
    except Exception:  # noqa: BLE001 - whatever keeps a device from opening makes it unavailable
        return False
    return True


def device(device: DeviceLike = None) -> torch.device:
    """The current device as a ``torch.device``, or the one asked for."""
    return (backend() if device is None else at(device)).device


def device_count() -> int:
    """The number of devices of the current backend; 1 on a CPU, so that a script still trains."""
    return backend().device_count()


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
    (backend() if device is None else at(device)).synchronize()


def empty_cache() -> None:
    """Give cached memory of the current device back to the system."""
    backend().empty_cache()


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator."""
    backend().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generator of every device of the current backend."""
    current = backend()
    for index in range(current.device_count()):
        (current if index == current.index else at(index)).manual_seed(seed)


def seed() -> int:
    """Seed the current device's generator from the system's randomness; returns the seed."""
    return backend().seed()


def initial_seed() -> int:
    """The seed that the current device's default generator was last given."""
    return backend().initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """The state of the device's default generator: a uint8 CPU tensor of shape (n,)."""
    return (backend() if device is None else at(device)).get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Put the device's default generator into that state."""
    (backend() if device is None else at(device)).set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The generator states of every device of the current backend, in order of index."""
    current = backend()
    count = current.device_count()
    if count == 1:
        return [current.get_rng_state()]
    return [at(index).get_rng_state() for index in range(count)]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Put the generators of the backend's devices into those states, in order of index."""
    for index, state in enumerate(new_states):
        at(index).set_rng_state(state)


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that this process's tensors hold on the device; resident memory on a CPU."""
    return (backend() if device is None else at(device)).memory_allocated()


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The peak of ``memory_allocated`` in bytes since the start or the last reset."""
    return (backend() if device is None else at(device)).max_memory_allocated()


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that this process's allocator holds on the device; resident memory on a CPU."""
    return (backend() if device is None else at(device)).memory_reserved()


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The peak of ``memory_reserved`` in bytes since the start or the last reset."""
    return (backend() if device is None else at(device)).max_memory_reserved()


def memory_stats(device: DeviceLike = None) -> Mapping[str, int]:
    """This process's memory on the device in bytes, under torch's keys."""
    return (backend() if device is None else at(device)).memory_stats()


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Start the peaks again from the current values."""
    (backend() if device is None else at(device)).reset_peak_memory_stats()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) memory of the device in bytes."""
    return (backend() if device is None else at(device)).mem_get_info()


def get_device_properties(device: DeviceLike = None) -> Any:
    """torch's properties object of the device, or one with its field names."""
    return (backend() if device is None else at(device)).get_device_properties()


def get_device_name(device: DeviceLike = None) -> str:
    """The product's name as the device reports it, never empty (``Backend.get_device_name``)."""
    return (backend() if device is None else at(device)).get_device_name()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 arithmetic runs on the current device."""
    return backend().is_bf16_supported(including_emulation)


def Event(  # noqa: N802 - torch's name
    enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
) -> Any:
    """A new event of the current device."""
    return backend().Event(enable_timing, blocking, interprocess)


def Stream(device: DeviceLike = None, priority: int = 0) -> Any:  # noqa: N802 - torch's name
    """A new stream of the device; a lower priority is more urgent."""
    return (backend() if device is None else at(device)).Stream(priority)


def current_stream(device: DeviceLike = None) -> Any:
    """The stream that work on the device is put on now."""
    return (backend() if device is None else at(device)).current_stream()


def stream(stream: Any) -> AbstractContextManager[Any]:
    """Put work on that stream inside the block; None changes nothing."""
    return nullcontext() if stream is None else backend().stream(stream)


def Graph() -> Any:  # noqa: N802 - one name for every vendor's graph
    """A graph to capture work into; raises Unsupported where the device has none."""
    return backend().Graph()


def graph(
    cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
) -> AbstractContextManager[Any]:
    """Capture the block's work into a graph; raises Unsupported where the device has none."""
    return backend().graph(cuda_graph, pool, stream, capture_error_mode)


def autocast(
    dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> torch.autocast:
    """``torch.autocast`` for the current device.

    The order is ``torch.autocast``'s after the device type; ``torch.cuda.amp.autocast`` has
    ``enabled`` first, so write it as a keyword.
    """
    return backend().autocast(dtype, enabled, cache_enabled)


def GradScaler(  # noqa: N802 - torch's name
    init_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    enabled: bool = True,
) -> torch.amp.GradScaler:
    """``torch.amp.GradScaler`` for the current device, with torch's options and defaults."""
    return backend().GradScaler(init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def annotate(name: str) -> AbstractContextManager[Any]:
    """Mark the block as ``name`` for the profiler of the current device's vendor."""
    return backend().annotate(name)


def range_push(msg: str) -> int:
    """Open a profiler range; returns its depth, from 0."""
    return backend().range_push(msg)


def range_pop() -> int:
    """Close the innermost profiler range of this thread; returns its depth.

    Raises IndexError when none is open.
    """
    return backend().range_pop()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in page-locked host memory; raises Unsupported where there is none."""
    return backend().pin(tensor)
