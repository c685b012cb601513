"""What times of collectives were measured on: a machine, and the versions of its stack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was measured on. ``units`` are those of ``Sizing``: the cores of a CPU.

    ``shared`` says that all ranks use one device, as on a CPU: collectives run on what computes.
    """

    backend: str
    target: str | None
    arch: str
    product: str | None
    units: int
    shared: bool = False

    def __str__(self) -> str:
        units = "cores" if self.shared else "units"
        return f"{self.product or self.target or self.arch} with {self.units} {units}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The communication library and torch; Gloo has no version of its own."""

    library: str
    version: str | None
    torch: str

    def __str__(self) -> str:
        own = "" if self.version is None else f" {self.version} and"
        return f"{self.library}{own or ' of'} torch {self.torch}"
