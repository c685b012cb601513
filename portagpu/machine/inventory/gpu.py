"""The machine that all sources together describe: its GPUs, links and events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from portagpu.facts.readings.model import Event, Link, Properties

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Properties):
    """One physical GPU: the values of the first source that states one.

    ``indices`` is its number in each source's own order, which differ. ``sources`` are those that
    list it, the most trusted first. ``disagreements`` has one sentence for each value on which
    sources contradict each other.
    """

    driver_version: str | None = None
    indices: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A machine: its GPUs in the order of PCI addresses, its links and events.

    ``kinds`` are the sources that were read. ``versions`` are of software by name; each GPU has its
    driver's. ``problems`` are sentences for people.
    """

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    events: tuple[Event, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    breaks_off: bool = False
    """A source was cut, and no complete one lists as many GPUs: there may be more."""
