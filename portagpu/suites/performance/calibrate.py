"""Expectations from own results: rows for a target's file, proposed and never written there.

The reference is the median of the runs' values. The tolerance is that of the rule for peers
(``portagpu.runs.judges.peers``): 3.5 standard deviations, estimated from the median absolute
deviation of the runs, and at least 5 %. So a later value outside is one that these runs would call
an outlier. A row is proposed only where it could judge: the file's own checks accept it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import DocumentError
from portagpu.base.errors import PortagpuError
from portagpu.base.stats import mad
from portagpu.facts.targets.expect import METRICS, read_expectation
from portagpu.runs.judges.peers import DEVIATIONS, NORMAL, RELATIVE
from portagpu.runs.results.verdicts import FAILING, Evidence, Verdict
from portagpu.suites.performance.fleet import metric_of, repeated_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result, Run

MIN_RUNS: Final = 5
"""The rule for peers needs four values; with five, the median and its deviation survive two odd
runs."""
WIDEST: Final = 0.25
"""A measure that needs a wider tolerance is not proposed: it would accept a broken device."""
_OF_NO_RESULT: Final = frozenset({"kernel", "python", "portagpu", "comm"})
"""Versions that say nothing of the speed of a device, or are named otherwise in expectations."""


class CannotCalibrate(PortagpuError, ValueError):
    """These runs give no expectations; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """``rows`` are tables of TOML; ``left_out`` says why of each measure without one.

    ``origin`` is where the rows are from: "median of 6 runs on 2 hosts, 2026-11-23".
    """

    rows: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    origin: str

    @property
    def text(self) -> str:
        """The rows with a head that says where they are from."""
        return "\n".join([f"# Proposed: {self.origin}.", *self.rows])


def propose(runs: Sequence[Run], target: Target) -> Proposal:
    """Rows of expectations for a target, from runs of it.

    :param runs: at least five finished runs, each given once, with the same versions of everything.
    :param target: what they have to be of.
    :returns: the rows as TOML, and the measures that were left out, each with the reason.
    :raises CannotCalibrate: in one line, for other runs.
    """
    check_runs(runs, target.id)
    software, origin = _software(runs[0].info.versions), _origin(runs)
    measures: dict[str, list[Result]] = {}
    for run in runs:
        of_run = {each.id: each for each in run.results if metric_of(each) is not None}
        for name, result in of_run.items():
            measures.setdefault(name, []).append(result)
    rows, left_out = [], []
    for name, results in measures.items():
        reason = _blocker(results, len(runs))
        row = {} if reason else _row(results, software, origin)
        if reason := reason or _refusal(row, target):
            left_out.append((name, reason))
        else:
            rows.append(_toml(row))
    return Proposal(tuple(rows), tuple(left_out), origin)


def _origin(runs: Sequence[Run]) -> str:
    days = sorted(run.info.started[:10] for run in runs)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    hosts = len({run.info.host for run in runs})
    made = f"portagpu {runs[0].info.versions.get('portagpu')}"
    where = f"{hosts} host" if hosts == 1 else f"{hosts} hosts"
    return f"median of {len(runs)} runs on {where}, {when}, {made}"


def check_runs(runs: Sequence[Run], target: str | None = None) -> str:
    """The one target of ``runs``. Raises CannotCalibrate, in one line, where they cannot be used.

    They have to be at least five finished runs, each given once, on one target and with the same
    versions of everything. ``target`` is what they have to be of.
    """
    if twice := repeated_id(runs):
        raise CannotCalibrate(f"run {twice} is given twice: give each result once")
    if len(runs) < MIN_RUNS:
        raise CannotCalibrate(f"{len(runs)} runs are too few: give at least {MIN_RUNS}")
    for run in runs:
        if run.info.interrupted or run.info.replay:
            what = "was interrupted" if run.info.interrupted else "judged recordings"
            raise CannotCalibrate(f"run {run.info.id} {what}: leave it out")
    targets = {run.info.target for run in runs}
    if None in targets:
        raise CannotCalibrate("a run matches no target: expectations belong to one")
    if len(targets) > 1:
        raise CannotCalibrate(
            f"the runs are of several targets: {', '.join(sorted(map(str, targets)))}"
        )
    (only,) = targets
    if target is not None and only != target:
        raise CannotCalibrate(f"the runs are of {only}, not of {target}")
    for name in sorted({name for run in runs for name in run.info.versions}):
        values = sorted({str(run.info.versions.get(name)) for run in runs})
        if len(values) > 1:
            raise CannotCalibrate(
                f"the runs have several versions of {name}: {', '.join(values)}; "
                "calibrate those of one version"
            )
    return str(only)


def _blocker(results: Sequence[Result], runs: int) -> str:
    """Why no expectation follows from the results of one measure; empty where one does."""
    first = results[0]
    if metric_of(first) not in METRICS:
        return "targets state no expectations of it"
    if all(each.verdict is Verdict.SKIP for each in results):
        return "it was skipped"
    if failed := sum(each.verdict in FAILING for each in results):
        return f"it failed in {failed} of {runs} runs"
    values = [each.value for each in results if isinstance(each.value, int | float)]
    if len(values) < runs:
        return f"only {len(values)} of {runs} runs have a value"
    if any(Evidence.EXECUTED not in each.evidence for each in results):
        return "it was not executed in every run"
    if any(each.verdict is Verdict.INCONCLUSIVE for each in results):
        return "a run's own spread is too wide"
    if any(_of(each) != _of(first) for each in results):
        return "its shape, unit or statistic differs among the runs"
    if None in _conditions(first).values():
        return "its shape is not fixed"
    if not all(value > 0 for value in values):
        return "a value is not positive"
    if (share := tolerance(values)) > WIDEST:
        return f"the runs differ too much: a tolerance of {share:.0%} would be needed"
    return ""


def _of(result: Result) -> tuple[object, ...]:
    return result.shape, result.unit, result.statistic


def tolerance(values: Sequence[float]) -> float:
    """The fraction of the median beyond which the rule for peers calls a value an outlier.

    Rounded up to a half percent, so that every value it accepts is inside.
    """
    share = max(RELATIVE, DEVIATIONS * NORMAL * mad(values) / median(values))
    return math.ceil(round(200 * share, 9)) / 200


def _row(results: Sequence[Result], software: Mapping[str, str], origin: str) -> dict[str, Any]:
    first = results[0]
    values = [float(each.value) for each in results if isinstance(each.value, int | float)]
    middle, share = median(values), tolerance(values)
    return {
        "metric": metric_of(first),
        "reference": float(f"{middle:.6g}"),
        "lower": -share,
        "upper": share,
        "unit": first.unit,
        "statistic": first.statistic,
        **_conditions(first),
        **({"software": dict(software)} if software else {}),
        "source": [],
        "authority": "own",
        "note": f"{origin}; they deviate by {mad(values) / middle:.2%}",
    }


def _conditions(result: Result) -> dict[str, Any]:
    """Shape, algorithm, ranks, size and element type, as expectations state them.

    None is a condition that the result does not state, as of a search for the fastest shape.
    """
    shape = dict(result.shape) if isinstance(result.shape, dict) else {}
    area = result.id.partition("/")[0]
    if area == "gemm":
        edges = [shape.get(edge) for edge in ("m", "n", "k")]
        return {
            "shape": None if None in edges else "x".join(map(str, edges)),
            "algorithm": "dense",
            "contiguous": shape.get("contiguous"),
        }
    size, dtype = shape.get("array_bytes", shape.get("bytes")), shape.get("dtype")
    sized = {"shape": f"{size} bytes", "size_bytes": size}
    if area == "memory":
        return {**sized, "algorithm": "stream", "dtype": dtype}
    if area == "transfer":
        return {**sized, "algorithm": result.id.partition("[")[2].rstrip("]") or "copy"}
    return {**sized, "algorithm": "unstated", "ranks": shape.get("ranks"), "dtype": dtype}


def _software(versions: Mapping[str, str | None]) -> dict[str, str]:
    """The versions that the expectations hold for: the library of collectives by its name."""
    named = {name: version for name, version in versions.items() if name not in _OF_NO_RESULT}
    library, _, number = (versions.get("comm") or "").partition(" ")
    if number:
        named[library.lower()] = number
    found = {}
    for name, version in named.items():
        if release := re.match(r"\d+(\.\d+)*", version or ""):
            found[name] = f"=={release[0]}"
    return found


def _refusal(row: dict[str, Any], target: Target) -> str:
    """Why a target's file would refuse the row; empty where it would not."""
    try:
        read_expectation(row, "", target.facts, {})
    except DocumentError as error:
        return f"{error} (rule {error.rule})"
    return ""


def _toml(row: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in row.items()]
    return "\n".join(["", "[[expectations]]", *lines])


def _value(value: object) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value, ensure_ascii=False)
