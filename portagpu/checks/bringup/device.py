"""What bring-up runs on a device, in its own rank: its description and the memory test."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

from portagpu.checks.bringup.device_properties import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from portagpu.devices.collectives.comm import Comm
    from portagpu.runs.world import Rank

_CHUNK: Final = 1 << 22
"""Elements that are written or compared at once; bounds the memory needed besides the buffer."""


class PartFacts(TypedDict):
    """The fields of ``portagpu.devices.contract.Part``."""

    name: str
    product: str | None
    of: int | None


class DeviceFacts(TypedDict):
    """What is known of a device under test, as JSON; what is unknown is None."""

    device: str
    vendor: str | None
    product: str | None
    arch_vendor: str
    arch: str | None
    warp_size: int | None
    unit_count: int | None
    reported: Mapping[str, float]
    """What torch or a recording states of ``FIELDS``."""
    part: PartFacts | None
    memory_bytes: int | None
    uuid: str | None
    pci: str | None
    target: str | None
    target_scope: str | None
    capabilities: list[str] | None
    versions: dict[str, str | None]
    parent: NotRequired[str | None]
    """Of a recorded part: the PCI address of its GPU. What follows needs an open device."""
    backend: NotRequired[str]
    count: NotRequired[int]
    """The number of devices of its backend."""
    integrated: NotRequired[bool | None]
    free_bytes: NotRequired[int]
    comm_library: NotRequired[str]
    comm_version: NotRequired[str | None]
    comm_available: NotRequired[bool | None]
    """Whether this torch has the library; None if the device has none."""
    torch: NotRequired[str]
    contract: NotRequired[list[int]]


def describe(rank: Rank) -> DeviceFacts:
    """The facts of the rank's device."""
    import torch

    gpu, part = rank.gpu, rank.gpu.part
    properties = gpu.get_device_properties()
    free, total = gpu.mem_get_info()
    return {
        "backend": gpu.name,
        "count": gpu.device_count(),
        "device": str(gpu.device),
        "vendor": gpu.vendor,
        "product": gpu.product,
        "arch_vendor": gpu.arch.vendor,
        "arch": gpu.arch.name,
        "warp_size": gpu.arch.warp_size,
        "unit_count": properties.multi_processor_count,
        "reported": _reported_fields(properties),
        "part": {"name": part.name, "product": part.product, "of": part.of} if part else None,
        "integrated": getattr(gpu, "integrated", None),
        "memory_bytes": total,
        "free_bytes": free,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "target": gpu.target.id if gpu.target is not None else None,
        "target_scope": str(gpu.target.scope) if gpu.target is not None else None,
        "capabilities": sorted(gpu.capabilities),
        "versions": dict(gpu.versions),
        "comm_library": gpu.comm.library,
        "comm_version": gpu.comm.version,
        "comm_available": _has_library(gpu.comm),
        "torch": str(torch.__version__),
        "contract": list(gpu.plugin.contract),
    }


def _has_library(comm: Comm) -> bool | None:
    """Whether this torch has the communication library; None if the device has none."""
    import torch.distributed as dist

    if not comm.c10d_name:
        return None
    return dist.is_available() and dist.is_backend_available(comm.c10d_name)


def _reported_fields(properties: Any) -> dict[str, float]:
    """The fields of ``FIELDS`` that torch reports.

    torch reads some of them from the runtime on access, which may raise.
    """
    found = {}
    for name in FIELDS:
        with contextlib.suppress(AttributeError, RuntimeError):
            found[name] = getattr(properties, name)
    return found


def pattern_test(rank: Rank, nbytes: int, seed: int) -> dict[str, Any]:
    """Write patterns over ``nbytes`` of the device's memory and read each back whole.

    The patterns: all zeros, all ones, 0x55, 0xAA, each word its own address and the complement of
    it (a stuck or shorted address line), and seeded random words. Returns the bytes tested and for
    each pattern the number of wrong 8-byte words and the byte offset of the first.
    """
    import torch

    words = nbytes // 8
    buffer = torch.empty(words, dtype=torch.int64, device=rank.gpu.device)
    return check_memory(buffer, rank.gpu.synchronize, seed, rank.step)


def check_memory(
    buffer: torch.Tensor,
    synchronize: Callable[[], None],
    seed: int,
    step: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """The pattern test over a contiguous int64 ``buffer`` of shape (words,)."""
    report: dict[str, Any] = {"bytes": buffer.numel() * 8, "patterns": {}}
    for name, pattern in _patterns(buffer, seed):
        step(name)
        for start, part in _parts(buffer):
            part.copy_(pattern(start, part.numel()))
        synchronize()
        wrong, first = 0, None
        for start, part in _parts(buffer):
            differs = part.ne(pattern(start, part.numel()))
            count = int(differs.sum())
            if count and first is None:
                first = (start + int(differs.nonzero()[0])) * 8
            wrong += count
        report["patterns"][name] = {"wrong_words": wrong, "first_offset": first}
    return report


def _parts(buffer: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, buffer.numel(), _CHUNK):
        yield start, buffer[start : start + _CHUNK]


def _patterns(
    buffer: torch.Tensor, seed: int
) -> Iterator[tuple[str, Callable[[int, int], torch.Tensor]]]:
    """(name, words at (start, count)) for each pattern, made on the buffer's device."""
    import torch

    device = buffer.device

    def constant(value: int) -> Callable[[int, int], torch.Tensor]:
        return lambda start, count: torch.full(
            (1,), value, dtype=torch.int64, device=device
        ).expand(count)

    def address(start: int, count: int) -> torch.Tensor:
        return torch.arange(start, start + count, dtype=torch.int64, device=device)

    def random(start: int, count: int) -> torch.Tensor:
        generator = torch.Generator(device=device).manual_seed(seed + start)
        span = torch.iinfo(torch.int64)
        return torch.randint(
            span.min, span.max, (count,), dtype=torch.int64, device=device, generator=generator
        )

    yield "zeros", constant(0)
    yield "ones", constant(-1)
    yield "0x55", constant(0x5555555555555555)
    yield "0xaa", constant(~0x5555555555555555)
    yield "address", address
    yield "inverse-address", lambda start, count: address(start, count).bitwise_not_()
    yield "random", random
