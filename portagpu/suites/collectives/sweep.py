"""Shared by sweeps over operations and worlds of ranks: options, order, what is left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from portagpu.base.errors import PortagpuError
from portagpu.facts.nccl_tests.model import OPERATIONS
from portagpu.facts.nccl_tests.tables import TYPE_NAMES
from portagpu.runs.engine import Progress, RunOptions, add_result, broken_world
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.world import Ranks, RankState
from portagpu.suites.performance import Effort, MeasuredDevice, open_device
from portagpu.suites.performance.cases import no_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from portagpu.runs.results.run import Run
    from portagpu.runs.world import WorldOutcome

SUITE: Final = "collectives"
SHARED_WORLDS: Final = (1, 2, 4)


class WrongOptions(PortagpuError, ValueError):
    """An option names an operation, dtype or size that there is not; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions(RunOptions):
    """The options of a sweep.

    ``worlds`` are numbers of ranks, by default as many of 1, 2 and 4 as the devices allow.
    ``operations`` are of ``known_operations`` and ``dtypes`` are torch's names, of ``TYPE_NAMES``;
    empty for the default ones. ``sizes`` are bytes in total (S of ``bandwidth.total_bytes``),
    rounded down to whole elements for each rank; empty for those of ``effort``. ``timeout_s`` is
    the hard limit of one operation over one world, by default that of ``effort``. ``function`` is
    what each rank runs.
    """

    known_operations: ClassVar[Sequence[str]] = OPERATIONS

    backend: str | None = None
    worlds: Sequence[int] = ()
    operations: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    sizes: Sequence[int] = ()
    effort: Effort = Effort.QUICK
    timeout_s: float | None = None
    function: str

    def __post_init__(self) -> None:
        for given, known in (
            (self.operations, self.known_operations),
            (self.dtypes, tuple(TYPE_NAMES)),
        ):
            for each in given:
                if each not in known:
                    raise WrongOptions(f"there is no {each!r}: choose from {', '.join(known)}")
        if min((*self.worlds, 1)) < 1 or min((*self.sizes, 0)) < 0:
            raise WrongOptions("a world has at least 1 rank, and a size at least 0 bytes")


def sweep(
    run: Run,
    options: SweepOptions,
    ranks: Ranks,
    progress: Progress,
    name: str,
    results: Callable[[MeasuredDevice, str, int], Iterable[Result]],
    default_worlds: Sequence[int] = SHARED_WORLDS,
    keys: Sequence[str] = (),
) -> None:
    """Add the ``results`` of (device, operation, world) to ``run``, one operation after another.

    ``name`` is what their ids begin with; ``keys`` are what the run says of the device as well.
    What cannot run here is a result with its reason. After a rank hung nothing else begins.
    """
    opened = open_device(ranks, options.backend)
    if isinstance(opened, Result):
        add_result(run, progress, replace(opened, suite=SUITE))
        return
    opened.describe_in(run, opened.target, "arch", *keys)
    progress.opened(opened)
    operations = tuple(options.operations or options.known_operations)
    worlds = tuple(dict.fromkeys(options.worlds)) or _worlds(opened, default_worlds)
    total = len(operations) * len(worlds)
    hung = ""
    for number, (world, operation) in enumerate(
        ((world, operation) for world in worlds for operation in operations), 1
    ):
        whole = f"{name}/{operation}[{world}]"
        if (absent := _absent(opened, operation, world)) is not None:
            add_result(run, progress, whole_result(whole, operation, world, *absent))
            continue
        if hung:
            reason = f"a rank hung in {hung}: repair that first, or leave it out with --only"
            result = whole_result(whole, operation, world, Verdict.INCONCLUSIVE, reason)
            add_result(run, progress, replace(result, blocked_by=hung))
            continue
        if reason := progress.stop_reason():
            result = whole_result(whole, operation, world, Verdict.INCONCLUSIVE, reason)
            add_result(run, progress, result)
            continue
        progress.item_begins(whole, number, total)
        for result in results(opened, operation, world):
            add_result(run, progress, result)
            hung = whole if result.value == RankState.HUNG else ""


def _worlds(device: MeasuredDevice, usual: Sequence[int]) -> tuple[int, ...]:
    if device.shared:
        return tuple(usual)
    return tuple(sorted({size for size in (*usual, device.count) if size <= device.count}))


def _absent(device: MeasuredDevice, operation: str, world: int) -> tuple[Verdict, str] | None:
    """Why the operation does not run over ``world`` ranks here; None if it does."""
    if world == 1 and operation == "sendrecv":
        return Verdict.SKIP, "not applicable: one rank has no other one to send to"
    if world > 1 or "collectives" not in device.capabilities:
        absent = no_ranks(device, world)
        return None if absent is None else (absent.verdict, absent.reason)
    return None


def broken_result(outcome: WorldOutcome, id_: str) -> Result:
    """The result of a world in which a rank did not return."""
    blamed = outcome.first_failure
    return Result(
        id=id_,
        suite=SUITE,
        area=SUITE,
        device=f"rank {blamed.rank}" if blamed is not None else None,
        **broken_world(outcome, blamed),
    )


def whole_result(id_: str, operation: str, world: int, verdict: Verdict, reason: str) -> Result:
    """The result of an operation over a world that has no points."""
    return Result(
        id=id_,
        suite=SUITE,
        area=SUITE,
        verdict=verdict,
        reason=reason,
        shape={"operation": operation, "ranks": world},
    )


def shared_memory_only(device: MeasuredDevice, world: int) -> str:
    """What results of ranks that share a machine do not show; empty elsewhere."""
    alone = device.shared and world > 1
    return "a network or a link: all ranks share this machine's memory" if alone else ""
