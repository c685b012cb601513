"""What a fleet's report keeps of each result file, read by several processes."""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context
from typing import TYPE_CHECKING, Final, NamedTuple

from portagpu.bench.fleet import measure_of, peer_value
from portagpu.bundle.files import OtherDocument, read_file
from portagpu.errors import ResultError
from portagpu.results.actions import Action, worst_action
from portagpu.results.run import verdict_of
from portagpu.results.verdicts import Verdict
from portagpu.results.wording import without_device
from portagpu.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.results.run import Result, Run

_LARGEST: Final = 1e200
"""No measure is larger, and sums of those that are have no number."""
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
    """Why a run is no PASS: its first failing gate, its gravest check, and what to do.

    ``action`` is the worst of all failures (``portagpu.results.actions``).
    """

    suite: str
    gate: str
    check: str
    action: str
    device: str | None
    reason: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRun:
    """One result file, condensed.

    ``hardware`` is the target, or the first device's name without one. ``gates`` maps each suite
    and area to its verdict, in the order of the run.
    """

    path: Path
    run: str
    host: str
    started: str
    hardware: str
    verdict: Verdict
    failure: Failure | None
    versions: Mapping[str, str | None]
    devices: int
    gates: Mapping[tuple[str, str], Verdict]
    measures: tuple[Measured, ...]


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that cannot be used, and why in one line."""

    path: Path
    reason: str


def read_nodes(paths: Sequence[Path], processes: int = 0) -> Iterator[NodeRun | Unread | None]:
    """Each file in its order: None for JSON that is no result.

    By default as many ``processes`` read as there are cores; few files are read by this one.
    """
    processes = min(processes or len(os.sched_getaffinity(0)), len(paths) // _SHARE)
    if processes < 2 or "fork" not in get_all_start_methods():
        yield from map(read_node, paths)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from pool.map(read_node, paths, chunksize=_SHARE // 4)


def read_node(path: Path) -> NodeRun | Unread | None:
    """The run in a file, condensed."""
    try:
        document = read_file(path)
    except OtherDocument:
        return None
    except ResultError as error:
        return Unread(path, str(error).removeprefix(f"{one_line(str(path))}: "))
    # names of machines were removed from a bundle: its file tells it from others
    host = path.stem if document.is_bundle else document.run.info.host
    return condensed(document.run, path, host or path.stem)


def condensed(run: Run, path: Path, host: str) -> NodeRun:
    """What the report keeps of ``run``."""
    info = run.info
    name = str(info.devices[0]["name"]) if info.devices else info.backend
    areas: dict[tuple[str, str], list[Result]] = {}
    for result in run.results:
        areas.setdefault((result.suite, result.area), []).append(result)
    return NodeRun(
        path=path,
        run=info.id,
        host=host,
        started=info.started,
        hardware=info.target or name or "unknown hardware",
        verdict=run.verdict,
        failure=_failure(run),
        versions=info.versions,
        devices=len(info.devices),
        gates={area: verdict_of(results) for area, results in areas.items()},
        measures=tuple(_measured(run)),
    )


def _failure(run: Run) -> Failure | None:
    if run.failures:
        gravest, first = run.failures[0], run.first_failure
        assert first is not None  # noqa: S101 - there are failures
        return Failure(
            suite=first.suite,
            gate=first.area,
            check=gravest.id,
            action=worst_action(run.failures),
            device=gravest.device,
            reason=without_device(gravest),
            next_step=run.next_step,
        )
    unjudged = (each for each in run.results if each.verdict is Verdict.INCONCLUSIVE)
    if (first := next(unjudged, None)) is not None:
        return Failure(
            suite=first.suite,
            gate=first.area,
            check=first.id,
            action=Action.NONE,
            device=first.device,
            reason=without_device(first),
            next_step="",
        )
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
        if abs(value) > _LARGEST:
            value = math.nan
        yield Measured(MeasureId(*what), result.device, value, result.unit, result.spread)
