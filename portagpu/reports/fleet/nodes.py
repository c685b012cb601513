"""What a fleet's report keeps of each result file, read by several processes."""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_all_start_methods, get_context
from typing import TYPE_CHECKING, Final, NamedTuple

from portagpu.base.errors import ResultError
from portagpu.base.text import one_line
from portagpu.reports.bundles.document import WHOLE, OtherDocument, read_file
from portagpu.runs.ledger import account_of, fact_of, owner_of
from portagpu.runs.results.advice import (
    Action,
    action_of,
    check_of,
    severities,
    severity_of,
    worst_action,
)
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import without_device
from portagpu.suites.performance.fleet import measure_of, peer_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.runs.ledger import Account, Clearance, Fact, Owner
    from portagpu.runs.results.run import Result, Run

_MAX_VALUE: Final = 1e200
"""No measure is larger, and sums of those that are have no number."""
USAGE: Final = 2
"""The exit code of wrong usage: nothing ran."""
_SHARE: Final = 16
"""Files for which one more process is worth its start."""


class MeasureId(NamedTuple):
    """What a value is of: the id of the result, and its shape as JSON."""

    id: str
    shape: str

    @property
    def family(self) -> str:
        """ "gemm": what is slow in one measure of a family is so in others."""
        return self.id.partition("/")[0]


class Measured(NamedTuple):
    """A value of a device, or of all of a node's; NaN and no unit where it failed without one.

    ``spread`` is that of its own samples, in ``unit``.
    """

    what: MeasureId
    device: str | None
    value: float
    unit: str | None
    spread: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a result, or a whole run, is not a PASS, and what to do.

    ``action`` is the worst of what it stands for (``portagpu.runs.results.advice``). ``rank``
    orders failures, 0 the gravest."""

    suite: str
    gate: str
    check: str
    action: str
    device: str | None
    reason: str
    next_step: str
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRun:
    """One result file, condensed.

    ``hardware`` is the target, or the first device's name without one. ``account`` has what the
    ledger needs, and ``failures`` explains each fact in it that failed or was not judged.
    ``failure`` explains the run, and ``action`` is the worst of its results.
    """

    path: Path
    owner: Owner
    started: str
    hardware: str
    verdict: Verdict
    failure: Failure | None
    action: str
    versions: Mapping[str, str | None]
    account: Account
    failures: Mapping[Fact, Failure]
    measures: tuple[Measured, ...]

    @property
    def devices(self) -> int:
        """How many devices the run describes."""
        return len(self.account.devices)


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that cannot be used, and why in one line."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Other:
    """JSON that is not a result, with what it says where it is a clearance."""

    reason: str
    clearance: Clearance | None


def read_nodes(paths: Sequence[Path], processes: int = 0) -> Iterator[NodeRun | Unread | Other]:
    """Each file in its order.

    By default as many ``processes`` read as there are cores; few files are read by this one.
    """
    processes = min(processes or len(os.sched_getaffinity(0)), len(paths) // _SHARE)
    if processes < 2 or "fork" not in get_all_start_methods():
        yield from map(read_node, paths)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from pool.map(read_node, paths, chunksize=_SHARE // 4)


def read_node(path: Path) -> NodeRun | Unread | Other:
    """The run in a file, condensed."""
    try:
        document = read_file(path)
    except ResultError as error:
        reason = str(error).removeprefix(f"{one_line(str(path))}: ")
        if isinstance(error, OtherDocument):
            return Other(reason, error.clearance)
        return Unread(path, reason)
    info = document.run.info
    if not document.run.results and info.error and info.error["exit_code"] == USAGE:
        return Other(f"is of a command that was refused: {info.error['message']}", None)
    # result.json stands for its folder
    place = path.parent.name if path.name == WHOLE and path.parent.name else path.stem
    return condensed(document.run, path, owner_of(document.run, place))


def condensed(run: Run, path: Path, owner: Owner) -> NodeRun:
    """What the report keeps of ``run``."""
    info = run.info
    name = str(info.devices[0]["name"]) if info.devices else info.backend
    account = account_of(run)
    failures: dict[Fact, Failure] = {}
    for result in run.results:
        if result.failed or result.verdict is Verdict.INCONCLUSIVE:
            fact = fact_of(result, run, account.devices)
            if account.statements[fact].verdict is result.verdict:
                failures.setdefault(fact, _failure_of(result))
    return NodeRun(
        path=path,
        owner=owner,
        started=info.started,
        hardware=info.target or name or "unknown hardware",
        verdict=run.verdict,
        failure=_failure(run),
        action=worst_action(run.results),
        versions=info.versions,
        account=account,
        failures=failures,
        measures=tuple(_measured(run)),
    )


def _failure_of(result: Result) -> Failure:
    judged = result.failed
    check = check_of(result) if judged else None
    return Failure(
        suite=result.suite,
        gate=result.area,
        check=result.id,
        action=action_of(result),
        device=result.device,
        reason=without_device(result),
        next_step=str(result.extra.get("remedy") or (check.do if check else "")) if judged else "",
        rank=severity_of(result).rank if judged else len(severities()),
    )


def _failure(run: Run) -> Failure | None:
    """Why a run is not a PASS: its first failing gate, its gravest check, all of its actions."""
    if run.failures:
        first = run.first_failure
        assert first is not None  # noqa: S101 - there are failures
        return replace(
            _failure_of(run.failures[0]),
            suite=first.suite,
            gate=first.area,
            action=worst_action(run.failures),
            next_step=run.next_step,
        )
    unjudged = (each for each in run.results if each.verdict is Verdict.INCONCLUSIVE)
    if (first := next(unjudged, None)) is not None:
        return _failure_of(first)
    if run.verdict is Verdict.PASS:
        return None
    return Failure(
        suite="",
        gate="",
        check="",
        action=Action.NONE,
        device=None,
        reason=run.why,
        next_step="",
    )


def _measured(run: Run) -> Iterator[Measured]:
    for result in run.results:
        if (what := measure_of(result)) is None or (value := peer_value([result])) is None:
            continue
        if abs(value) > _MAX_VALUE:
            value = math.nan
        yield Measured(MeasureId(*what), result.device, value, result.unit, result.spread)
