"""The device ``strict`` over torch's calls for any accelerator: ``torch.accelerator``.

It claims streams, events and peaks of memory, and nothing else.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu import (
    Arch,
    Backend,
    Capability,
    Comm,
    Description,
    Precision,
    Sizing,
    Support,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from portagpu import Plugin

COUNT: Final = 2

torch.ops.load_library(str(Path(__file__).with_name("strict.so")))


def generator_of(index: int) -> torch.Generator:
    """The default generator of that device."""
    return torch.ops.portagpu_strict.generator(index)


def _manual_seed_all(seed: int) -> None:
    for index in range(COUNT):
        generator_of(index).manual_seed(seed)


class _Device:
    """What torch looks for as ``torch.strict.device``."""

    def __init__(self, device: torch.device | int) -> None:
        self._index = device if isinstance(device, int) else torch.device(device).index

    def __enter__(self) -> None:
        self._before = torch.accelerator.current_device_index()
        if self._index is not None:
            torch.accelerator.set_device_index(self._index)

    def __exit__(self, *raised: object) -> None:
        torch.accelerator.set_device_index(self._before)


def _module() -> ModuleType:
    """``torch.strict``: what torch asks such a module for (torch/utils/backend_registration.py)."""
    module = ModuleType("torch.strict")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: COUNT
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module.device = _Device
    module.manual_seed_all = _manual_seed_all
    module._is_in_bad_fork = lambda: False
    module.get_rng_state = lambda device="strict": generator_of(
        torch.device(device).index or 0
    ).get_state()
    module.set_rng_state = lambda state, device="strict": generator_of(
        torch.device(device).index or 0
    ).set_state(state)
    module.get_amp_supported_dtype = list
    return module


if not hasattr(torch, "strict"):
    torch._register_device_module("strict", _module())

_DTYPES: Final = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float32,
    torch.complex64,
)


@dataclass(frozen=True, slots=True)
class StrictProperties:
    """The fields of torch's device properties that portable code reads."""

    name: str
    total_memory: int
    multi_processor_count: int = 1
    warp_size: int = 1


class StrictBackend(Backend):
    """One of the two devices."""

    __slots__ = ()

    current_index = staticmethod(torch.accelerator.current_device_index)

    def __init__(self, plugin: Plugin, index: int) -> None:
        if not 0 <= index < COUNT:
            raise IndexError(f"there is no device strict:{index}")
        super().__init__(
            plugin,
            Description(
                name="strict",
                index=index,
                device=torch.device("strict", index),
                arch=Arch("strictmaker", "strict1", 1),
                product="Strict 1",
                vendor="strictmaker",
                target=None,
                capabilities=frozenset(
                    {Capability.STREAMS, Capability.EVENTS, Capability.PEAK_MEMORY}
                ),
                precision=Precision(
                    MappingProxyType(
                        dict.fromkeys(_DTYPES, Support.NATIVE)
                        | dict.fromkeys((torch.float16, torch.bfloat16), Support.EMULATED)
                    ),
                    flushes=frozenset({torch.bfloat16}),
                ),
                comm=Comm.none("strict"),
                sizing=Sizing(1, 1, 1, 1, 1),
                versions={"torch": torch.__version__},
            ),
        )

    def activate(self) -> None:
        """torch's current accelerator."""
        torch.accelerator.set_device_index(self.index)

    def get_device_properties(self) -> StrictProperties:
        """Name and memory; it has no warps."""
        return StrictProperties("Strict 1", self.mem_get_info()[1])

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.device)

    def mem_get_info(self) -> tuple[int, int]:
        return torch.accelerator.get_memory_info(self.device)

    def memory_stats(self) -> Mapping[str, int]:
        return torch.accelerator.memory_stats(self.device)

    def reset_peak_memory_stats(self) -> None:
        torch.accelerator.reset_peak_memory_stats(self.device)

    def empty_cache(self) -> None:
        torch.accelerator.empty_cache()

    def generator(self) -> torch.Generator:
        return generator_of(self.index)

    def Stream(self, priority: int = 0) -> torch.Stream:  # noqa: N802 - torch's name
        return torch.Stream(self.device, priority=priority)

    def current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)

    def stream(self, stream: torch.Stream | None) -> AbstractContextManager[Any]:
        return nullcontext() if stream is None else self._inside(stream)

    @contextmanager
    def _inside(self, stream: torch.Stream) -> Iterator[None]:
        """A block of its own: a torch.Stream keeps one former stream and cannot nest in itself."""
        former = self.current_stream()
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(former)

    def default_stream(self) -> torch.Stream:
        # the number 0 is c10::Stream::DEFAULT, and 20 PrivateUse1 (c10/core/DeviceType.h)
        return torch.Stream(stream_id=0, device_index=self.index, device_type=20)

    def set_stream(self, stream: torch.Stream | None) -> None:
        if stream is not None:
            torch.accelerator.set_stream(stream)

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        if interprocess:
            raise Unsupported("the strict device shares no events between processes")
        return torch.Event(self.device, enable_timing=enable_timing, blocking=blocking)

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        return torch.profiler.record_function(name)
