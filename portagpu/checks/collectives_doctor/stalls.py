"""Which rank stopped, in which collective, and what it waits for: from the ranks' dumps.

The collectives of a group have one number on every rank. So the first number at which ranks differ
is where they went apart; later differences follow from it and are not reported.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from portagpu.base.text import MAX_NAMED, ranks_in_words
from portagpu.base.units import count
from portagpu.checks.collectives_doctor.findings import Finding
from portagpu.checks.collectives_doctor.flight_recorder import contradiction, elements
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from portagpu.checks.collectives_doctor.flight_recorder import Dump, Entry

_DEFAULT: Final = "default_pg"
_ANY_SIZES: Final = frozenset(
    {"all_to_all", "all_gather_v", "reduce_scatter_v", "all_to_all_v_single"}
)
_ONLY_ROOT_GIVES: Final = frozenset({"scatter"})
_ONLY_ROOT_GETS: Final = frozenset({"gather"})
_ROOTED: Final = frozenset(
    {"broadcast", "reduce", "gather", "scatter", "_broadcast_oop", "_reduce_oop"}
)
_LOCAL: Final = frozenset({"send", "recv", *_ROOTED})
"""Operations that one rank may end while another has not called them."""

_MOMENT: Final = (
    "the dumps were made at different moments of a job that goes on, or the ranks gave different "
    "roots, which the recorder does not keep: dump again after some time"
)

Calls = list["Entry"]


@dataclass(slots=True)
class _Group:
    """A process group: the calls of each rank by number. ``stated`` says that a dump lists it."""

    name: str
    description: str
    members: frozenset[int]
    stated: bool
    calls: dict[int, dict[int, Calls]] = field(default_factory=dict)
    p2p: dict[int, list[Entry]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return f"group {self.name}" + (
            f" ({self.description})" if self.description not in ("", "undefined") else ""
        )


@dataclass(frozen=True, slots=True)
class _Waits:
    """Who waits for whom: a rank in a collective waits for the members that did not call it."""

    whom: dict[int, set[int]] = field(default_factory=dict)
    differing: set[int] = field(default_factory=set)
    """Ranks in a collective in which the calls differ: they wait for nobody."""

    def add(self, called: Mapping[int, Calls], absent: Iterable[int]) -> None:
        for rank, calls in called.items():
            if calls[-1].state != "completed":
                self.whom.setdefault(rank, set()).update(absent)

    def victims(self) -> set[int]:
        """The ranks that wait, through others, for a rank that waits for nobody."""
        waiters: dict[int, set[int]] = {}
        for rank, awaited in self.whom.items():
            for each in awaited:
                waiters.setdefault(each, set()).add(rank)
        found = {each for each in waiters if not self.whom.get(each)} | self.differing
        todo = list(found)
        while todo:
            fresh = waiters.get(todo.pop(), set()) - found
            found |= fresh
            todo += fresh
        return {rank for rank in found if self.whom.get(rank) or rank in self.differing}

    def circle(self, rank: int) -> str:
        """ "; they wait for each other: rank 0 for rank 1, ..." of a rank that waits for itself."""
        before: dict[int, int] = {}
        todo = [rank]
        while todo:
            here = todo.pop(0)
            for each in sorted(self.whom.get(here, ())):
                if each == rank:
                    path = [rank, here]
                    while path[-1] != rank:
                        path.append(before[path[-1]])
                    pairs = pairwise(reversed(path))
                    shown = ", ".join(f"rank {one} for rank {next_}" for one, next_ in pairs)
                    return f"; they wait for each other: {shown}"
                if each not in before:
                    before[each] = here
                    todo.append(each)
        return ""


def judge_dumps(dumps: Sequence[Dump]) -> list[Finding]:
    """The findings of all ranks' dumps of one run, which are at least one."""
    ranks = {dump.rank: dump for dump in dumps}
    groups = _groups(ranks)
    entries = sum(len(dump.entries) for dump in dumps)
    evidence = f"{ranks_in_words(ranks)}: {count(entries, 'call')} in {count(len(groups), 'group')}"
    found = [Finding(id="dumps", evidence=evidence), *_versions(ranks)]
    found += _missing(ranks, groups)
    waits = _Waits()
    problems = [each for group in groups for each in _judge_group(group, ranks, waits)]
    elsewhere = {each.device for each in problems if each.id == "other-group"}
    problems = [each for each in problems if each.id != "alone" or each.device not in elsewhere]
    victims = {f"rank {rank}" for rank in waits.victims()}
    for each in sorted(problems, key=lambda each: each.id == "other-group"):
        if each.id != "other-group":
            found.append(each)
        elif each.device not in victims:
            circle = waits.circle(int((each.device or "").removeprefix("rank ")))
            found.append(replace(each, evidence=each.evidence + circle))
    return found


def _groups(ranks: Mapping[int, Dump]) -> list[_Group]:
    found: dict[tuple[str, frozenset[int] | None], _Group] = {}
    everyone = frozenset(ranks).union(*(dump.known_ranks for dump in ranks.values()))
    for rank, dump in ranks.items():
        for entry in dump.entries:
            stated = dump.groups.get(entry.group)
            key = (entry.group, stated)
            if (group := found.get(key)) is None:
                is_default = entry.description == _DEFAULT
                members = stated or (everyone if is_default else frozenset())
                group = _Group(entry.group, entry.description, members, stated is not None)
                found[key] = group
            if rank not in group.members:
                group.members |= {rank}
            if entry.is_p2p:
                group.p2p.setdefault(rank, []).append(entry)
            else:
                by_number = group.calls.setdefault(rank, {})
                by_number.setdefault(entry.sequence, []).append(entry)
    return list(found.values())


def _versions(ranks: Mapping[int, Dump]) -> Iterator[Finding]:
    stated = {rank: dump.library_version for rank, dump in ranks.items() if dump.library_version}
    if len(set(stated.values())) > 1:
        most = Counter(stated.values()).most_common(1)[0][0]
        for rank, version in stated.items():
            if version != most:
                evidence = f"rank {rank} has version {version}, and most ranks have {most}"
                yield Finding(id="library-version", evidence=evidence, device=f"rank {rank}")


def _missing(ranks: Mapping[int, Dump], groups: Sequence[_Group]) -> Iterator[Finding]:
    known = set(range(max(ranks) + 1)) if max(ranks) < 1 << 20 else set(ranks)
    known = known.union(*(group.members for group in groups))
    known = known.union(*(dump.known_ranks for dump in ranks.values()))
    if absent := sorted(known - set(ranks)):
        named = ranks_in_words(absent)
        yield Finding(
            id="missing-dump",
            evidence=f"no dump of {named}, of {len(known)} ranks that are known",
            device=named if len(absent) == 1 else None,
        )


def _judge_group(group: _Group, ranks: Mapping[int, Dump], waits: _Waits) -> Iterator[Finding]:
    yield from _peers(group, ranks)
    present = [rank for rank in sorted(group.members) if rank in ranks]
    # a recorder that is full has lost the oldest: only what all still have can be compared
    first = max(
        (min(group.calls[rank]) for rank in present
         if rank in group.calls and not ranks[rank].is_whole),
        default=-1,
    )  # fmt: skip
    numbers = sorted({n for calls in group.calls.values() for n in calls if n >= first})
    for number in numbers:
        called = {rank: group.calls[rank][number] for rank in present
                  if number in group.calls.get(rank, {})}  # fmt: skip
        if differing := list(_differences(group, number, called, present)):
            waits.differing.update(called)
            yield from differing
            return
        absent = [
            rank
            for rank in present
            if rank not in called and (rank in group.calls or ranks[rank].is_whole)
        ]
        if absent and _is_waited_for(called):
            waits.add(called, absent)
            yield from _behind(group, number, called, absent, ranks)
            return
        if away := group.members - set(ranks):
            waits.add({rank: c for rank, c in called.items() if c[-1].is_open}, away)
    others = [] if group.stated else sorted(set(ranks) - group.members)
    yield from _unfinished(group, numbers, present, others)


def _is_waited_for(called: Mapping[int, Calls]) -> bool:
    """Whether a caller cannot have got past the collective while another rank has not called it.

    Gloo retires what ran out of time like what it finished.
    """
    last = [calls[-1] for calls in called.values()]
    return any(
        entry.is_open or (entry.operation not in _LOCAL and entry.state != "completed")
        for entry in last
    )


def _behind(
    group: _Group,
    number: int,
    called: Mapping[int, Calls],
    absent: Sequence[int],
    ranks: Mapping[int, Dump],
) -> Iterator[Finding]:
    waiting = next(iter(called.values()))[0]
    what = (
        f"{waiting.words}, number {number} of {group.words}, in which {ranks_in_words(called)} "
        f"wait{'s' if len(called) == 1 else ''}{_at(waiting)}"
    )
    for rank in absent:
        entries = ranks[rank].entries
        elsewhere = next(
            (e for e in entries if e.is_open and (e.group != group.name or e.is_p2p)), None
        )
        if elsewhere is not None:
            yield Finding(
                id="other-group",
                evidence=(
                    f"rank {rank} did not call {what}: it waits in {elsewhere.words}, number "
                    f"{elsewhere.sequence} of group {elsewhere.group}{_at(elsewhere)}"
                ),
                device=f"rank {rank}",
            )
            continue
        last = "it made no call"
        if entries:
            call = entries[-1]
            last = f"its last call was {call.words}, number {call.sequence} of group {call.group}"
            last += _at(call)
        later = [n for n in group.calls.get(rank, {}) if n > number]
        skipped = f"; it went on with number {min(later)}" if later else ""
        yield Finding(
            id="behind",
            evidence=f"rank {rank} did not call {what}; {last}{skipped}",
            device=f"rank {rank}",
        )


def _differences(
    group: _Group, number: int, called: Mapping[int, Calls], present: Sequence[int]
) -> Iterator[Finding]:
    longest = max(called.values(), key=len)
    begun = {rank: calls for rank, calls in called.items() if len(calls) < len(longest)}
    if begun and all(_signatures(c) == _signatures(longest[: len(c)]) for c in called.values()):
        for rank, calls in begun.items():
            following = longest[len(calls)]
            evidence = (
                f"rank {rank} made {len(calls)} of the {len(longest)} calls that are number "
                f"{number} of {group.words}, and did not call {following.words}{_at(following)}"
            )
            yield Finding(id="behind", evidence=evidence, device=f"rank {rank}")
        return
    for name, aspect in _ASPECTS:
        seen = {rank: tuple(aspect(entry) for entry in calls) for rank, calls in called.items()}
        if len(set(seen.values())) > 1:
            yield from _minority(group, number, called, seen, name)
            return
    if group.stated or group.description == _DEFAULT:
        whole = len(called) == len(group.members)
        for rank, calls in called.items():
            if problem := contradiction(calls[0], len(group.members), exact=group.stated):
                evidence = f"rank {rank} called {calls[0].words}, number {number} of {group.words}"
                yield Finding(
                    id=problem[0],
                    evidence=f"{evidence}, {problem[1]}{_at(calls[0])}",
                    device=f"rank {rank}",
                )
                return
        entries = [calls[0] for calls in called.values()]
        if whole and entries[0].operation == "all_to_all":
            given = sum(elements(entry.inputs) for entry in entries)
            taken = sum(elements(entry.outputs) for entry in entries)
            if given != taken:
                yield Finding(
                    id="shape",
                    evidence=(
                        f"in all_to_all, number {number} of {group.words}, "
                        f"{ranks_in_words(present)} send {given} elements together and receive "
                        f"{taken}"
                    ),
                )


def _minority(
    group: _Group,
    number: int,
    called: Mapping[int, Calls],
    seen: Mapping[int, object],
    name: str,
) -> Iterator[Finding]:
    """A finding for each of the fewer ranks that differ from the most."""
    usual = Counter(seen.values()).most_common(1)[0][0]
    agreeing = [rank for rank, each in seen.items() if each == usual]
    for rank in [rank for rank, each in seen.items() if each != usual][:MAX_NAMED]:
        mine = _first_difference(called[rank], called[agreeing[0]])
        theirs = _first_difference(called[agreeing[0]], called[rank])
        evidence = (
            f"rank {rank} called {mine.words}{_at(mine)} as number {number} of {group.words}, and "
            f"{ranks_in_words(agreeing)} called {theirs.words}{_at(theirs)}"
        )
        shift = _shift(group, number, rank, agreeing[0])
        tie = 2 * len(agreeing) == len(called)
        yield Finding(
            id=name,
            evidence=f"{evidence}; {shift}" if shift else evidence,
            device=f"rank {rank}",
            cause="which of the two is wrong is unknown: as many ranks did the other"
            if tie and not shift
            else "",
        )


def _first_difference(mine: Calls, theirs: Calls) -> Entry:
    pairs = zip(mine, theirs, strict=False)
    return next((a for a, b in pairs if _signature(a) != _signature(b)), mine[-1])


def _at(entry: Entry) -> str:
    return f" in {entry.place}" if entry.place else ""


def _shift(group: _Group, number: int, rank: int, other: int) -> str:
    """Whether the rank's call is the others' next one, or theirs is its next one."""
    mine, theirs = group.calls[rank], group.calls[other]
    here, there = _signatures(mine.get(number)), _signatures(theirs.get(number))
    if here == _signatures(theirs.get(number + 1)):
        return f"the others make that call as number {number + 1}: rank {rank} left out a call"
    if there == _signatures(mine.get(number + 1)):
        return f"rank {rank} makes that call as number {number + 1}: it made one call too many"
    return ""


def _signatures(calls: Calls | None) -> tuple[object, ...] | None:
    return None if calls is None else tuple(_signature(each) for each in calls)


def _signature(entry: Entry) -> tuple[object, ...]:
    return tuple(aspect(entry) for _, aspect in _ASPECTS)


def _operation(entry: Entry) -> object:
    return entry.operation


def _shapes(entry: Entry) -> object:
    """What has to be equal on every rank of the shapes."""
    if entry.operation in _ANY_SIZES:
        return None
    inputs = None if entry.operation in _ONLY_ROOT_GIVES else entry.inputs
    return inputs, None if entry.operation in _ONLY_ROOT_GETS else entry.outputs


def _dtypes(entry: Entry) -> object:
    """What has to be equal on every rank of the dtypes."""
    given = None if entry.operation in _ONLY_ROOT_GIVES else frozenset(entry.input_types)
    taken = None if entry.operation in _ONLY_ROOT_GETS else frozenset(entry.output_types)
    return given, taken


_ASPECTS: Final = (("operation", _operation), ("shape", _shapes), ("dtype", _dtypes))


def _unfinished(
    group: _Group, numbers: Sequence[int], present: Sequence[int], others: Sequence[int]
) -> Iterator[Finding]:
    """The first collective that all ranks called with the same arguments and not all finished.

    ``others`` are the ranks that may be members too: they called nothing in the group.
    """
    for number in numbers:
        called = {rank: group.calls[rank][number][-1] for rank in present
                  if number in group.calls.get(rank, {})}  # fmt: skip
        undone = [rank for rank, entry in called.items() if entry.is_open or entry.is_given_up]
        if not undone:
            continue
        entry = called[undone[0]]
        what = f"{entry.words}, number {number} of {group.words}"
        done = [rank for rank in called if rank not in undone]
        given_up = [rank for rank in undone if called[rank].is_given_up]
        unsure = entry.has_no_events and all(called[r].state != "completed" for r in done)
        if done and unsure and entry.operation not in _LOCAL:
            # it is retired later and from another thread: nobody finishes it before all called it
            yield Finding(
                id="in-flight",
                evidence=(
                    f"{ranks_in_words(called)} are in {what}{_at(entry)}: {ranks_in_words(done)} "
                    f"finished it, which takes all of them, and {ranks_in_words(undone)} not yet"
                ),
            )
        elif done:
            evidence = f"{ranks_in_words(undone)} did not finish {what}{_at(entry)}, and "
            evidence += f"{ranks_in_words(done)} did"
            yield Finding(
                id="partial",
                evidence=evidence + _at(called[done[0]]),
                device=ranks_in_words(undone) if len(undone) == 1 else None,
                verdict=Verdict.INCONCLUSIVE if unsure else None,
                cause=_MOMENT if unsure else "",
            )
        elif given_up:
            limit = entry.timeout_ms
            after = f" after {limit / 1000:g} s" if limit else ""
            evidence = f"{what} ran out of time{after} on {ranks_in_words(given_up)}{_at(entry)}"
            yield Finding(id="timed-out", evidence=evidence)
        elif not group.stated and len(called) == 1:
            evidence = (
                f"{ranks_in_words(undone)} waits in {what}{_at(entry)}, and no other rank called "
                "anything in that group, and no dump states its members"
            )
            yield Finding(id="alone", evidence=evidence, device=ranks_in_words(undone))
        elif others:
            evidence = (
                f"{ranks_in_words(undone)} are in {what}{_at(entry)}, and {ranks_in_words(others)} "
                "called nothing in that group, and no dump states its members"
            )
            yield Finding(id="members-unknown", evidence=evidence)
        else:
            verb = "is" if len(undone) == 1 else "are"
            evidence = f"{ranks_in_words(undone)} {verb} in {what}{_at(entry)}"
            if away := group.members - set(present):
                member = "a member" if len(away) == 1 else "members"
                evidence += f"; no dump of {ranks_in_words(away)}, {member} too"
            yield Finding(id="in-flight", evidence=evidence)
        return


def _peers(group: _Group, ranks: Mapping[int, Dump]) -> Iterator[Finding]:
    """Sends and receives of two ranks, the first of one with the first of the other."""
    members = sorted(group.members)
    sends: dict[tuple[int, int], list[Entry]] = {}
    receives: dict[tuple[int, int], list[Entry]] = {}
    for entries in group.p2p.values():
        for entry in entries:
            ends = (entry.sender, entry.receiver)
            if None in ends or max(ends[0] or 0, ends[1] or 0) >= len(members):
                continue
            pair = (members[ends[0] or 0], members[ends[1] or 0])
            side = sends if entry.operation == "send" else receives
            side.setdefault(pair, []).append(entry)
    for pair in sorted({*sends, *receives}):
        if all(rank in ranks and ranks[rank].is_whole for rank in pair):
            yield from _judge_pair(group, pair, sends.get(pair, []), receives.get(pair, []))


def _judge_pair(
    group: _Group, pair: tuple[int, int], sent: Sequence[Entry], taken: Sequence[Entry]
) -> Iterator[Finding]:
    sender, receiver = pair
    both = zip(sent, taken, strict=False)
    for number, (send, receive) in enumerate(both, 1):
        if (send.inputs, send.input_types) != (receive.outputs, receive.output_types):
            yield Finding(
                id="peer",
                evidence=(
                    f"send {number} of rank {sender} to rank {receiver} in {group.words} is "
                    f"{send.words}{_at(send)}, and the receive is {receive.words}{_at(receive)}"
                ),
                device=f"rank {receiver}",
            )
            return
    rest = sent[len(taken) :] or taken[len(sent) :]
    if not rest or not any(entry.is_open for entry in rest):
        return
    waits, blamed, verb = (
        (sender, receiver, "receives") if len(sent) > len(taken) else (receiver, sender, "sends")
    )
    count = min(len(sent), len(taken))
    yield Finding(
        id="peer",
        evidence=(
            f"rank {waits} waits in {rest[0].words} of {group.words}{_at(rest[0])}, and rank "
            f"{blamed} {verb} {count} of {max(len(sent), len(taken))}"
        ),
        device=f"rank {blamed}",
    )
