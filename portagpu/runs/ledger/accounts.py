"""A run as the ledger keeps it: what it states of which device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.runs.results.advice import Action, action_of, severity_of
from portagpu.runs.results.verdicts import GRAVITY, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from portagpu.runs.results.run import Result, Run

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


@dataclass(slots=True)
class LateStatements(Mapping[Fact, Statement]):
    """What a run states of its facts, made when a fact is asked for.

    ``stated`` are its statements without the facts, each once, in their order.
    """

    stated: tuple[Statement, ...]
    load: Callable[[], dict[Fact, Statement]]
    _loaded: dict[Fact, Statement] | None = None

    @property
    def _facts(self) -> dict[Fact, Statement]:
        if self._loaded is None:
            self._loaded = self.load()
        return self._loaded

    def __getitem__(self, fact: Fact) -> Statement:
        return self._facts[fact]

    def __iter__(self) -> Iterator[Fact]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __eq__(self, other: object) -> bool:
        return self._facts == (other._facts if isinstance(other, LateStatements) else other)

    __hash__ = None  # type: ignore[assignment]


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
    def stated(self) -> Iterable[Statement]:
        """Each statement once, in the order of the facts; equal ones may be there several times."""
        own = self.statements
        if isinstance(own, LateStatements):
            return own.stated
        return {id(each): each for each in own.values()}.values()

    @property
    def suites(self) -> frozenset[str]:
        """The suites that it ran."""
        return frozenset(each.gate[0] for each in self.stated)


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


_WHOLE_MACHINE: Final = frozenset({"bringup", "health"})
"""Suites that look at every device of a machine."""
_DRAWS: Final = "conformance"
"""The suite whose cases draw programs."""
COUNT: Final = "identity/count"
_PLACE: Final = re.compile(r"(?:rank |\w+ device |[a-z]\w*:)(\d{1,6})")
"""The names of devices by their index: "cuda:1", "cuda device 1", "rank 1"."""
_SEED: Final = re.compile(r"\bseed (\d+)")


def instant(text: str) -> float:
    """Seconds since 1970, UTC, of an RFC 3339 time with its zone."""
    return datetime.fromisoformat(text).timestamp()


def account_of(run: Run) -> Account:
    """What the ledger keeps of ``run``."""
    info = run.info
    devices = tuple(devices_of(info.devices, info.backend))
    statements: dict[Fact, Statement] = {}
    known_devices: dict[str | None, str] = {}
    made: dict[Statement, Statement] = {}
    for result in run.results:
        fact = fact_of(result, run, devices, known_devices)
        wrong = result.verdict is Verdict.FAIL and wrong_value(result, fact.seed)
        stated = Statement(result.verdict, (result.suite, result.area), wrong)
        # equal ones are one object, which travels once between processes
        stated = made.setdefault(stated, stated)
        known = statements.get(fact)
        if known is None or GRAVITY(stated.verdict) > GRAVITY(known.verdict):
            statements[fact] = stated
    unfinished = info.interrupted or info.error is not None
    masked = {each.verdict for each in run.results if each.id == "environment/visible"}
    return Account(
        run=info.id,
        at_s=instant(info.started),
        backend=info.backend,
        replayed=bool(info.replay),
        interrupted=unfinished,
        broken=unfinished and run.verdict is Verdict.ERROR,
        strict=info.strict,
        statements=statements,
        devices=devices,
        lists_all=not unfinished
        and _option(info.command, "--index") is None
        and any(each.suite in _WHOLE_MACHINE for each in run.results)
        # a run that counted devices and lists none has lost all of them
        and (bool(devices) or any(each.id == COUNT for each in run.results))
        and masked <= {Verdict.PASS},
    )


def fact_of(
    result: Result, run: Run, devices: Sequence[Device], known: dict[str | None, str] | None = None
) -> Fact:
    """What ``result`` of ``run``, which describes ``devices``, is about.

    ``known`` keeps the identities of the devices that the results of the run name.
    """
    info = run.info
    known = {} if known is None else known
    device = known.get(result.device)
    if device is None:
        device = _device_id(result.device, info.command, info.backend, devices)
        known[result.device] = device
    suite, area = result.origin
    seed = _seed(result, info.command) if suite == _DRAWS else ""
    return Fact(device, info.backend, info.target, suite, area, result.id, seed)


def wrong_value(result: Result, seed: str = "") -> bool:
    """Whether a failure is a value that was wrong without an error.

    Those are the checks of severity "wrong" that take the device out of use, and drawn programs.
    """
    if result.verdict is not Verdict.FAIL or severity_of(result).id != "wrong":
        return False
    return bool(seed) or action_of(result) >= Action.ISOLATE


def devices_of(entries: Sequence[Mapping[str, Any]], backend: str | None) -> Iterable[Device]:
    """The devices that objects of ``info --json`` describe."""
    for place, entry in enumerate(entries):
        parent = same_id(str(entry.get("parent") or ""))
        is_whole = not parent and "cpu" not in (entry.get("kind"), entry.get("vendor"))
        uuid, pci = (same_id(str(entry.get(key) or "")) for key in ("uuid", "pci"))
        index = entry.get("index", place if len(entries) > 1 else None)
        lasting = is_whole and bool(uuid or pci)
        named = f"{backend or ''}:{index}" if is_whole and index is not None else ""
        yield Device(
            id=(uuid or pci) if lasting else named,
            pci=pci,
            vendor=str(entry.get("vendor") or ""),
            number=index,
            lasting=lasting,
            parent=parent,
            is_whole=is_whole,
        )


def _device_id(
    name: str | None, command: Sequence[str], backend: str | None, devices: Sequence[Device]
) -> str:
    """The identity of the device that a result names; empty for the whole node."""
    lasting = [each for each in devices if each.lasting]
    asked = _option(command, "--index")
    if name is None and asked is not None:
        name = f"{backend or ''}:{asked}"
    found = _PLACE.fullmatch(name or "")
    number = None if found is None else int(found[1])
    only = lasting[0] if len(devices) == 1 and lasting else None
    unnamed = name in (None, backend)
    if only is not None and (unnamed or (number is not None and only.number in (None, number))):
        return only.id
    if unnamed or (len(devices) < 2 and not lasting and number == 0):
        # one device whatever it is called; 0 is the default
        return ""
    by_name = same_id(str(name))
    for each in lasting:
        if each.number == number is not None or by_name in (each.id, each.pci):
            return each.id
    is_index = number is not None and backend is not None and not by_name.startswith("rank")
    return f"{backend}:{number}" if is_index else by_name


def _option(command: Sequence[str], name: str) -> str | None:
    """The value of an option in a command, in either of its forms."""
    for place, word in enumerate(command):
        if word == name and place + 1 < len(command):
            return command[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _seed(result: Result, command: Sequence[str]) -> str:
    """The seed from which a result's programs were drawn; empty where none were."""
    if (stated := result.extra.get("seed")) is not None and "case" in result.extra:
        return str(stated)
    observed = result.extra.get("observed", ())
    if isinstance(observed, list) and (found := _SEED.search(" ".join(map(str, observed)))):
        return found[1]
    # a result without its case does not say whether programs were drawn
    return "" if "case" in result.extra else _option(command, "--seed") or ""


_SCRUBBED: Final = re.compile(r"<\w+-\d+>")


class Owner(NamedTuple):
    """Whose a run is: the node by the record of a fleet run, the host that the run states, and the
    name of its file or folder for a run that states none."""

    node: str
    host: str
    place: str


def owner_of(run: Run, place: str, node: str = "") -> Owner:
    """Whose ``run`` is. In a bundle the host was replaced by a number, which names nobody."""
    return Owner(node, host_of(run), place)


def host_of(run: Run) -> str:
    """The host that a run states; empty where it names nobody."""
    host = run.info.host
    return "" if _SCRUBBED.fullmatch(host) else host


@dataclass(frozen=True, slots=True)
class Line:
    """One row of what is known: a node with all that ran there, or one recording.

    ``entries`` are positions in what :func:`lines` was given.
    """

    name: str
    entries: list[int] = field(default_factory=list)


def lines(owners: Sequence[tuple[Owner, Account]]) -> list[Line]:
    """Runs by node: by its record, else by host. A run of no known host is a line of its own, and
    so is each recording, whose name says that it is one where it has the name of a node."""
    found: dict[str, Line] = {}
    alone: list[tuple[str, int]] = []
    for index, (owner, account) in enumerate(owners):
        name = owner.node or owner.host
        if name and not account.replayed:
            found.setdefault(name, Line(name)).entries.append(index)
        else:
            alone.append((f"{name} (recording)" if name else owner.place, index))
    for name, index in alone:
        shown, number = name, 1
        while shown in found:
            number += 1
            shown = f"{name} ({number})"
        found[shown] = Line(shown, [index])
    return list(found.values())
