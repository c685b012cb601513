"""How the kernels of a program are launched: on torch's tensors, or on a device of the tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from portagpu.facts.capability import Capability
from portagpu.suites.search.ordering.model import BUFFERS, FACTOR

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend
    from portagpu.suites.search.ordering.model import Kernel


SETTLE_S: Final = 0.2
"""Longer than the longest work of a program. Nothing is judged by it: it chooses the words."""


class Kernels(Protocol):
    """Buffers of whole numbers, and kernels over them on the current stream.

    Every element of a buffer holds the same value, but where kernels race.
    """

    @property
    def most(self) -> int:
        """The longest work that :meth:`busy` is asked for."""

    @property
    def waits(self) -> bool:
        """Whether :meth:`peek` waits for all work, as it must where there is only one queue."""

    def start(self, values: dict[str, int]) -> None:
        """Put a value into each buffer, and wait until it is there."""

    def launch(self, kernel: Kernel) -> None:
        """Launch the kernel on this thread's current stream."""

    def launch_through(self, kernel: Kernel) -> None:
        """Launch a copy by way of memory that is allocated now."""

    def busy(self, work: int) -> None:
        """Keep the current stream busy: ``work`` is a length without a unit, 0 is none."""

    def peek(self, buffer: str) -> frozenset[int]:
        """The values in a buffer now, on a stream of its own that waits for nothing."""

    def settle(self) -> None:
        """Let all work end without asking the device when it does."""

    def now(self) -> float:
        """Seconds on the host's clock."""

    def pause(self, seconds: float) -> None:
        """Let the host do nothing for that long."""


class TorchKernels:
    """Kernels on tensors of the device, which need not compile anything."""

    most: ClassVar[int] = 1024
    elements: ClassVar[int] = 64

    def __init__(self, gpu: Backend) -> None:
        import torch

        self._gpu = gpu
        self._buffers = {
            name: torch.zeros(self.elements, dtype=torch.int64, device=gpu.device)
            for name in BUFFERS
        }
        self._large: torch.Tensor | None = None
        self.waits = not gpu.supports(Capability.STREAMS)
        self._reader: Any = None if self.waits else gpu.Stream()

    def start(self, values: dict[str, int]) -> None:
        self._gpu.synchronize()
        for name, value in values.items():
            self._buffers[name].fill_(value)
        self._gpu.synchronize()

    def launch(self, kernel: Kernel) -> None:
        import torch

        target = self._buffers[kernel.target]
        if kernel.kind == "write":
            target.fill_(kernel.value)
        elif kernel.kind == "copy":
            target.copy_(self._buffers[kernel.source])
        else:
            # one kernel, so that no other one sees it half done
            torch.add(self._buffers[kernel.source], target, alpha=FACTOR, out=target)

    def launch_through(self, kernel: Kernel) -> None:
        self._buffers[kernel.target].copy_(self._buffers[kernel.source] + 0)

    def busy(self, work: int) -> None:
        import torch

        if not work:
            return
        if self._large is None:
            # 64 MiB: longer to read and write than a launch takes, on any device
            self._large = torch.zeros(1 << 24, dtype=torch.float32, device=self._gpu.device)
        for _ in range(work):
            self._large.mul_(1.0)

    def peek(self, buffer: str) -> frozenset[int]:
        with self._gpu.stream(self._reader):
            return frozenset(self._buffers[buffer].tolist())

    def settle(self) -> None:
        time.sleep(SETTLE_S)
        self._gpu.synchronize()

    def now(self) -> float:
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)
