"""Runs the sweep of ``portagpu collectives verify`` on a live device and judges it.

``tune`` shares the sweep over operations and worlds of ranks: options, order, what is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.stats import summarise
from portagpu.facts.nccl_tests.model import (
    OPERATIONS,
    SHARED_OUT,
    algbw_gbs,
    busbw_gbs,
    total_bytes,
)
from portagpu.facts.nccl_tests.tables import TYPE_NAMES, item_bytes
from portagpu.runs.engine import (
    Progress,
    RunOptions,
    add_result,
    broken_world,
    check_device,
    complete,
)
from portagpu.runs.results.advice import wrong_value
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.runs.world import Ranks, RankState
from portagpu.suites.performance import Effort, MeasuredDevice, open_device
from portagpu.suites.performance.cases import no_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from portagpu.runs.results.run import Run
    from portagpu.runs.world import WorldOutcome


SUITE: Final = "collectives"
SHARED_WORLDS: Final = (1, 2, 4)
ID: Final = "collectives/verify"
SWEEP: Final = "portagpu.suites.collectives.ranks:sweep"
_FEW: Final = (1, 0, 7, 1023)
"""Counts at every effort. 1 comes first: it shows whether the library takes the dtype."""
_SIZES: Final = {
    Effort.QUICK: (64 << 10, 1 << 20),
    Effort.FULL: tuple(4**power for power in range(6, 13)),
}
"""Bytes in total, S: to 1 MiB, and from 4 KiB to 16 MiB."""
_REPEATS: Final = {Effort.QUICK: 5, Effort.FULL: 20}
TIMEOUTS_S: Final = {Effort.QUICK: 120.0, Effort.FULL: 600.0}
_SOURCE: Final = "every element of every rank"


class WrongOptions(PortagpuError, ValueError):
    """An option names an operation, dtype or size that there is not; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions(RunOptions):
    """The options of a sweep.

    :param backend: The backend's name, by default the one for this machine.
    :param worlds: Numbers of ranks, by default as many of 1, 2 and 4 as the devices allow.
    :param operations: Of ``known_operations``; by default all.
    :param dtypes: torch's names, of ``TYPE_NAMES``; by default all.
    :param sizes: Bytes in total (S of ``bandwidth.total_bytes``), rounded down to whole elements
        for each rank; by default those of ``effort``.
    :param effort: Which sizes, and how often each.
    :param timeout_s: The limit in seconds of one operation over one world, by default that of
        ``effort``.
    :param function: What each rank runs.
    :raises WrongOptions: An operation, a dtype or a size is unknown; the message says which.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(SweepOptions):
    """The options of :func:`verify`: by default every operation, dtype and size of ``effort``."""

    function: str = SWEEP

    def points(self, operation: str, world: int) -> list[tuple[str, int]]:
        """The (dtype, count) to run, in order, each once."""
        share = world if operation in SHARED_OUT else 1
        found = []
        for dtype in self.dtypes or TYPE_NAMES:
            unit = (item_bytes(dtype) or 1) * share
            sized = [size // unit for size in self.sizes or _SIZES[self.effort]]
            counts = sized if self.sizes else [*_FEW, *sized]
            found += [(dtype, count) for count in dict.fromkeys(counts)]
        return found


def verify(options: VerifyOptions, progress: Progress | None = None) -> Run:
    """Check and time collectives on worlds of ranks, and return the finished run.

    A result for each operation, dtype, count and world has the number of wrong elements of all
    ranks, which must be 0, and in ``extra`` the times and bandwidths. On Ctrl-C the run is marked
    as interrupted. Raises UnknownBackend, BackendNotFound, and MissingDependency without torch.
    """
    progress = progress or Progress()
    check_device(options.backend, 0)

    def work(run: Run) -> None:
        with Ranks() as ranks:

            def results(device: MeasuredDevice, operation: str, world: int) -> Iterator[Result]:
                return _operation(ranks, options, device, operation, world)

            sweep(run, options, ranks, progress, ID, results)

    return complete(options.new_run(), progress, work)


def _operation(
    ranks: Ranks, options: VerifyOptions, device: MeasuredDevice, operation: str, world: int
) -> Iterator[Result]:
    """The results of one operation over one world; one alone if a rank did not return."""
    outcome = ranks.run(
        options.function,
        world,
        arguments={
            "operation": operation,
            "points": options.points(operation, world),
            "repeats": _REPEATS[options.effort],
        },
        backend=options.backend,
        timeout_s=options.timeout_s or TIMEOUTS_S[options.effort],
    )
    if not outcome.ok:
        yield broken_result(outcome, f"{ID}/{operation}[{world}]")
        return
    silent = shared_memory_only(device, world)
    for answers in zip(*outcome.values, strict=True):
        yield _point_result(operation, world, answers, silent)


def _point_result(
    operation: str, world: int, answers: Sequence[Mapping[str, Any]], does_not_show: str
) -> Result:
    """The result of one dtype and count, from the answer of each rank."""
    first = answers[0]
    dtype, count = first["dtype"], first["count"]
    refused = {redop: words for redop, words in first["refused"].items() if redop}
    if not first["checked"]:
        words = next(iter(first["refused"].values()), "")
        return whole_result(
            f"{ID}/{operation}/{dtype}[{world}]",
            operation,
            world,
            Verdict.SKIP,
            f"the library refuses {dtype}: {words}",
        )
    wrong = {
        place: sum(each["wrong"].get(place, 0) for each in answers) for place in first["wrong"]
    }
    sentence = next((each["sentence"] for each in answers if each["sentence"]), "")
    refused_alone = any(each["refused_alone"] for each in answers)
    size = total_bytes(operation, count, item_bytes(dtype) or 1, world)
    return Result(
        id=f"{ID}/{operation}/{dtype}/{count}[{world}]",
        suite=SUITE,
        area=SUITE,
        verdict=Verdict.FAIL if sentence else Verdict.PASS,
        reason=sentence,
        evidence=(Evidence.EXECUTED,),
        device=culprit(answers),
        value=sum(wrong.values()),
        unit="1",
        expected=exactly(0, f"{_SOURCE}, {first['checked']} calls"),
        shape={
            "operation": operation,
            "dtype": dtype,
            "count": count,
            "bytes": size,
            "ranks": world,
        },
        does_not_show=does_not_show,
        extra={
            **(wrong_value() if sentence and not refused_alone else {}),
            "wrong": wrong,
            "refused": refused,
            **{
                place: _bandwidths(
                    operation, size, world, [each["seconds"][place] for each in answers]
                )
                for place in first["seconds"]
            },
        },
    )


def culprit(answers: Sequence[Mapping[str, Any]]) -> str | None:
    """The first rank whose answer has a sentence about a wrong element."""
    wrong = [number for number, each in enumerate(answers) if each["sentence"]]
    return f"rank {wrong[0]}" if wrong else None


def _bandwidths(
    operation: str, size: int, world: int, of_ranks: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Time and bandwidths of one place: each call took as long as its slowest rank."""
    seconds = summarise([max(samples) for samples in zip(*of_ranks, strict=True)])
    return {
        "time_us": seconds.median * 1e6,
        "spread_us": seconds.spread * 1e6,
        "n": seconds.n,
        "algbw_gbs": algbw_gbs(size, seconds.median),
        "busbw_gbs": busbw_gbs(operation, size, seconds.median, world),
    }
