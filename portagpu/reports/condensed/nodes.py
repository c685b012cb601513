"""What a fleet's report keeps of each result file."""

from __future__ import annotations

import hashlib
import math
from array import array
from dataclasses import dataclass, replace
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
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from portagpu.reports.bundles.document import Document
    from portagpu.runs.ledger import Account, Clearance, Fact, Owner
    from portagpu.runs.results.run import Result, Run

_MAX_VALUE: Final = 1e200
"""No measure is larger, and sums of those that are have no number."""
USAGE: Final = 2
"""The exit code of wrong usage: nothing ran."""


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


Layout = tuple[tuple[MeasureId, str | None, str | None], ...]
"""What the values of a run are of, in their order: the measure, the device, the unit."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The values of a run in columns: runs that measured the same have one ``layout`` object.

    NaN in ``values`` is a measure that failed without one, and in ``spreads`` one without samples.
    """

    layout: Layout
    values: array[float]
    spreads: array[float]

    @classmethod
    def of(cls, measured: Iterable[Measured]) -> Measures:
        """Values that were measured one by one."""
        found = list(measured)
        return made_measures(
            tuple((each.what, each.device, each.unit) for each in found),
            array("d", [each.value for each in found]),
            array("d", [math.nan if each.spread is None else each.spread for each in found]),
        )

    def __iter__(self) -> Iterator[Measured]:
        for (what, device, unit), value, spread in zip(
            self.layout, self.values, self.spreads, strict=True
        ):
            yield Measured(what, device, value, unit, None if math.isnan(spread) else spread)

    def __reduce__(self) -> tuple[Any, ...]:
        return made_measures, (self.layout, self.values, self.spreads)


_layouts: Final[dict[Layout, Layout]] = {}


def made_measures(layout: Layout, values: array[float], spreads: array[float]) -> Measures:
    """Measures with the one object of that layout in this process."""
    return Measures(_layouts.setdefault(layout, layout), values, spreads)


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
    ledger needs, and ``failures`` explains each fact in it that failed or was not judged, in the
    order of its statements.
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
    measures: Measures

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


Found = NodeRun | Unread | Other
"""What a file holds."""


def read_node(path: Path) -> Found:
    """The run in a file, condensed."""
    try:
        document = read_file(path)
    except ResultError as error:
        reason = str(error).removeprefix(f"{one_line(str(path))}: ")
        if isinstance(error, OtherDocument):
            return Other(reason, error.clearance)
        return Unread(path, reason)
    return node_of(document)


def node_of(document: Document) -> NodeRun | Other:
    """The run of a document, condensed."""
    info = document.run.info
    if not document.run.results and info.error and info.error["exit_code"] == USAGE:
        return Other(f"is of a command that was refused: {info.error['message']}", None)
    return condensed(document.run, document.path, owner_at(document.run, document.path))


def place_of(path: Path) -> str:
    """What a file is called in place of a host: ``result.json`` stands for its folder."""
    return path.parent.name if path.name == WHOLE and path.parent.name else path.stem


def owner_at(run: Run, path: Path) -> Owner:
    """Whose a run in a file is."""
    return owner_of(run, place_of(path))


HEAD_BYTES: Final = 8 << 10
"""Of a file: its run, its verdict and its counts."""


def mark_of(head: bytes, size: int) -> str:
    """What distinguishes a file of ``size`` bytes, by its first ``HEAD_BYTES``."""
    return f"{size}-{hashlib.blake2b(head, digest_size=16).hexdigest()}"


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
    if len(failures) > 1:
        failures = {fact: failures[fact] for fact in account.statements if fact in failures}
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
        measures=Measures.of(_measured(run)),
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
