"""Devices of one node, or of many, compared by what each measured, without reference values.

The rule is the one for the ranks of a node: ``portagpu.runs.judges.peers``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import PortagpuError
from portagpu.runs.judges.peers import Peers, compare_peers, majority, peer_expectation
from portagpu.runs.ledger import host_of
from portagpu.runs.results.advice import Cause, cause_of, digest_of, separated, wrong_value
from portagpu.runs.results.run import Result, new_run
from portagpu.runs.results.verdicts import FAILING, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.suites.performance.cases import SUITE, metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
