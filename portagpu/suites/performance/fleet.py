"""What results say without reference values: devices of one node, or of many, compared by what each
measured; and expectations from own results, as rows that are proposed for a target's file and never
written there.

The rule is the one for the ranks of a node: ``portagpu.runs.judges.peers``.

The reference is the median of the runs' values. The tolerance is that of the rule for peers
(``portagpu.runs.judges.peers``): 3.5 standard deviations, estimated from the median absolute
deviation of the runs, and at least 5 %. So a later value outside is one that these runs would call
an outlier. A row is proposed only where it could judge: the file's own checks accept it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import DocumentError
from portagpu.base.errors import PortagpuError
from portagpu.base.stats import mad
from portagpu.facts.targets.expect import METRICS, read_expectation
from portagpu.runs.judges.peers import (
    DEVIATIONS,
    NORMAL,
    RELATIVE,
    Peers,
    compare_peers,
    majority,
    peer_expectation,
)
from portagpu.runs.ledger import host_of
from portagpu.runs.results.advice import Cause, cause_of, digest_of, separated, wrong_value
from portagpu.runs.results.run import Result, new_run
from portagpu.runs.results.verdicts import FAILING, Evidence, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.suites.performance.cases import SUITE, metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from portagpu.facts.targets import Target
    from portagpu.runs.judges.peers import Outlier
    from portagpu.runs.results.run import Run


AREA: Final = "peers"
_SHAPE: Final = json.JSONEncoder(sort_keys=True)
_RATES: Final = frozenset({"ranks/gemm", "sustained/gemm"})
"""What bring-up measures next to the metrics, and what equal devices agree in."""


class NoPeers(PortagpuError, ValueError):
    """These runs cannot be compared; the message says why, in one line."""


def compare_runs(runs: Sequence[Run], command: Sequence[str] = ()) -> Run:
    """A run with a result for each measure and peer: a host, or a device or rank of it.

    PASS is like its peers, FAIL is unlike them, UNVERIFIED has fewer than four to compare with.
    Several runs of one host count by their median. A measure that failed on a peer has no number
    there, which is unlike the others; one that a run did not judge is INCONCLUSIVE. Versions that
    differ from those of most hosts are UNVERIFIED.

    :param runs: runs of one target, each given once.
    :param command: the words of the command line that compares them.
    :raises NoPeers: in one line, for other runs, and for runs without a measure.
    """
    targets = {run.info.target for run in runs}
    if len(targets) > 1:
        named = ", ".join(sorted(str(each or "no target") for each in targets))
        raise NoPeers(f"the runs are of several targets ({named}): compare runs of one")
    if twice := repeated_id(runs):
        raise NoPeers(f"run {twice} is given twice: give each result once")
    found = new_run(command, target=next(iter(targets), None))
    found.extend([*_versions(runs), *_measures(runs)])
    if not found.results:
        raise NoPeers(
            "there is no measure in these results: give those that bench or bringup wrote"
        )
    return found.finish()


def repeated_id(runs: Sequence[Run]) -> str | None:
    """The id of a run that is there twice; None where each is there once."""
    (most, count), *_ = Counter(run.info.id for run in runs).most_common(1) or [("", 0)]
    return most if count > 1 else None


def metric_of(result: Result) -> str | None:
    """The metric ("gemm/bf16") of a measure of ``bench``, alone or in a gate, else None."""
    if result.extra.get("suite", result.suite) != SUITE:
        return None
    metric = result.id.partition("[")[0]
    return metric if metric in _metrics() else None


def measure_of(result: Result) -> tuple[str, str] | None:
    """The id and the shape of a measure that peers are compared by; None for another result.

    Other sizes are other measures, as in a quick run next to a full one.
    """
    if metric_of(result) is None or result.verdict is Verdict.SKIP:
        return None
    return result.id, _SHAPE.encode(result.shape)


def peer_name(host: str, device: str | None) -> str:
    """ "node-1 cuda:0"; the host alone for a measure of all devices."""
    return " ".join(part for part in (host, device) if part)


@cache
def _metrics() -> frozenset[str]:
    return _RATES.union(metrics())


def _measures(runs: Sequence[Run]) -> Iterator[Result]:
    by_measure: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for run in runs:
        for result in run.results:
            if (key := measure_of(result)) is not None:
                # runs of no known host are never merged
                peer = peer_name(host_of(run) or run.info.id, result.device)
                by_measure.setdefault(key, {}).setdefault(peer, []).append(result)
    shapes = Counter(name for name, _ in by_measure)
    for (name, shape), results in by_measure.items():
        values = {
            peer: value for peer, own in results.items() if (value := peer_value(own)) is not None
        }
        if values or any(each.value is not None for own in results.values() for each in own):
            shown = f"{AREA}/{name}" + (f" {shape}" if shapes[name] > 1 else "")
            compared = compare_peers(values)
            unlike = {each.name: each for each in compared.outliers}
            yield from separated(
                _result(shown, peer, own, values, compared, unlike.get(peer))
                for peer, own in results.items()
            )


def peer_value(results: Sequence[Result]) -> float | None:
    """The median of a peer's runs; NaN where it failed without a number, None where not judged."""
    judged = [each for each in results if each.verdict is not Verdict.INCONCLUSIVE]
    values = [float(each.value) for each in judged if isinstance(each.value, int | float)]
    if values:
        return median(values)
    return math.nan if any(each.verdict in FAILING for each in judged) else None


def _result(
    shown: str,
    peer: str,
    own: Sequence[Result],
    values: dict[str, float],
    compared: Peers,
    outlier: Outlier | None,
) -> Result:
    value = values.get(peer)
    unit = next((each.unit for each in own if each.unit is not None), None)
    verdict, reason = Verdict.PASS, f"like its {len(values) - 1} peers"
    wrong = next((each for each in own if cause_of(each) is not None), None)
    if wrong is not None:
        verdict, reason = Verdict.FAIL, wrong.reason
    elif value is None:
        reasons = dict.fromkeys(each.reason for each in own if each.reason)
        verdict, reason = Verdict.INCONCLUSIVE, "; ".join(reasons) or "it was not measured"
    elif not compared.judged:
        verdict, reason = Verdict.UNVERIFIED, compared.reason
    elif outlier is not None:
        verdict = Verdict.FAIL
        reason = Peers(compared.median, compared.mad, (outlier,), True).sentence
    number = value is not None and math.isfinite(value)
    fields: dict[str, Any] = {"value": value, "unit": unit} if number else {}
    return Result(
        id=shown,
        suite=SUITE,
        area=AREA,
        verdict=verdict,
        reason=reason,
        device=peer or None,
        statistic="median" if number else None,
        n=len(own) if number else None,
        expected=peer_expectation(compared, unit) if unit is not None else None,
        does_not_show="how fast it should be: it is only compared with its peers",
        extra={
            "peers_median": compared.median,
            "peers_mad": compared.mad,
            **(
                wrong_value(digest_of(wrong), cause_of(wrong) or Cause.OPEN)
                if wrong is not None
                else {}
            ),
        },
        **fields,
    )


def _versions(runs: Sequence[Run]) -> Iterator[Result]:
    """A result for each host whose version of something is not that of most hosts."""
    names = sorted({name for run in runs for name in run.info.versions})
    differing: dict[str, list[str]] = {}
    for name in names:
        of_hosts = {run.info.host: run.info.versions.get(name) for run in runs}
        usual = majority(list(of_hosts.values()))
        for host, version in of_hosts.items():
            if usual.decided and version != usual.usual:
                text = f"{name} is {version}, and {usual.votes} hosts have {usual.usual}"
                differing.setdefault(host, []).append(text)
    for host, texts in differing.items():
        yield Result(
            id=f"{AREA}/versions",
            suite=SUITE,
            area=AREA,
            verdict=Verdict.UNVERIFIED,
            reason="; ".join(texts),
            value="differs",
            expected=exactly("alike", "what most hosts have"),
            device=host or None,
        )


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
