"""Ranks that register in a store before they form a group, and before they leave it.

That gives a missing rank its name.

A process group that waits for a rank says neither which one nor, on some engines, that it waits
(pytorch issue 194774). Every rank writes down who it is and reads what the others wrote. The first
one that finds a problem writes that down too, and all raise the same.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from portagpu.base.documents import decode, encode
from portagpu.base.errors import CollectiveError, RankLost
from portagpu.base.patience import stat_fields
from portagpu.base.text import ranks_in_words
from portagpu.devices.collectives.stores import POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from torch._C._distributed_c10d import Store

_PROC: Final = Path("/proc")
_STATE: Final = 0
_START: Final = 19
"""Field 22 of ``/proc/PID/stat``, in ticks since the boot."""


def own_process(proc: Path = _PROC) -> tuple[str, int]:
    """(pid namespace, start time) of this process. Raises OSError where ``/proc`` has it not."""
    if (proc / "self").readlink().name != str(os.getpid()):
        raise FileNotFoundError(f"{proc} shows the processes of another namespace")
    return str((proc / "self/ns/pid").readlink()), int(stat_fields(proc / "self")[_START])


def is_lost(pid: int, started: int, proc: Path = _PROC) -> bool | None:
    """Whether a process of this pid namespace has ended or is stopped; None if that is not known.

    ``started`` is its start time: a later process may have its number.
    """
    try:
        fields = stat_fields(proc / str(pid))
        return int(fields[_START]) != started or fields[_STATE] in "ZXxTt"
    except (FileNotFoundError, ProcessLookupError):
        # /proc may hide the processes of other users (hidepid)
        return True if not _exists(pid) else None
    except (OSError, ValueError, IndexError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


_log = logging.getLogger("portagpu")

_BROKEN_S: Final = 0.7
"""How long a rank that could not form the group waits for what the others write of it."""
_READ_S: Final = 0.7
"""How long the holder of the store waits, at the end of the time, until all have read of it."""
_LOOK_S: Final = 0.3
"""How long ranks whose time to leave is over wait for what the ranks of other machines see."""
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
    pid_namespace: str = ""
    """As ``/proc`` names it; empty where the process cannot be seen."""
    started: int = 0
    """When the process did, in the kernel's ticks since the boot."""
    farewell: str = ""
    """Its end of the connection on which rank 0 says, before the store ends, how it left."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the ranks cannot go on together, in one line, and which ranks are lost or only slow."""

    message: str
    lost: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()


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
                problem = _missing(present, me.world_size, timeout_s, hint)
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


def _missing(present: Collection[int], world_size: int, timeout_s: float, hint: str) -> Problem:
    # where all have come, rank 0 came and did not say so
    missing = [rank for rank in range(world_size) if rank not in present] or [0]
    here = ranks_in_words({*present} - {*missing})
    return Problem(
        f"{ranks_in_words(missing)} did not come within {timeout_s:g} s, {here} did: "
        f"{hint or f'look at the output of {ranks_in_words(missing)}'}",
        tuple(missing),
    )


def leave(
    store: Store, rank: int, members: Sequence[Member], timeout_s: float, *, holds: bool
) -> bool:
    """Say that ``rank`` leaves; whether all ranks do, so that they can leave together.

    After ``timeout_s`` the ranks that wait look at the processes of the others. Raises, on every
    rank that waits, RankLost with those that have ended or are stopped; without any, all warn of
    those that are only slow. Without a limit (0) nobody waits, looks or warns.
    """
    deadline = time.monotonic() + timeout_s
    keys = {each.rank: f"left/{each.rank}" for each in members}
    store.set(keys[rank], "")
    while True:
        everyone = bool(store.check(list(keys.values())))
        if timeout_s == 0:
            return everyone
        # also where all leave: the others may have gone on without one that was late
        if store.check(["late"]) or (not everyone and time.monotonic() > deadline):
            break
        if everyone:
            return True
        time.sleep(POLL_S / 10)
    store.set("late", "")
    problem, left = _who_does_not_leave(store, rank, members, timeout_s)
    return go_on(rank, agree(store, problem, len(left), time.monotonic(), holds=holds))


def go_on(rank: int, problem: Problem) -> bool:
    """Whether all ranks leave together, as they agreed. Raises RankLost; warns of slow ranks."""
    if problem.lost:
        raise RankLost(problem.message, ranks=problem.lost)
    if problem.slow and rank not in problem.slow:
        _log.warning("%s", problem.message)
    return not problem.slow


def slow(ranks: Collection[int], timeout_s: float) -> Problem:
    """That these ranks do not leave, and nobody knows that they are lost."""
    them = "it" if len(ranks) == 1 else "them"
    return Problem(
        f"{ranks_in_words(ranks)} did not shut down within {timeout_s:g} s and may still be at "
        f"work; going on without {them}",
        slow=tuple(ranks),
    )


def _who_does_not_leave(
    store: Store, rank: int, members: Sequence[Member], timeout_s: float
) -> tuple[Problem | None, list[int]]:
    """What all ranks that wait find together, unless they have agreed before; and who has left."""
    until = time.monotonic() + _LOOK_S
    while True:
        # before the store is asked: a rank says that it leaves, and ends after that
        seen = {each.rank: judged(members[rank], each) for each in members}
        left = [each for each in seen if store.check([f"left/{each}"])]
        missing = [each for each in seen if each not in left]
        for each in missing:
            if seen[each]:
                store.set(f"lost/{each}", "")
        if store.check(["problem"]):
            return None, left
        known = all(seen[each] is not None for each in missing)
        if known or time.monotonic() > until:
            break
        time.sleep(POLL_S)
    lost = [each for each in missing if store.check([f"lost/{each}"])]
    if lost:
        words = ranks_in_words(lost)
        what = "it has ended or is" if len(lost) == 1 else "they have ended or are"
        message = (
            f"{words} did not shut down within {timeout_s:g} s, {ranks_in_words(left)} did: {what} "
            f"stopped; look at the output of {words}"
        )
        return Problem(message, tuple(lost)), left
    return (slow(missing, timeout_s) if missing else Problem("")), left


def judged(me: Member, other: Member) -> bool | None:
    """Whether the process of another member has ended or is stopped; None where I cannot see it."""
    here = (me.machine, me.pid_namespace)
    if not me.pid_namespace or (other.machine, other.pid_namespace) != here:
        return None
    return is_lost(other.pid, other.started)


def raise_together(
    store: Store, problem: Problem | None, ranks: int, deadline: float, *, holds: bool
) -> NoReturn:
    """Raise what the ``ranks`` that are not lost agree on, see :func:`agree`."""
    readers = ranks - len(problem.lost) if problem is not None else ranks
    problem = agree(store, problem, readers, deadline, holds=holds)
    if problem.lost:
        raise RankLost(problem.message, ranks=problem.lost)
    raise CollectiveError(problem.message)


def agree(
    store: Store, problem: Problem | None, readers: int, deadline: float, *, holds: bool
) -> Problem:
    """The problem that was written down first, or this one where the store ends.

    A rank that ``holds`` the store stays until that many ``readers`` have read it. Raises
    RuntimeError where the store ends before there is one, or while this one is that a rank is slow.
    """
    now = time.monotonic()
    until = now + min(max(_READ_S, deadline - now), _READ_EARLY_S)
    agreed = None
    try:
        if problem is not None and store.add("problems", 1) == 1:
            store.set("problem", json.dumps(asdict(problem)))
        while not store.check(["problem"]) and time.monotonic() < until:
            time.sleep(POLL_S)
        if store.check(["problem"]):
            agreed = decode(Problem, json.loads(store.get("problem")), "problem")
        store.add("read", 1)
        while holds and store.add("read", 0) < readers and time.monotonic() < until:
            time.sleep(POLL_S)
    except RuntimeError:
        # who ended the store may be the one that is slow
        if agreed is None and (problem is None or problem.slow):
            raise
    ended = "another rank found a problem, and ended before it said which"
    return agreed or problem or Problem(ended)


def alarmed(store: Store) -> bool:
    """Whether another rank could not form the group."""
    return bool(store.check(["alarm"]))


def raise_broken(
    store: Store, me: Member, members: Sequence[Member], error: str, *, holds: bool
) -> NoReturn:
    """Alarm the others; who then neither says that it broke nor that it joined is lost.

    Of these, one whose process is at work is only late where another one's has ended or is stopped.
    """
    store.set("alarm", "")
    store.set(f"broken/{me.rank}", "")
    until = time.monotonic() + _BROKEN_S
    while True:
        silent = [
            each
            for each in members
            if not store.check([f"broken/{each.rank}"]) and not store.check([f"joined/{each.rank}"])
        ]
        ended = [each for each in silent if judged(me, each)]
        if silent == ended or time.monotonic() > until or store.check(["problem"]):
            break
        time.sleep(POLL_S)
    lost = [each.rank for each in ended or silent]
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
