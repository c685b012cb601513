"""What stands of a node after all its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.runs.ledger.accounts import Absent, Account, Fact, Relief, Standing, Statement
from portagpu.runs.results.verdicts import GRAVITY, Verdict, fold, fold_area

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from portagpu.runs.ledger.accounts import Clearance, Device

RESOLUTION_S: Final = 1.0
"""``run.started`` has whole seconds."""
_OF_GATE: Final = frozenset({"left-out", "interrupted", "blocked", "check", "replay"})
"""What a bring-up says of a gate as a whole, and only where the gate did not run as it should."""
_LEFT_OUT: Final = "left-out"
OF_SEVERAL: Final = ("collectives", "parallel")
"""The areas of the conformance suite that need several devices; another case runs on one."""
_History = list[tuple[Account, Statement]]


@dataclass(frozen=True, slots=True)
class Balance:
    """What stands of one node.

    ``unfinished`` is the newest run of its suites that did not end by itself, and ``replaced`` a
    replacement after which nothing ran.
    """

    facts: Mapping[Fact, Standing]
    stands: tuple[tuple[Verdict, frozenset[tuple[str, str]]], ...]
    """The verdict and the gates of each of ``facts``; equal ones of one run may be there once."""
    absent: tuple[Absent, ...]
    newest: Account
    several_machines: str = ""
    """Why the runs may be of two machines under one name; empty where nothing says so."""
    unfinished: Account | None = None
    replaced: Clearance | None = None
    cleared: Clearance | None = None
    """After which nothing judged the first of the facts that it speaks of."""

    @property
    def verdict(self) -> Verdict:
        """The fold of all facts, and FAIL where a device is absent.

        Where a run did not end by itself, two machines have one name, or nothing ran after a
        replacement, it is INCONCLUSIVE at best.
        """
        verdicts = {verdict for verdict, _ in self.stands}
        verdict = fold([*verdicts, *(Verdict.FAIL for _ in self.absent)], strict=self.newest.strict)
        if self.unfinished is not None and self.unfinished.broken and verdict is not Verdict.FAIL:
            return Verdict.ERROR
        unsure = self.unfinished or self.several_machines or self.replaced
        if unsure and verdict in (Verdict.PASS, Verdict.UNVERIFIED):
            return Verdict.INCONCLUSIVE
        return verdict

    def gates(self) -> dict[tuple[str, str], Verdict]:
        """The verdict of each gate (suite, area), from what stands of its facts."""
        found: dict[tuple[str, str], set[Verdict]] = {}
        for verdict, gates in self.stands:
            for gate in gates:
                found.setdefault(gate, set()).add(verdict)
        return {gate: fold_area(verdicts) for gate, verdicts in found.items()}


def balance(accounts: Sequence[Account], clearances: Iterable[Clearance] = ()) -> Balance:
    """What stands of one node after all its runs, whatever their order here.

    Raises ValueError without a run.
    """
    if not accounts:
        raise ValueError("a balance needs at least one run")
    ordered = sorted(accounts, key=lambda each: (each.at_s, each.run))
    reliefs = sorted(clearances, key=lambda each: each.at_s)
    if len(ordered) == 1 and not reliefs:
        return _of_one(ordered[0])
    stated = _by_fact(ordered)
    if len(ordered) > 1:
        _add_passes_of_all(stated, ordered)
        _leave_out_gates(stated)
    facts = {}
    for fact, history in stated.items():
        own = [each for each in reliefs if each.covers(fact.device)]
        standing = _standing(history, own)
        if standing is not None:
            facts[fact] = standing
    return Balance(
        facts,
        tuple((each.verdict, each.gates) for each in facts.values()),
        tuple(_absent(ordered, reliefs)),
        ordered[-1],
        _several_machines(ordered, reliefs),
        _unfinished(ordered),
        _untested(ordered[-1], reliefs),
        next((each.cleared for each in facts.values() if each.cleared is not None), None),
    )


def _of_one(account: Account) -> Balance:
    """What stands of a node with one run: what that says. Its devices are those that it lists."""
    stands = tuple((each.verdict, frozenset({each.gate})) for each in account.stated)
    return Balance(_FactsOfOne(account), stands, (), account, unfinished=_unfinished((account,)))


@dataclass(frozen=True, slots=True)
class _FactsOfOne(Mapping[Fact, Standing]):
    """The facts of one run, each made when it is asked for: a fleet has millions of them."""

    account: Account

    def __getitem__(self, fact: Fact) -> Standing:
        stated = self.account.statements[fact]
        gates = frozenset({stated.gate})
        return Standing(stated.verdict, self.account, gates, stated.wrong)

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.account.statements)

    def __len__(self) -> int:
        return len(self.account.statements)


def _untested(newest: Account, reliefs: Sequence[Clearance]) -> Clearance | None:
    """A replacement after which nothing ran: the newest run still has the old device."""
    devices = {each.id for each in newest.devices} | {each.device for each in newest.statements}
    for relief in reliefs:
        has_it = not relief.device or any(relief.covers(each) for each in devices)
        if relief.what is Relief.REPLACED and relief.at_s > newest.at_s and has_it:
            return relief
    return None


def _by_fact(ordered: Sequence[Account]) -> dict[Fact, _History]:
    """The statements about each fact, in order.

    A run that knows only the address of a device states facts of the one device that was ever seen
    there.
    """
    at: dict[str, set[str]] = {}
    for account in ordered if len(ordered) > 1 else ():
        for device in account.devices:
            if device.has_uuid and device.pci:
                at.setdefault(device.pci, set()).add(device.id)
    alone = {pci: min(ids) for pci, ids in at.items() if len(ids) == 1}
    stated: dict[Fact, _History] = {}
    for account in ordered:
        for fact, statement in account.statements.items():
            if fact.device in alone:
                fact = fact._replace(device=alone[fact.device])
            stated.setdefault(fact, []).append((account, statement))
    return stated


def _add_passes_of_all(stated: dict[Fact, _History], ordered: Sequence[Account]) -> None:
    """Add the PASS of all devices to the failures of one.

    Where a result names a culprit only if it fails, as collectives do, a later PASS names nobody.
    It is about all devices of its run: those that the run describes, and any rank or part. An index
    is that device where the run lists all devices, and has one more than those that were known.
    """
    places = {each.run: place for place, each in enumerate(ordered)}
    # what is added below is of one device, and not of all
    of_all = {fact: tuple(history) for fact, history in stated.items() if not fact.device}
    for fact, history in stated.items():
        failed = [account for account, own in history if own.verdict is Verdict.FAIL]
        if not failed or (fact.suite == "conformance" and fact.area not in OF_SEVERAL):
            continue
        more = [
            (account, statement)
            for account, statement in of_all.get(fact._replace(device=""), ())
            if fact.device
            and statement.verdict is Verdict.PASS
            and (
                fact.device.startswith(("rank ", "node "))
                or fact.device in {each.id for each in account.devices}
            )
        ]
        known = max(len(each.devices) for each in failed)
        index = _index(fact, known)
        for account in ordered if index is not None else ():
            only = len(account.devices) == 1 and index == 0
            device = next(
                (
                    each
                    for each in account.devices
                    if each.number == index or (only and each.number is None)
                ),
                None,
            )
            whole = account.lists_all and len(account.devices) > known
            if device is None or not device.lasting or not whole:
                continue
            found = account.statements.get(fact._replace(device=device.id))
            if found is not None and found.verdict is Verdict.PASS:
                more.append((account, found))
        if more:
            history += more
            history.sort(key=lambda each: places[each[0].run])


def _index(fact: Fact, known: int) -> int | None:
    """The index of the device of a fact where that is all that is known of it, else None.

    Of a run that describes no device it is the first one.
    """
    backend, joint, index = fact.device.rpartition(":")
    if not fact.device:
        return 0 if known == 0 else None
    return int(index) if joint and backend == fact.backend and index.isdecimal() else None


def _leave_out_gates(stated: dict[Fact, _History]) -> None:
    """Take out what runs said of gates as a whole, where another run has results of the gate.

    For a gate that was left out any run will do, else one that is newer.
    """
    results: dict[tuple[str | None, str | None, tuple[str, str]], float] = {}
    for fact, history in stated.items():
        if not _is_of_gate(fact):
            for account, statement in history:
                key = fact.backend, fact.target, statement.gate
                results[key] = max(account.at_s, results.get(key, account.at_s))
    for fact in [each for each in stated if _is_of_gate(each)]:
        left_out = fact.id.endswith(f"/{_LEFT_OUT}")
        kept: _History = []
        for account, statement in stated[fact]:
            newest = results.get((fact.backend, fact.target, statement.gate))
            newer = newest is not None and (left_out or newest >= account.at_s + RESOLUTION_S)
            if not newer or statement.verdict is Verdict.FAIL:
                kept.append((account, statement))
        if kept:
            stated[fact] = kept
        else:
            del stated[fact]


def _is_of_gate(fact: Fact) -> bool:
    return fact.suite == "bringup" and fact.id.rpartition("/")[2] in _OF_GATE


def _unfinished(ordered: Sequence[Account]) -> Account | None:
    """The newest run that did not end by itself, unless a later one of its suites did."""
    for place in range(len(ordered) - 1, -1, -1):
        account = ordered[place]
        if not account.interrupted:
            continue
        later = [each for each in ordered[place + 1 :] if not each.interrupted]
        if not any(account.suites <= each.suites for each in later):
            return account
    return None


def _standing(history: _History, reliefs: Sequence[Clearance]) -> Standing | None:
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
    stated = [each for each in left if each[1].verdict not in (Verdict.SKIP, Verdict.FAIL)]
    account, statement = _newest(stated or left)
    return Standing(statement.verdict, account, gates)


def _judges(account: Account, statement: Statement) -> bool:
    """Whether a statement decides: a PASS of a run that was interrupted clears nothing."""
    passed = statement.verdict is Verdict.PASS and not account.interrupted
    return passed or statement.verdict is Verdict.FAIL


def _newest(history: _History) -> tuple[Account, Statement]:
    """The newest statement, or the worst of those within the clock's resolution of it."""
    end = history[-1][0].at_s
    near = [each for each in history if end - each[0].at_s < RESOLUTION_S]
    return max(reversed(near), key=lambda each: GRAVITY(each[1].verdict))


def _absent(ordered: Sequence[Account], reliefs: Sequence[Clearance]) -> Iterable[Absent]:
    """The devices that no later run has seen, and that the newest run over all devices lacks."""
    last_seen = {
        device.id: (device, each) for each in ordered for device in each.devices if device.is_whole
    }
    lacking: dict[str, list[Absent]] = {}
    for device, seen in last_seen.values():
        if not device.id or not (device.lasting or seen.lists_all):
            continue
        replaced = (each for each in reliefs if each.what is Relief.REPLACED)
        if any(each.covers(device.id) and each.at_s >= seen.at_s for each in replaced):
            continue
        listings = [each for each in ordered if each.lists_all and _could_list(each, seen, device)]
        for listing in listings:
            # of listings in one second nobody can say which is newer
            is_newest = listings[-1].at_s - listing.at_s < RESOLUTION_S
            later = listing.at_s > seen.at_s - RESOLUTION_S
            if is_newest and later and not _lists(listing, device):
                lacking.setdefault(listing.run, []).append(Absent(device, seen, listing))
    found: dict[str, Absent] = {}
    for absent in lacking.values():
        # devices that the run does not name may be as many of those
        unnamed = sum(each.is_whole and not each.lasting for each in absent[0].missing.devices)
        named = [each for each in absent if not each.device.lasting]
        lasting = [each for each in absent if each.device.lasting]
        if len(lasting) > unnamed:
            named += lasting
        found |= {each.device.id: each for each in named}
    return found.values()


def _could_list(listing: Account, seen: Account, device: Device) -> bool:
    """Whether that listing would have the device, were it there."""
    if listing.backend == seen.backend:
        return True
    if not device.lasting:
        return False
    vendors = {each.vendor for each in listing.devices if each.id}
    return listing.backend is None or (bool(device.vendor) and device.vendor in vendors)


def _lists(listing: Account, device: Device) -> bool:
    """Whether a listing has the device, or a slice of it."""
    for each in listing.devices:
        # one of them may know the address alone
        by_address = bool(device.pci) and device.pci == each.pci
        if device.id in (each.id, each.parent) or (
            by_address and not (device.has_uuid and each.has_uuid)
        ):
            return True
    return False


def _several_machines(ordered: Sequence[Account], reliefs: Sequence[Clearance]) -> str:
    """Two runs over all devices of a backend that share no UUID are of two machines.

    A clearance may say that devices were replaced.
    """
    if any(each.what is Relief.REPLACED for each in reliefs):
        return ""
    before: dict[str | None, tuple[Account, set[str]]] = {}
    for account in ordered:
        own = {each.id for each in account.devices if each.has_uuid}
        if not (account.lists_all and own):
            continue
        earlier = before.get(account.backend)
        if earlier is not None and earlier[1].isdisjoint(own):
            return f"the runs {earlier[0].run} and {account.run} have no device in common"
        before[account.backend] = account, own
    return ""
