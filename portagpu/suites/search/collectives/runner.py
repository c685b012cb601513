"""A program on one rank: its calls on the device and in the model, and a report of them."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import Parameter, signature
from random import Random
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from portagpu.base.errors import RankLost
from portagpu.base.text import error_line
from portagpu.suites.search.area import ProgramError
from portagpu.suites.search.collectives import buffers, model
from portagpu.suites.search.collectives.buffers import Buffer
from portagpu.suites.search.collectives.calls import (
    CALLS,
    EACH_PART,
    HELPERS,
    REDUCES,
    Place,
    is_claimed,
)
from portagpu.suites.search.collectives.values import addends, bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.devices.collectives.comm import Comm
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners

LATE_S: Final = 0.001
_NOT_REFUSED: Final = ("timed out", "timeout", "closed", "reset by peer", "aborted")
"""Words of errors that say that another rank is not there, and not that a call is refused."""
_REFUSALS: Final = (RuntimeError, ValueError, TypeError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Group:
    """A group: torch's own, None for all ranks, and its ranks in order."""

    handle: Any
    ranks: Sequence[int]
    checked: Any = None
    """The same group as portagpu checks its calls, on its members."""

    @property
    def words(self) -> str:
        """ "on ranks 0, 2"."""
        return f"on {'rank' if len(self.ranks) == 1 else 'ranks'} {', '.join(map(str, self.ranks))}"


@dataclass(slots=True)
class Step:
    """A call that was started: what is to be waited for, and what has to be there then."""

    index: int
    label: str
    work: Any
    buffers: list[Buffer]
    claimed: bool
    agrees: str = ""
    """What it is called among calls of which all ranks have to get the same bits; else empty."""


@dataclass(slots=True)
class Report:
    """What one rank saw, as JSON: by the number of the call in the program, from 0."""

    labels: dict[int, str] = field(default_factory=dict)
    wrong: tuple[int, str] | None = None
    raised: tuple[int, str, bool] | None = None
    """The error, and whether it says no more than that another rank was not there."""
    refused: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    """Calls in which this rank took part."""
    barriers: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When it came to a barrier and when it left, in seconds of the machine's monotonic clock."""
    rounded: dict[str, str] = field(default_factory=dict)
    """A digest of results that all ranks have in common, where they were rounded: by the number of
    the call and its seed, as ranks may wait for its repetitions in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of a call on buffers, which ``drawing`` draws."""

    group: str
    n: int
    dtype: str
    seed: int
    how: str = "sync"
    op: str = "SUM"
    values: str = "small"
    root: int = 0
    shape: str = "flat"
    offset: int = 4
    in_place: bool = False
    by_position: bool = False
    outsiders: bool = False
    uneven: bool = False
    late: int = -1
    way: str = ""
    checked: bool = False

    def label(self, name: str, of: Group) -> str:
        """The call in words."""
        reduction = f" {self.op}" if name in REDUCES else ""
        manner = " checked" if self.checked else f" by {self.way}" if self.way else ""
        return f"{name}{reduction}{manner} of {self.n} {self.dtype} {of.words}"

    def is_claimed(self, name: str, comm: Comm) -> bool:
        """Whether the device has to take the call."""
        return is_claimed(comm, name, self.dtype, self.op, self.shape, in_place=self.in_place)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs one program on one rank."""

    rank: Rank
    groups: dict[str, Group]
    report: Report = field(default_factory=Report)
    pending: list[Step] = field(default_factory=list)

    def run(self, program: Program) -> Report:
        """All calls, until one raises. After a wrong one the others are made, as on other ranks."""
        index = 0
        try:
            with warnings.catch_warnings():
                # ranks outside of a group are warned, old names are deprecated
                warnings.simplefilter("ignore")
                for index, (name, given) in enumerate(program):
                    self._one(index, name, given)
                while self.pending:
                    index = self.pending[-1].index
                    self._finish(self.pending.pop())
        except Exception as error:  # noqa: BLE001 - whatever a device raises is what it did
            self.report.raised = (index, error_line(error), _is_of_others(error))
        return self.report

    def _one(self, index: int, name: str, given: dict[str, Any]) -> None:
        if name == "wait":
            self._wait(**given)
        elif name in CALLS:
            self._collectives(index, name, **given)
        elif name in buffers.CALLS:
            self._call_without_buffers(index, name, **given)
        else:
            raise ProgramError(f"there is no call {name!r} in programs of collectives")

    def _wait(self, which: str) -> None:
        """Wait for the oldest or the newest work, or for all, the newest first."""
        while self.pending:
            self._finish(self.pending.pop(0 if which == "first" else -1))
            if which != "all":
                return

    def _collectives(self, index: int, name: str, seed: int, times: int = 1, **given: Any) -> None:
        """The same call several times, each with other values."""
        for number in range(times):
            self._collective(index, name, Arguments(seed=seed + number, **given))

    def _collective(self, index: int, name: str, asked: Arguments) -> None:
        """A call on buffers."""
        of = self.groups[asked.group]
        ranks = of.ranks
        if name in ("message", "ring") and len(ranks) == 1:
            return
        root = asked.root % len(ranks)
        if name == "ring":
            # a distance, which is not 0
            root = 1 + asked.root % (len(ranks) - 1)
        label = asked.label(name, of)
        self.report.labels[index] = label
        position = ranks.index(self.rank.rank) if self.rank.rank in ranks else -1
        takes_part = position >= 0
        if name == "message":
            takes_part = position in (root, (root + 1) % len(ranks))
        if not takes_part and not (asked.outsiders and position < 0):
            return
        helper = {"all_reduce_wider": "wider", "all_reduce_with_nan": "nan"}.get(name, "")
        kind = model.Sum(asked.op, asked.dtype, ranks, helper) if name in REDUCES else None
        x, counts = _exchange(name, kind, asked, len(ranks))
        exchange = model.Exchange(x, counts, ranks, root=root, kind=kind, in_place=asked.in_place)
        contents = CALLS[name][0](exchange, max(position, 0))
        if not takes_part:
            contents = [model.Content(each.what, each.before, each.before) for each in contents]
        at = Place(
            group=of.handle,
            ranks=ranks,
            position=position,
            root=root,
            op=asked.op,
            asynchronous=asked.how != "sync",
            by_position=asked.by_position,
            tag=asked.seed % 5,
            checked=of.checked if asked.checked else None,
            way=asked.way,
            sends=counts[position] if asked.uneven else None,
            receives=[row[position] for row in counts] if asked.uneven else None,
        )
        buffers = [
            Buffer(
                each,
                asked.dtype,
                self.rank.gpu.device,
                kind is None,
                asked.offset,
                asked.shape,
                asked.n,
                max(position, 0),
            )
            for each in contents
        ]
        if takes_part:
            self.report.members.append(index)
        claimed = asked.is_claimed(name, self.rank.gpu.comm)
        agrees = (
            f"{index} {asked.seed}" if takes_part and CALLS[name][0] is model.all_reduce else ""
        )
        step = Step(index, label, None, buffers, claimed, agrees)
        if 0 <= asked.late == position:
            time.sleep(LATE_S)
        tensors = [each.tensor for each in buffers]
        if self._accepts(step, lambda: CALLS[name][1](tensors, at)):
            if asked.how == "later" and name not in HELPERS and takes_part:
                self.pending.append(step)
            else:
                self._finish(step)

    def _call_without_buffers(self, index: int, name: str, group: str, **given: Any) -> None:
        """A call without buffers: a function of ``buffers``."""
        of = self.groups[group]
        if self.rank.rank not in of.ranks:
            return
        self.report.members.append(index)
        self.report.labels[index] = f"{given.get('kind', name)} {of.words}"
        if name == "barrier":
            self.report.barriers[index] = buffers.barrier(self.rank, of.handle, of.ranks, **given)
            return
        found = buffers.CALLS[name](self.rank, of.handle, of.ranks, **given)
        self._see(index, found)

    def _see(self, index: int, found: str) -> None:
        """Keep the first difference."""
        if found and self.report.wrong is None:
            self.report.wrong = index, found

    def _accepts(self, step: Step, start: Callable[[], Any]) -> bool:
        """Whether the call was taken; one that is not claimed may be refused."""
        try:
            step.work = start()
        except _REFUSALS as error:
            self._refuse(step, error)
            return False
        return True

    def _refuse(self, step: Step, error: Exception) -> None:
        if step.claimed or _is_of_others(error):
            raise error
        self.report.refused.append(step.index)

    def _finish(self, step: Step) -> None:
        """Wait for a call, and compare all its buffers."""
        if step.work is not None:
            try:
                step.work.wait()
            except _REFUSALS as error:
                self._refuse(step, error)
                return
        for each in step.buffers:
            self._see(step.index, each.difference())
            if step.agrees and any(part.bounds for part in each.content.after):
                self.report.rounded[step.agrees] = each.digest()


def _is_of_others(error: Exception) -> bool:
    """Whether it says that another rank is not there."""
    if isinstance(error, RankLost):
        return True
    text = str(error).lower()
    return any(each in text for each in _NOT_REFUSED)


def _exchange(
    name: str, kind: model.Sum | None, asked: Arguments, size: int
) -> tuple[Any, list[list[int]]]:
    """The patterns of each position and part, and how many elements go from each to each."""
    n, dtype, seed = asked.n, asked.dtype, asked.seed
    parts = size if name in EACH_PART else 1
    if kind is None:
        x = bits(dtype, seed, size, parts, n)
    else:
        x = addends(asked.values, kind.op, dtype, seed, size, parts, n)
    if not asked.uneven:
        return x, [[n] * parts] * size
    random = Random(seed)  # noqa: S311 - sizes, no secret
    counts = [[random.randint(0, n) for _ in range(parts)] for _ in range(size)]
    cut = [
        [pattern[:count] for pattern, count in zip(row, line, strict=True)]
        for row, line in zip(x, counts, strict=True)
    ]
    return cut, counts


def make_groups(rank: Rank, timeout_s: float) -> dict[str, Group]:
    """The groups of a round, which every rank makes in the same order."""
    world, comm = rank.world, rank.gpu.comm
    everyone = list(range(world))
    wanted = {
        "same": everyone,
        "whole": everyone,
        "even": everyone[::2],
        "tail": everyone[1:],
        "pair": [0, world - 1],
        "one": [world - 1],
    }
    made = {"default": Group(None, everyone, comm.checked(timeout_s=timeout_s))}
    for name, ranks in wanted.items():
        handle = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s))
        checked = comm.checked(handle, timeout_s) if rank.rank in ranks else None
        made[name] = Group(handle, ranks, checked)
    return made


# what it hands on has a name too, which a program of another version may not know
_own = signature(Runner._collectives)
Runner._collectives.__signature__ = _own.replace(  # type: ignore[attr-defined]
    parameters=[
        *(_own.parameters[each] for each in ("self", "index", "name")),
        *(
            each.replace(kind=Parameter.POSITIONAL_OR_KEYWORD)
            for each in signature(Arguments).parameters.values()
        ),
        _own.parameters["times"],
    ]
)
RUNNERS: Final[Runners] = {
    "wait": Runner._wait,
    **dict.fromkeys(CALLS, Runner._collectives),
    **buffers.CALLS,
}
"""What runs each call of programs."""
