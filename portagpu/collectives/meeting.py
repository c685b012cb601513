"""Ranks that register in a store before they form a group, and before they leave it.

So who is missing has a name.

A process group that waits for a rank says neither which one nor, on some engines, that it waits
(pytorch issue 194774). Every rank writes down who it is and reads what the others wrote. The first
one that finds a problem writes that down too, and all raise the same.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from portagpu.codec import decode, encode
from portagpu.collectives.stores import POLL_S
from portagpu.errors import CollectiveError, RankLost
from portagpu.text import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from torch._C._distributed_c10d import Store

_BROKEN_S: Final = 0.4
"""How long a rank that could not form the group waits for what the others write of it."""
_READ_S: Final = 0.6
"""How long the holder of the store waits, at the end of the time, until all have read of it."""
_READ_EARLY_S: Final = 3.0
"""How long before that: ranks may still be on their way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What one rank writes down."""

    rank: int
    world_size: int
    host: str
    machine: str
    """Of the boot of a kernel: containers of one machine share it, hosts of one name do not."""
    pid: int
    device: str | None
    """UUID or PCI address of its device; None for one that ranks share, and where unknown."""
    device_name: str = ""
    """As torch calls it, for messages: "cuda:1"."""
    local_rank: int | None = None
    """As its launcher states it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the ranks cannot go on, in one line, and which ranks are lost."""

    message: str
    lost: tuple[int, ...] = ()


def live_run(
    store: Store,
    number: int,
    rank: int,
    timeout_s: float,
    deadline: float,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """The name of the run that rank 0 has begun, in a store that outlives runs.

    torchrun restarts ranks with the store that they had. What dead ranks wrote there stays, but the
    beat of their rank 0 does not change any more. Raises RankLost without a rank 0.
    """
    key = f"portagpu/run/{number}"
    if rank == 0:
        name = uuid.uuid4().hex
        store.set(key, name)
        return name
    seen: dict[str, int] = {}
    while time.monotonic() < deadline:
        if store.check([key]):
            name = str(store.get(key).decode())
            beat = store.add(f"portagpu/{name}/beat", 0)
            if seen.setdefault(name, beat) != beat:
                return name
        pause(2 * POLL_S)
    raise RankLost(
        f"rank 0 did not come within {timeout_s:g} s: look at the output of rank 0", ranks=(0,)
    )


def meet(
    store: Store,
    me: Member,
    timeout_s: float,
    deadline: float,
    *,
    hint: str,
    holds: bool,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Member, ...]:
    """All members in order of rank, when each rank has registered: rank 0 judges.

    Raises, on every rank that waits: RankLost with the ranks that did not come until ``deadline``,
    and CollectiveError where two ranks state different world sizes, one rank or one device. A rank
    that ``holds`` the store then stays until the others have read why. ``pause`` sleeps, and raises
    where nobody waits any more.
    """
    store.set(f"member/{store.add('members', 1)}", json.dumps(encode(me)))
    members: list[Member] = []
    seconds = 1e-3
    while True:
        if store.check(["problem"]):
            raise_together(store, None, me.world_size, deadline, holds=holds)
        if me.rank != 0 and store.check(["roster"]):
            return _roster(store, me)
        late = time.monotonic() > deadline
        if me.rank == 0 or late:
            store.add("beat", 1)
            members += _new_members(store, len(members))
            problem = _disagreement(members)
            if problem is None and me.rank == 0 and len(members) == me.world_size:
                members.sort(key=lambda each: each.rank)
                store.set("roster", json.dumps([encode(each) for each in members]))
                return tuple(members)
            if problem is None and late:
                present = {each.rank for each in members}
                problem = _missing(present, me.world_size, "come", timeout_s, hint)
            if problem is not None:
                raise_together(store, problem, me.world_size, deadline, holds=holds)
        pause(seconds)
        seconds = min(2 * seconds, POLL_S)


def _roster(store: Store, me: Member) -> tuple[Member, ...]:
    """The members as rank 0 states them. Raises CollectiveError where this rank is none of them."""
    texts = json.loads(store.get("roster"))
    roster = tuple(decode(Member, each, "member") for each in texts)
    # who comes after the others have left sees the contradiction alone
    problem = None if me in roster else _disagreement([*roster, me])
    if problem is not None:
        raise CollectiveError(problem.message)
    return roster


def _missing(
    present: Collection[int],
    world_size: int,
    verb: str,
    timeout_s: float,
    hint: str = "",
    more: str = "",
) -> Problem:
    # where all have come, rank 0 came and did not say so
    missing = [rank for rank in range(world_size) if rank not in present] or [0]
    here = ranks_in_words({*present} - {*missing})
    return Problem(
        f"{ranks_in_words(missing)} did not {verb} within {timeout_s:g} s, {here} did: "
        f"{hint or f'look at the output of {ranks_in_words(missing)}'}{more}",
        tuple(missing),
    )


def leave(store: Store, rank: int, world_size: int, timeout_s: float, *, holds: bool) -> bool:
    """Say that ``rank`` leaves; whether all ranks do.

    Raises RankLost, on every rank that waits, with those that do not within ``timeout_s``. Without
    a limit (0) nobody waits, and nobody is lost.
    """
    deadline = time.monotonic() + timeout_s
    keys = {each: f"left/{each}" for each in range(world_size)}
    store.set(keys[rank], "")
    while True:
        late = time.monotonic() > deadline
        everyone = store.check(list(keys.values()))
        if timeout_s == 0:
            return bool(everyone)
        problem = None
        if late and not everyone:
            left = [each for each, key in keys.items() if store.check([key])]
            more = ", or give shutdown() a longer timeout_s"
            if len(left) < world_size:
                problem = _missing(left, world_size, "shut down", timeout_s, more=more)
        # also where all leave: the others may have given up one that was late
        if problem is not None or store.check(["problem"]):
            raise_together(store, problem, world_size, deadline, holds=holds)
        if everyone:
            return True
        time.sleep(POLL_S / 10)


def raise_together(
    store: Store, problem: Problem | None, readers: int, deadline: float, *, holds: bool
) -> NoReturn:
    """Raise the problem that was written down first, or this one where the store ends.

    A rank that ``holds`` the store stays until so many ``readers`` have read it.
    """
    now = time.monotonic()
    until = now + min(max(_READ_S, deadline - now), _READ_EARLY_S)
    try:
        if problem is not None and store.add("problems", 1) == 1:
            store.set("problem", json.dumps(asdict(problem)))
        while not store.check(["problem"]) and time.monotonic() < until:
            time.sleep(POLL_S)
        if store.check(["problem"]):
            problem = decode(Problem, json.loads(store.get("problem")), "problem")
        store.add("read", 1)
        while holds and store.add("read", 0) < readers and time.monotonic() < until:
            time.sleep(POLL_S)
    except RuntimeError:
        if problem is None:
            raise
    problem = problem or Problem("another rank found a problem, and ended before it said which")
    if problem.lost:
        raise RankLost(problem.message, ranks=problem.lost)
    raise CollectiveError(problem.message)


def alarmed(store: Store) -> bool:
    """Whether another rank could not form the group."""
    return bool(store.check(["alarm"]))


def raise_broken(store: Store, me: Member, error: str, *, holds: bool) -> NoReturn:
    """Alarm the others; who then neither says that it broke nor that it joined is lost."""
    store.set("alarm", "")
    store.set(f"broken/{me.rank}", "")
    until = time.monotonic() + _BROKEN_S
    lost = list(range(me.world_size))
    while lost and time.monotonic() < until and not store.check(["problem"]):
        lost = [
            rank
            for rank in lost
            if not store.check([f"broken/{rank}"]) and not store.check([f"joined/{rank}"])
        ]
        time.sleep(POLL_S)
    message = f"the ranks met and could not form a group: {error}"
    if lost:
        message = (
            f"{ranks_in_words(lost)} came, and did not come back from forming the group: {error}"
        )
    problem = Problem(message, tuple(lost))
    raise_together(store, problem, me.world_size, time.monotonic(), holds=holds)


def _new_members(store: Store, known: int) -> list[Member]:
    keys = [f"member/{number}" for number in range(known + 1, store.add("members", 0) + 1)]
    while keys and not store.check(keys):
        keys.pop()
    if not keys:
        return []
    texts: Iterable[bytes]
    extended = store.has_extended_api()  # type: ignore[attr-defined]
    texts = store.multi_get(keys) if extended else map(store.get, keys)
    return [decode(Member, json.loads(text), "member") for text in texts]


def _disagreement(members: Sequence[Member]) -> Problem | None:
    """The first contradiction between what ranks wrote down, naming both sides."""
    of_rank: dict[int, Member] = {}
    of_device: dict[tuple[str, str], Member] = {}
    for each in members:
        first = members[0]
        if each.world_size != first.world_size:
            return Problem(
                f"rank {first.rank} says that there are {first.world_size} ranks, and rank "
                f"{each.rank} says {each.world_size}: give all ranks one world size (WORLD_SIZE)"
            )
        other = of_rank.setdefault(each.rank, each)
        if other is not each:
            return Problem(
                f"two processes have rank {each.rank}: {other.pid} on {other.host} and {each.pid} "
                f"on {each.host}; give each its own (RANK), and each run its own store"
            )
        if each.device is None:
            continue
        other = of_device.setdefault((each.machine, each.device), each)
        if other is not each:
            return Problem(
                f"ranks {other.rank} and {each.rank} have one device, {each.device_name} of "
                f"{each.host}: start no more ranks than devices, and give each its own with "
                "portagpu.backend(), or with portagpu.set_device(local rank) before it"
            )
    return None
