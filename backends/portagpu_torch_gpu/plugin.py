"""The vendor-neutral part of a plugin. Imports no torch by itself.

Every process that looks for a backend imports it, and most ask it for nothing of the machine: each
method imports what it needs for that.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from portagpu.base.errors import BackendNotFound
from portagpu.base.patience import LIMITS
from portagpu.devices.availability import Need, availability
from portagpu.devices.contract import Plugin, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.host import Tree
    from portagpu.facts.readings import Findings
    from portagpu.facts.readings.model import Source

Place = tuple[str | None, str | None]
"""(PCI address, UUID) of a device."""


class TorchGpuPlugin(Plugin):
    """A plugin for one vendor's devices in their build of torch."""

    need: ClassVar[Need]
    """The required build of torch and the vendor of its GPUs."""
    backend: ClassVar[str]
    """The module of the opened device, which imports torch; its ``device_uuid(properties)`` spells
    torch's UUID as the vendor does."""
    prober: ClassVar[str]
    """The module whose ``probe(only)`` returns findings as JSON, and ``sample()`` those values that
    change; it runs in a child process."""
    library: ClassVar[str]
    """The name of the vendor's management library, for messages."""
    device_type = "cuda"
    c10d_name = "nccl"
    unopened_module = "portagpu_torch_gpu.unopened"
    start_s = (
        60.0  # a driver that nothing keeps loaded needs up to 30 s, and a library's first group
    )

    def __init__(self, root: Tree | None = None) -> None:
        self._root = root
        self._count: int | None = None
        self._addresses: dict[int, Place] = {}
        self._torch_answer: tuple[Mapping[str, str], tuple[list[Place], str]] | None = None

    @property
    def root(self) -> Tree:
        """Where the kernel's files are."""
        if self._root is None:
            from portagpu.facts.host import Tree

            self._root = Tree()
        return self._root

    @abstractmethod
    def driver_problem(self, count: int) -> str:
        """Why this process cannot reach the driver of ``count`` devices; empty where it can."""

    def may_be_here(self, count: int) -> bool:
        """Whether to ask the library, where the kernel's files show ``count`` devices."""
        return count > 0

    @abstractmethod
    def count_without_opening(self) -> int | None:
        """The number of visible devices without loading the driver's runtime; None is unknown."""

    def status(self) -> Status:
        """Usable where torch is this vendor's build and such a device can be reached."""
        return availability(self.need, self.root, self.driver_problem)

    def count(self) -> int:
        """The number of visible devices, as torch counts them.

        Before torch has opened a device it is found without the driver's runtime, which would
        leave this process unfit to fork; where that cannot be done, a child process asks torch.
        Raises BackendNotFound with what torch said where it cannot count either.
        """
        if self._count is not None:
            return self._count
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            # from here on the driver looks at no mask again, and torch 2.11 still asks NVML
            self._count = int(torch._C._cuda_getDeviceCount())
            return self._count
        known = self.count_without_opening()
        if known is not None:
            return known
        found, problem = self._ask_torch()
        if problem:
            raise BackendNotFound("torch cannot count its devices", {self.name: problem})
        return len(found)

    def current_index(self) -> int | None:
        """torch's current device, where torch has opened the driver's runtime."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        return int(torch.cuda.current_device())

    def prepare(self) -> None:
        """Import the backend, and count once what every rank would count for itself."""
        import_module(self.backend)
        with suppress(BackendNotFound):
            self.count()

    def remember(self, index: int, pci: str | None, uuid: str | None) -> None:
        """Remember the PCI address and UUID of the device of that index, from its handle."""
        self._addresses[index] = (pci, uuid)

    def telemetry(self, index: int) -> Mapping[str, float]:
        """Readings of that device now, from the vendor's management library in a child process.

        The device is found there by its PCI address or UUID, never by its index: the orders differ.
        Empty where the library is missing, is of another version, or does not answer.
        """
        from portagpu.facts.readings.stream import probe, telemetry_of

        where = self._addresses.get(index) or dict(enumerate(self._ask_torch()[0])).get(index)
        if where is None:
            return {}
        found = probe(self.prober, self.library, only=where[0]).readings
        return telemetry_of(found, *where)

    def probe(self) -> Findings:
        """Findings of the management library on every GPU of this vendor, from a child process.

        The library is not used without such a GPU. Masks hide nothing here.
        """
        from portagpu.facts.host import gpus_on_machine
        from portagpu.facts.readings.stream import probe

        gpus = [gpu for gpu in gpus_on_machine(self.root) if gpu.vendor == self.need.vendor]
        if not self.may_be_here(len(gpus)):
            return super().probe()
        addresses = {gpu.pci for gpu in gpus if gpu.pci is not None}
        return probe(self.prober, self.library, addresses)

    def sampler(self) -> Source | None:
        """The management library, where the machine shows a GPU of this vendor."""
        from portagpu.facts.host import gpus_on_machine
        from portagpu.facts.readings.model import Source

        count = sum(gpu.vendor == self.need.vendor for gpu in gpus_on_machine(self.root))
        if not self.may_be_here(count):
            return None
        return Source(name=self.library, module=self.prober)

    def _ask_torch(self) -> tuple[list[Place], str]:
        """PCI address and UUID of every visible device, from a child process, cached for the masks.

        The second value is the problem, empty without one.
        """
        from portagpu.base.subprocesses import call
        from portagpu.facts.host import visibility

        masks = visibility()
        if self._torch_answer is None or self._torch_answer[0] != masks:
            found, problem = call(
                "portagpu_torch_gpu.device",
                "addresses",
                (self.backend,),
                limit_s=LIMITS.torch_s,
            )
            self._torch_answer = (masks, ([(pci, uuid) for pci, uuid in found or ()], problem))
        return self._torch_answer[1]
