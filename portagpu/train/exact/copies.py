"""Copies of random bits: to the host and back, on the device, and through another device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.probe import Expected, Probe

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_COUNT: Final = 1 << 16


def _peer(gpu: Backend) -> torch.device | None:
    """The next device of the kind; None where there is no other."""
    import torch

    count = gpu.device_count()
    if count < 2 or gpu.device.index is None:
        return None
    return torch.device(gpu.device.type, (gpu.index + 1) % count)


def _make(way: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    bits = draws.bits("copied", (_COUNT * scale,))
    other = {"host": torch.device("cpu"), "device": gpu.device, "peer": _peer(gpu)}[way]

    def copied() -> torch.Tensor:
        # cleared before, so that an old copy cannot pass for a new one
        there = torch.zeros_like(bits, device=other)
        back = torch.zeros_like(bits)
        there.copy_(bits)
        return back.copy_(there)

    return Expected(copied, bits, bits.numel())


def _refuses(way: str, gpu: Backend) -> str:
    if way == "peer" and _peer(gpu) is None:
        return f"the {gpu.name} backend has no second device here"
    return ""


PROBES: Final = tuple(
    Probe(f"copies/int64[{way}]", "int64", partial(_make, way), partial(_refuses, way))
    for way in ("host", "device", "peer")
)
