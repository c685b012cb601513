"""The area of collectives: how rank 0 and the others run its programs, and what is judged.

Rank 0 sends every program to the others over sockets of one machine, next to the collectives under
test: it listens on a free port, and publishes it once in the group's store. Each rank runs the
program and its model, which knows what all ranks have, and reports what was wrong. Errors are
reports too. After an error of one rank the groups are out of step, and new ones are made. The
default group cannot be: after an error in it no other program is run, and the same one is as it
was.
"""

from __future__ import annotations

import gc
import json
import time
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.patience import LIMITS
from portagpu.base.text import ranks_in_words
from portagpu.suites.search.area import Area, Difference, Kind, raised, watch_world

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners, Sweep
    from portagpu.suites.search.collectives.runner import Group


_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.002
Reports = "Mapping[int, dict[str, Any]]"


class RankDidNotAnswer(RuntimeError):
    """A rank said nothing in time."""

    kind: Final = Kind.HANG


class RankEnded(RuntimeError):
    """A rank closed its end of the link, as its process does when it ends."""

    kind: Final = Kind.DEATH


def _key(number: int) -> str:
    return f"portagpu/suites/search/collectives/{number}"


def _store() -> Any:
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    return group.get_group_store()


@dataclass(frozen=True, slots=True)
class Leader:
    """The end of rank 0."""

    followers: dict[int, Connection] = field(default_factory=dict)

    @classmethod
    def meet(cls, rank: Rank, number: int) -> Leader:
        """Wait for all other ranks. ``number`` is the same on every rank, and used once."""
        with Listener((_HOST, 0), backlog=rank.world) as listener:
            _store().set(_key(number), str(listener.address[1]))
            found = cls()
            socket = listener._listener._socket  # type: ignore[attr-defined]
            watch = watch_world(LIMITS.meet_s)
            while len(found.followers) < rank.world - 1:
                if not watch.wait(lambda pause_s: bool(wait([socket], pause_s))):
                    raise RankDidNotAnswer(f"not all ranks came within {LIMITS.meet_s:g} s")
                connection = listener.accept()
                found.followers[json.loads(connection.recv_bytes())] = connection
        return found

    def send(self, message: Any) -> None:
        """Send a message to everyone."""
        text = json.dumps(message).encode()
        for each in self.followers.values():
            each.send_bytes(text)

    def answers(self, patience_s: float, after: Callable[[], None]) -> dict[int, Any]:
        """What each rank says, by its number; ``after`` is called once if one takes that long.

        Raises RankDidNotAnswer after ``Limits.answer_s``, and RankEnded.
        """
        watch = None
        found: dict[int, Any] = {}
        while len(found) < len(self.followers):
            left = {link: each for each, link in self.followers.items() if each not in found}
            ready = wait(list(left), patience_s if watch is None else watch.pause_s)
            if not ready and watch is None:
                # a right program takes less than to begin this
                watch = watch_world(max(0.0, LIMITS.answer_s - patience_s))
                after()
            elif not ready and watch is not None and watch.over:
                missing, limit_s = ", ".join(map(str, sorted(left.values()))), LIMITS.answer_s
                raise RankDidNotAnswer(f"rank {missing} did not answer within {limit_s:g} s")
            for link in ready:
                try:
                    found[left[link]] = json.loads(link.recv_bytes())  # type: ignore[index, union-attr]
                except EOFError:
                    raise RankEnded(f"rank {left[link]} ended") from None  # type: ignore[index]
        return found

    def close(self) -> None:
        """Let the others go."""
        for each in self.followers.values():
            each.close()


def follow(rank: Rank, number: int) -> Connection:
    """The end of another rank."""
    store, watch = _store(), watch_world(LIMITS.meet_s)
    # the file's own wait polls in whole seconds
    while not store.check([_key(number)]):
        if watch.over:
            raise RankDidNotAnswer(f"rank 0 did not publish its port within {LIMITS.meet_s:g} s")
        time.sleep(_POLL_S)
    link = Client((_HOST, int(store.get(_key(number)))))
    link.send_bytes(json.dumps(rank.rank).encode())
    return link


def difference(reports: Mapping[int, dict[str, Any]]) -> str:
    """The clause of the first call that went wrong on a rank; empty if none did.

    ``reports`` are those of :class:`portagpu.suites.search.collectives.runner.Report` as JSON, by
    rank."""
    found = [
        (index, rank, f"rank {rank} {text}")
        for rank, report in reports.items()
        for index, text in _own(report)
    ]
    found += _refusals(reports) + _early_leavers(reports) + _other_bits(reports)
    if found:
        index, _, text = min(found)
        return f"{_label(reports, index)}: {text}"
    waiting = [(each["raised"], rank) for rank, each in reports.items() if each["raised"]]
    if not waiting:
        return ""
    (index, text, _), rank = min(waiting)
    gone = [each for each, report in reports.items() if not report["raised"]]
    past = f", while {ranks_in_words(gone)} went on" if gone else ""
    waited = f"{_label(reports, index)}: rank {rank} waited in vain{past}: {text}"
    return Difference(waited, Kind.HANG)


def _own(report: dict[str, Any]) -> list[tuple[int, str]]:
    """What a rank saw by itself: wrong values, and errors of its own."""
    found = [tuple(report["wrong"])] if report["wrong"] else []
    if report["raised"] and not report["raised"][2]:
        index, text, _ = report["raised"]
        found.append((index, f"raised {text}"))
    return found


def _refusals(reports: Mapping[int, dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Calls that some of the ranks refused, and others took, as far as those came to an end."""
    found = []
    for rank, report in reports.items():
        for index in report["refused"]:
            others = [
                each
                for each, other in reports.items()
                if index in other["members"]
                and index not in other["refused"]
                and not other["raised"]
            ]
            if others:
                found.append(
                    (index, rank, f"rank {rank} refused what {ranks_in_words(others)} took")
                )
    return found


def _early_leavers(reports: Mapping[int, dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Barriers that a rank left before the last one came."""
    found = []
    for rank, report in reports.items():
        for index, (_, left) in report["barriers"].items():
            came = {
                each: other["barriers"][index][0]
                for each, other in reports.items()
                if index in other["barriers"]
            }
            last = max(came, key=lambda each: came[each])
            if came[last] > left:
                text = f"rank {rank} left the barrier before rank {last} came to it"
                found.append((int(index), rank, text))
    return found


def _other_bits(reports: Mapping[int, dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Rounded results that one rank has otherwise than the first one that has them."""
    found = []
    first: dict[str, tuple[int, str]] = {}
    for rank, report in sorted(reports.items()):
        for call, digest in report["rounded"].items():
            other, wanted = first.setdefault(call, (rank, digest))
            if digest != wanted:
                found.append(
                    (int(call.split()[0]), rank, f"rank {rank} got other bits than rank {other}")
                )
    return found


def _label(reports: Mapping[int, dict[str, Any]], index: int) -> str:
    for each in reports.values():
        if str(index) in each["labels"]:
            return str(each["labels"][str(index)])
    return f"call {index + 1}"


class _Collectives(Area):
    wait_s = LIMITS.group_s

    def __init__(self, ranks: int) -> None:
        self.name = f"collectives-{ranks}"
        self.ranks = ranks
        self._number = 0
        self._leader: Leader | None = None
        self._groups: dict[str, Group] = {}
        self._kept: dict[str, str] = {}
        """Differences of programs in which a rank waited in vain, which takes long: they are
        not run again."""
        self._is_over = False
        """Whether the default group is broken, so that no other program can run."""

    def load(self) -> None:
        from portagpu.suites.search.collectives import drawing, runner  # noqa: F401 - for ranks forked then

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.collectives.drawing import programs

        return programs(gpu)

    def sweep(self, gpu: Backend, chance: Random) -> Sweep:
        from portagpu.suites.search.collectives.drawing import sweep

        return sweep(gpu, chance)

    def calls(self) -> Runners:
        from portagpu.suites.search.collectives.runner import RUNNERS

        return RUNNERS

    def difference(self, rank: Rank, program: Program) -> str:
        leader = self._joined(rank)
        text = json.dumps(program)
        if self._is_over or text in self._kept:
            return self._kept.get(text, "")
        leader.send(program)
        reports = {0: self._report(rank, program)}
        try:
            reports |= leader.answers(LIMITS.group_s, lambda: self._abandon(rank, program))
        except RuntimeError as error:
            rank.broke_group = True
            self._kept[text] = raised(error)
            self._is_over = True
            raise
        found = difference(reports)
        every = reports.values()
        if any(each["raised"] for each in every):
            # the groups are out of step: new ones for the next program
            self._abandon(rank, program)
            self._is_over = _uses_default(program)
            if self._is_over or any(each["raised"] and each["raised"][2] for each in every):
                self._kept[text] = found
            leader.send("over" if self._is_over else "drop")
        elif found:
            leader.send("seen")
        return found

    def follow(self, rank: Rank) -> None:
        link = follow(rank, self._number)
        self._number += 1
        while (message := json.loads(link.recv_bytes())) is not None:
            if isinstance(message, str):
                rank.broke_group |= message == "over"
                if message == "drop":
                    self._drop_groups(rank)
                continue
            program = [(name, given) for name, given in message]
            report = self._report(rank, program)
            link.send_bytes(json.dumps(report).encode())
            # rank 0 always says that it has seen a difference, unless it hangs
            if report["wrong"] and not link.poll(LIMITS.group_s):
                self._abandon(rank, program)
        link.close()
        self._drop_groups(rank)

    def end(self, rank: Rank) -> None:
        leader = self._joined(rank)
        leader.send(None)
        leader.close()
        self._leader = None
        self._kept, self._is_over = {}, False
        self._drop_groups(rank)

    def _joined(self, rank: Rank) -> Leader:
        """The link with the other ranks, which are met before the first program."""
        if self._leader is None:
            self._leader = Leader.meet(rank, self._number)
            self._number += 1
        return self._leader

    def _report(self, rank: Rank, program: Program) -> dict[str, Any]:
        """Run the program on this rank. After an error its groups are gone.

        So the others' calls end at once, and not after ``Limits.group_s``.
        """
        from portagpu.suites.search.collectives.runner import Runner, make_groups

        if not self._groups:
            self._groups = make_groups(rank, LIMITS.group_s)
        # as JSON has it, on rank 0 too
        text = json.dumps(asdict(Runner(rank, self._groups).run(program)))
        report: dict[str, Any] = json.loads(text)
        if report["raised"]:
            self._abandon(rank, program)
        return report

    def _abandon(self, rank: Rank, program: Program) -> None:
        """Close the connections of the program's groups: who waits for this rank gets an error.

        The default group has a limit of its own, which is longer than that of a program.
        """
        import torch.distributed as dist

        self._drop_groups(rank)
        if _uses_default(program) and not rank.broke_group:
            rank.broke_group = True
            dist.destroy_process_group()

    def _drop_groups(self, rank: Rank) -> None:
        """Destroy the groups of the programs, which closes their connections."""
        import torch.distributed as dist

        groups, self._groups = self._groups, {}
        for each in groups.values():
            if each.handle is not None and rank.rank in each.ranks:
                dist.destroy_process_group(each.handle)
        if groups:
            # works and errors that stand in cycles hold connections open
            del each
            groups.clear()
            gc.collect()


def _uses_default(program: Program) -> bool:
    """Whether the program has calls in the default group, which cannot be made again."""
    return any(given.get("group") == "default" for _, given in program)


TWO: Final = _Collectives(2)
THREE: Final = _Collectives(3)
FOUR: Final = _Collectives(4)
EIGHT: Final = _Collectives(8)
