"""What several runs say together of the same devices: the one place that combines verdicts.

A :class:`Fact` is what one result is about. These rules decide what stands of it:

- The newest run that judged a fact decides. PASS and FAIL judge. A FAIL stays until a run that was
  not interrupted passes the same fact on the same device; no other verdict clears it.
- A value that was silently wrong stays whatever passes later, until a :class:`Clearance` of its
  device: one that computes wrong now and then passes in between.
- Runs are ordered by the instants of their starts. Of runs within ``RESOLUTION_S`` of each other
  nobody can say which is newer: the worse verdict counts.
- A recording is judged alone: it neither replaces nor clears what ran (:func:`lines`).
- A device that a later run over all devices does not list is a failure.

The module reads no file and no clock. ``docs/results.md`` states the rules for users.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.results.actions import Action, action_of
from portagpu.results.advice import severity_of
from portagpu.results.verdicts import Verdict, fold, fold_area

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.results.run import Result, Run

RESOLUTION_S: Final = 1.0
"""``run.started`` has whole seconds."""
IDENTITY: Final = ("bringup", "identity")
"""The suite and the area of a device that is absent."""
ABSENT: Final = "identity/absent"
_WHOLE_MACHINE: Final = frozenset({"bringup", "health"})
"""Suites that look at every device of a machine."""
_DRAWS: Final = "conformance"
"""The suite whose cases draw programs."""
_NUMBER: Final = re.compile(r"(?:^|[\s:])(\d{1,6})$")
_SCRUBBED: Final = re.compile(r"<\w+-\d+>")
_SEED: Final = re.compile(r"\bseed (\d+)")
_GRAVITY: Final = (
    Verdict.SKIP,
    Verdict.UNVERIFIED,
    Verdict.PASS,
    Verdict.INCONCLUSIVE,
    Verdict.ERROR,
    Verdict.FAIL,
).index


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
    """A device as a run describes it; ``id`` is its UUID, else its PCI address, else its place."""

    id: str
    pci: str = ""
    vendor: str = ""
    number: int | None = None
    lasting: bool = False
    """Whether ``id`` names this piece of hardware or its slot, in every run."""

    @property
    def has_uuid(self) -> bool:
        """Whether ``id`` is a UUID."""
        return self.lasting and self.id != self.pci


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
        return not self.device or _same_id(self.device, device)


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


@dataclass(frozen=True, slots=True)
class Balance:
    """What stands of one node."""

    facts: Mapping[Fact, Standing]
    absent: tuple[Absent, ...]
    newest: Account
    several_machines: str = ""
    """Why the runs may be of two machines under one name; empty where nothing says so."""

    @property
    def verdict(self) -> Verdict:
        """The fold of all facts: FAIL where a device is absent, and INCONCLUSIVE at best where the
        newest run did not end by itself or two machines have one name."""
        verdicts = [each.verdict for each in self.facts.values()]
        verdict = fold([*verdicts, *(Verdict.FAIL for _ in self.absent)], strict=self.newest.strict)
        if self.newest.broken and verdict is not Verdict.FAIL:
            return Verdict.ERROR
        unsure = self.newest.interrupted or self.several_machines
        if unsure and verdict in (Verdict.PASS, Verdict.UNVERIFIED):
            return Verdict.INCONCLUSIVE
        return verdict

    def gates(self) -> dict[tuple[str, str], Verdict]:
        """The verdict of each gate (suite, area), from what stands of its facts."""
        found: dict[tuple[str, str], set[Verdict]] = {}
        for each in self.facts.values():
            for gate in each.gates:
                found.setdefault(gate, set()).add(each.verdict)
        return {gate: fold_area(verdicts) for gate, verdicts in found.items()}


def instant(text: str) -> float:
    """Seconds since 1970, UTC, of an RFC 3339 time with its zone."""
    return datetime.fromisoformat(text).timestamp()


def account_of(run: Run) -> Account:
    """What the ledger keeps of ``run``."""
    info = run.info
    devices = tuple(_devices(info.devices, info.backend))
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
        if known is None or _GRAVITY(stated.verdict) > _GRAVITY(known.verdict):
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
        lists_all=bool(devices)
        and not unfinished
        and "--index" not in info.command
        and any(each.suite in _WHOLE_MACHINE for each in run.results)
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


class Owner(NamedTuple):
    """Whose a run is: the node by the record of a fleet run, the host that the run states, and the
    name of its file or folder for a run that states none."""

    node: str
    host: str
    place: str


def owner_of(run: Run, place: str, node: str = "") -> Owner:
    """Whose ``run`` is. In a bundle the host was replaced by a number, which names nobody."""
    host = run.info.host
    return Owner(node, "" if _SCRUBBED.fullmatch(host) else host, place)


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


def balance(accounts: Sequence[Account], clearances: Iterable[Clearance] = ()) -> Balance:
    """What stands of one node after all its runs, whatever their order here.

    Raises ValueError without a run.
    """
    if not accounts:
        raise ValueError("a balance needs at least one run")
    ordered = sorted(accounts, key=lambda each: (each.at_s, each.run))
    reliefs = sorted(clearances, key=lambda each: each.at_s)
    stated: dict[Fact, list[tuple[Account, Statement]]] = {}
    for account in ordered:
        for fact, statement in account.statements.items():
            stated.setdefault(fact, []).append((account, statement))
    facts = {}
    for fact, history in stated.items():
        own = [each for each in reliefs if each.covers(fact.device)]
        standing = _standing(history, own)
        if standing is not None:
            facts[fact] = standing
    absent = tuple(_absent(ordered, reliefs))
    return Balance(facts, absent, ordered[-1], _several_machines(ordered, reliefs))


def _standing(
    history: Sequence[tuple[Account, Statement]], reliefs: Sequence[Clearance]
) -> Standing | None:
    """What stands of one fact, whose statements are in order; None for a replaced device's."""
    if len(history) == 1 and not reliefs:
        account, statement = history[0]
        return Standing(statement.verdict, account, frozenset({statement.gate}), statement.wrong)
    until = {each.what: each for each in reliefs}
    if (replaced := until.get(Relief.REPLACED)) is not None:
        history = [each for each in history if each[0].at_s > replaced.at_s]
    if not history:
        return None
    gates = frozenset(statement.gate for _, statement in history)
    cleared = until.get(Relief.CLEARED)
    forgiven = [
        each
        for each in history
        if cleared is not None and each[1].wrong and each[0].at_s <= cleared.at_s
    ]
    left = [each for each in history if each not in forgiven]
    wrong = [each for each in left if each[1].wrong]
    if wrong:
        return Standing(Verdict.FAIL, wrong[-1][0], gates, wrong=True)
    judged = [each for each in left if _judges(*each)]
    if forgiven and not (judged and judged[-1][0].at_s > forgiven[-1][0].at_s):
        return Standing(Verdict.INCONCLUSIVE, forgiven[-1][0], gates, cleared=cleared)
    if judged and (last := _newest(judged))[1].verdict is Verdict.FAIL:
        return Standing(Verdict.FAIL, last[0], gates)
    said = [each for each in left if each[1].verdict not in (Verdict.SKIP, Verdict.FAIL)]
    account, statement = _newest(said or left)
    return Standing(statement.verdict, account, gates)


def _judges(account: Account, statement: Statement) -> bool:
    """Whether a statement decides: a PASS of a run that was interrupted clears nothing."""
    passed = statement.verdict is Verdict.PASS and not account.interrupted
    return passed or statement.verdict is Verdict.FAIL


def _newest(history: Sequence[tuple[Account, Statement]]) -> tuple[Account, Statement]:
    """The newest statement, or the worst of those within the clock's resolution of it."""
    end = history[-1][0].at_s
    near = [each for each in history if end - each[0].at_s < RESOLUTION_S]
    return max(reversed(near), key=lambda each: _GRAVITY(each[1].verdict))


def _absent(ordered: Sequence[Account], reliefs: Sequence[Clearance]) -> Iterable[Absent]:
    """The devices that the newest run over all devices does not list, and no later run has seen."""
    listings = [each for each in ordered if each.lists_all]
    # of listings in one second nobody can say which is newer
    newest = [each for each in listings if listings[-1].at_s - each.at_s < RESOLUTION_S]
    last_seen = {device.id: (device, each) for each in ordered for device in each.devices}
    for device, seen in last_seen.values():
        if any(each.covers(device.id) and each.at_s >= seen.at_s for each in reliefs):
            continue
        missing = [
            each
            for each in newest
            if each.at_s > seen.at_s - RESOLUTION_S
            and _could_list(each, seen, device)
            and not _lists(each, device)
        ]
        if missing:
            yield Absent(device, seen, missing[-1])


def _could_list(listing: Account, seen: Account, device: Device) -> bool:
    """Whether that listing would have the device, were it there."""
    if not device.id or not (device.lasting or seen.lists_all):
        return False
    if listing.backend is None or listing.backend == seen.backend:
        return device.lasting or listing.backend == seen.backend
    return device.lasting and device.vendor in {each.vendor for each in listing.devices if each.id}


def _lists(listing: Account, device: Device) -> bool:
    """Whether a listing has the device, or names its devices by less than what is known of it."""
    for each in listing.devices:
        # one of them may know the address alone
        known_by_address = device.pci and device.pci == each.pci
        by_uuid = device.has_uuid and each.has_uuid
        if _same_id(each.id, device.id) or (known_by_address and not by_uuid):
            return True
    return device.lasting and any(each.id and not each.lasting for each in listing.devices)


def _several_machines(ordered: Sequence[Account], reliefs: Sequence[Clearance]) -> str:
    """Two runs over all devices that share no UUID are of two machines, unless a clearance says
    that devices were replaced."""
    if any(each.what is Relief.REPLACED for each in reliefs):
        return ""
    before: tuple[Account, set[str]] | None = None
    for account in ordered:
        own = {each.id for each in account.devices if each.has_uuid}
        if not (account.lists_all and own):
            continue
        if before is not None and before[1].isdisjoint(own):
            return f"the runs {before[0].run} and {account.run} have no device in common"
        before = account, own
    return ""


def _devices(entries: Sequence[Mapping[str, Any]], backend: str | None) -> Iterable[Device]:
    for place, entry in enumerate(entries):
        # a CPU cannot be lost, and a slice goes with its device
        if entry.get("kind") == "cpu" or entry.get("vendor") == "cpu" or entry.get("parent"):
            yield Device("", number=place)
            continue
        uuid, pci = (str(entry.get(key) or "").lower() for key in ("uuid", "pci"))
        # some tools write the domain with eight digits
        pci = pci[-12:]
        index = entry.get("index", place if len(entries) > 1 else None)
        named = "" if index is None else f"{backend or ''}:{index}"
        yield Device(
            id=uuid or pci or named,
            pci=pci,
            vendor=str(entry.get("vendor") or ""),
            number=index,
            lasting=bool(uuid or pci),
        )


def _device_id(
    name: str | None, command: Sequence[str], backend: str | None, devices: Sequence[Device]
) -> str:
    """The identity of the device that a result names."""
    lasting = [each for each in devices if each.lasting]
    only = lasting[0] if len(devices) == 1 and lasting else None
    found = _NUMBER.search(name or "")
    if found is None and name not in (None, backend):
        return str(name)
    if found is None and "--index" in command[:-1]:
        name = f"{backend or ''}:{command[command.index('--index') + 1]}"
        found = _NUMBER.search(name)
    number = None if found is None else int(found[1])
    if only is not None and (number is None or only.number in (None, number)):
        return only.id
    if number is None:
        return ""
    return next((each.id for each in lasting if each.number == number), str(name))


def _same_id(one: str, other: str) -> bool:
    return one.lower().removeprefix("gpu-") == other.lower().removeprefix("gpu-")


def _seed(result: Result, command: Sequence[str]) -> str:
    """The seed from which a result's programs were drawn; empty where none were."""
    if (stated := result.extra.get("seed")) is not None and "case" in result.extra:
        return str(stated)
    observed = result.extra.get("observed", ())
    if isinstance(observed, list) and (found := _SEED.search(" ".join(map(str, observed)))):
        return found[1]
    if "case" not in result.extra:
        # the result does not say whether programs were drawn
        if "--seed" in command[:-1]:
            return command[command.index("--seed") + 1]
        stated = next((word for word in command if word.startswith("--seed=")), "")
        return stated.removeprefix("--seed=")
    return ""
