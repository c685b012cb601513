"""One machine as its sources together say: its GPUs, each with what all of them know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from portagpu.inventory.model import Event, Link, Memory, Part, Pcie, State

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU; fields are those of :class:`portagpu.inventory.Reading`, None is unknown.

    ``parts`` are its MIG slices or compute partitions, empty where it is scheduled whole;
    ``indices`` is its number in each source's own order, which differ; ``sources`` are those that
    know it, the most believed first; ``disagreements`` say in one sentence each where two of them
    contradict each other. The values are those of the first source that states one.
    """

    vendor: str
    pci: str | None = None
    uuid: str | None = None
    unique_id: int | None = None
    name: str | None = None
    arch: str | None = None
    warp_size: int | None = None
    device_id: int | None = None
    revision_id: int | None = None
    subsystem_id: int | None = None
    memory_bytes: int | None = None
    unit_count: int | None = None
    numa_node: int | None = None
    driver: str | None = None
    driver_version: str | None = None
    device_file: str | None = None
    firmware: Mapping[str, str] = field(default_factory=dict)
    compute_partition: str | None = None
    memory_partition: str | None = None
    mig_enabled: bool | None = None
    parts: tuple[Part, ...] = ()
    hive: str | None = None
    pcie: Pcie = field(default_factory=Pcie)
    memory: Memory = field(default_factory=Memory)
    state: State = field(default_factory=State)
    indices: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A machine: its GPUs in the order of PCI addresses, and what its sources say besides.

    ``kinds`` are the sources that were read; ``versions`` are of software by name, without the
    drivers', which are each GPU's; ``problems`` are sentences for people.
    """

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    events: tuple[Event, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
