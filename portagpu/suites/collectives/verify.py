"""Runs the sweep of ``portagpu collectives verify`` on a live device and judges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.stats import summarise
from portagpu.facts.nccl_tests.model import (
    SHARED_OUT,
    algbw_gbs,
    busbw_gbs,
    total_bytes,
)
from portagpu.facts.nccl_tests.tables import TYPE_NAMES, item_bytes
from portagpu.runs.engine import Progress, check_device, complete
from portagpu.runs.results.expectations import exactly
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.world import Ranks
from portagpu.suites.collectives.sweep import (
    SUITE,
    SweepOptions,
    broken_result,
    shared_memory_only,
    sweep,
    whole_result,
)
from portagpu.suites.collectives.sweep import WrongOptions as WrongOptions
from portagpu.suites.performance import Effort, MeasuredDevice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from portagpu.runs.results.run import Run

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
