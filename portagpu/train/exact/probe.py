"""What a probe is: work on a device that is made from a seed, run many times, and judged wholly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from portagpu.train.exact.judge import differences

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.judge import Wrong


class Work(Protocol):
    """The operands of a probe on a device."""

    @property
    def results(self) -> int:
        """How many results one run gives; all are judged."""

    @property
    def inputs(self) -> int:
        """How many elements its operands have."""

    def run(self) -> torch.Tensor:
        """Compute once, on the device's current stream."""

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The wrong elements; None where every element is right."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Work whose whole result is known: ``judge`` compares the bits of every element."""

    compute: Callable[[], torch.Tensor]
    expected: torch.Tensor
    """The right result, on the device."""
    inputs: int

    @property
    def results(self) -> int:
        """The number of elements of the result."""
        return self.expected.numel()

    def run(self) -> torch.Tensor:
        """Compute once."""
        return self.compute()

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The elements whose bits are not the expected ones."""
        return differences(result, self.expected)


@dataclass(frozen=True, slots=True)
class Probe:
    """One kind of work.

    :param name: ``area/dtype[variant]``, such as "products/bfloat16[thin]".
    :param dtype: torch's name of the dtype that it needs.
    :param make: Makes operands on a device; ``scale`` multiplies the number of results, and is 1
        for the digest. Raises NotExactError where the result could depend on an order.
    :param refuses: Why a device cannot run it; empty where it can.
    """

    name: str
    dtype: str
    make: Callable[[Backend, Draws, int], Work]
    refuses: Callable[[Backend], str]

    @property
    def area(self) -> str:
        """The part before the slash."""
        return self.name.partition("/")[0]
