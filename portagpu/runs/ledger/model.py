"""What the ledger knows of runs and devices, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.runs.results.verdicts import Verdict

IDENTITY: Final = ("bringup", "identity")
"""The suite and the area of a device that is absent."""
ABSENT: Final = "identity/absent"


class Fact(NamedTuple):
    """What a result is about.

    ``device`` is :attr:`Device.id`, the name in the result where the run describes no such device,
    or empty for the whole node. ``suite`` and ``area`` are those that the result comes from, before
    a bring-up took it over. ``seed`` is that of drawn programs, else empty.
    """

    device: str
    backend: str | None
    target: str | None
    suite: str
    area: str
    id: str
    seed: str = ""


class Statement(NamedTuple):
    """What one run states of a fact: in which gate (suite, area), and whether a value was wrong."""

    verdict: Verdict
    gate: tuple[str, str]
    wrong: bool = False


class Device(NamedTuple):
    """A device as a run describes it.

    ``id`` is its UUID, else its PCI address (both by :func:`same_id`), else its place under its
    backend, and empty where nothing names it. ``parent`` is the device of which it is a slice.
    """

    id: str
    pci: str = ""
    vendor: str = ""
    number: int | None = None
    lasting: bool = False
    """Whether ``id`` names this piece of hardware or its slot, in every run."""
    parent: str = ""
    is_whole: bool = True
    """Whether it can be lost: a CPU cannot, and a slice goes with its device."""

    @property
    def has_uuid(self) -> bool:
        """Whether ``id`` is a UUID."""
        return self.lasting and self.id != self.pci

    @property
    def title(self) -> str:
        """What to call it: its id, and where it is."""
        return f"{self.id} at {self.pci}" if self.has_uuid and self.pci else self.id


def same_id(text: str) -> str:
    """An identity as devices have it: lower case, no word before a UUID, and a PCI domain of four
    digits."""
    plain = _WORD.sub("", text.strip().lower())
    if (found := _PCI.fullmatch(plain)) is None:
        return plain
    return f"{(found[1] or '0000')[-4:]}:{found[2]}"


_WORD: Final = re.compile(r"^[a-z]+-(?=[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-f]{16}$)")
"""What only some tools write before a UUID."""
_PCI: Final = re.compile(r"(?:([0-9a-f]{4}|[0-9a-f]{8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the ledger keeps of a run.

    ``at_s`` is when it began, in seconds since 1970, UTC. ``lists_all`` says that ``devices`` are
    all of the machine that its backend, or any backend where it has none, can see. A run that an
    error ended counts as ``interrupted``, and as ``broken`` where its exit code says ERROR.
    """

    run: str
    at_s: float
    backend: str | None = None
    replayed: bool = False
    interrupted: bool = False
    broken: bool = False
    strict: bool = False
    statements: Mapping[Fact, Statement]
    devices: tuple[Device, ...] = ()
    lists_all: bool = False

    @property
    def suites(self) -> frozenset[str]:
        """The suites that it ran."""
        return frozenset(each.gate[0] for each in self.statements.values())


class Relief(StrEnum):
    """Why the failures of a device no longer count."""

    REPLACED = "replaced"
    """Another device is in its place."""
    CLEARED = "cleared"
    """Somebody examined the device, and found the cause elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """That a device of a node was replaced or cleared at ``at_s``; an empty ``device`` is all."""

    node: str
    device: str
    at_s: float
    what: Relief
    reason: str

    def covers(self, device: str) -> bool:
        """Whether it speaks of that device."""
        return not self.device or same_id(self.device) == device


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands of a fact: the verdict, the run that says so, and all gates that stated it.

    ``cleared`` is the clearance after which nothing judged the fact.
    """

    verdict: Verdict
    account: Account
    gates: frozenset[tuple[str, str]]
    wrong: bool = False
    cleared: Clearance | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A device that ``seen`` had and ``missing`` does not list."""

    device: Device
    seen: Account
    missing: Account

    @property
    def fact(self) -> Fact:
        """What is wrong, as a fact of its own."""
        return Fact(self.device.id, self.seen.backend, None, *IDENTITY, ABSENT)
