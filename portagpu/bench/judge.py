"""What a measured value means: held against what the target expects and what it can reach at most.

1. A value above the most that the target's facts allow, by more than 2 %, is an ERROR: the
   measurement is wrong, and its number is not kept.
2. Inside an expectation is PASS. Outside it is FAIL where the vendor or this project stands behind
   the expectation and its software range holds here, else UNVERIFIED.
3. Without an expectation that speaks of this case it is UNVERIFIED.
4. With a spread of more than 10 % all of these are INCONCLUSIVE: half of the samples are further
   off the median than the 10 % that an expectation usually allows, so that another run may say
   otherwise.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from portagpu.results.expectations import at_least, at_most
from portagpu.results.judgement import Judgement
from portagpu.results.verdicts import Verdict
from portagpu.target.limits import METRICS, NoLimit, limit
from portagpu.target.model import Authority, Confidence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.bench.cases import BenchCase
    from portagpu.stats import Summary
    from portagpu.target import Expectation, Target

ABOVE_PEAK: Final = 1.02
WIDEST_SPREAD: Final = 0.1
"""The largest median absolute deviation, as a share of the median, of a value that is judged."""


def judge(
    case: BenchCase,
    summary: Summary,
    target: Target | None,
    *,
    size_bytes: int | None = None,
    versions: Mapping[str, str | None] | None = None,
    busy: str = "",
) -> Judgement:
    """What ``summary``, in the unit of ``case``, means on ``target``.

    ``size_bytes`` is the size of the value where the case has one; ``versions`` is what runs.
    ``busy`` says that other work runs on the machine: then what is too slow is UNVERIFIED.
    """
    found = _judge_median(case, summary, target, size_bytes, versions or {}, busy)
    share = summary.spread / summary.median if summary.median else 0.0
    if found.verdict is Verdict.ERROR or share <= WIDEST_SPREAD:
        return found
    return replace(
        found,
        verdict=Verdict.INCONCLUSIVE,
        reason=f"the spread of {share:.0%} is too wide to judge by: more than {WIDEST_SPREAD:.0%}",
    )


def _judge_median(
    case: BenchCase,
    summary: Summary,
    target: Target | None,
    size_bytes: int | None,
    versions: Mapping[str, str | None],
    busy: str,
) -> Judgement:
    if case.least is not None:
        return _judge_by_least(case, case.least, summary)
    if target is None:
        return Judgement(Verdict.UNVERIFIED, "this machine matches no target with expectations")
    most = upper_limit(case, target)
    if most is not None and (share := summary.median / most[0]) > ABOVE_PEAK:
        return Judgement(
            Verdict.ERROR,
            f"the measurement is wrong: {summary.median:.6g} {case.unit} is {share:.0%} of "
            f"the {most[0]:.6g} {case.unit} that {target.id} can reach ({most[1]})",
            expected=at_most(most[0], f"{target.id}: {most[1]}", case.unit),
        )
    stated = target.expectations(case.metric)
    fitting = [each for each in stated if _applies_to(each, case, size_bytes)]
    if not fitting:
        reason = f"{target.id} states no expectation of this measure"
        if stated:
            stated_text = " or ".join(_expectation_text(each) for each in stated)
            reason = f"{target.id} states {case.metric} only for {stated_text}"
        return Judgement(Verdict.UNVERIFIED, reason)
    judgements = [_judge_by_expectation(each, case, summary, versions) for each in fitting]
    # which algorithm ran is the library's choice: being inside any of them is enough
    best = min(judgements, key=lambda judgement: _ORDER.index(judgement.verdict))
    least = best.expected["reference"] if best.expected is not None else 0.0
    if busy and best.verdict is Verdict.FAIL and summary.median < least:
        return replace(best, verdict=Verdict.UNVERIFIED, reason=f"{best.reason}; {busy}")
    return best


def share_of_limit(case: BenchCase, summary: Summary, target: Target | None) -> float | None:
    """The median's share of the most that ``target`` can reach; None where no limit is known."""
    most = upper_limit(case, target) if target is not None and case.least is None else None
    return summary.median / most[0] if most is not None else None


def _judge_by_least(case: BenchCase, least: float, summary: Summary) -> Judgement:
    """Judge by the least value that this project asks of its own code on any hardware."""
    source = "what portagpu's kernels are held to"
    expected = {**at_least(least, source, case.unit), "statistic": "median"}
    if summary.median >= least:
        return Judgement(Verdict.PASS, f"at least {least:g}, {source}", expected=expected)
    reason = f"the median of {summary.median:.3g} is below {least:g}, {source}"
    return Judgement(Verdict.FAIL, reason, expected=expected)


_ORDER: Final = (Verdict.PASS, Verdict.UNVERIFIED, Verdict.FAIL)


def upper_limit(case: BenchCase, target: Target) -> tuple[float, str] | None:
    """(the most that the target's facts allow, the rule); None where they do not say.

    Facts of confidence "unverified" do not count. Where the algorithm that ran is not known it is
    the most that any can reach.
    """
    metric = METRICS.get(case.metric)
    if metric is None:
        return None
    if case.dtype is not None:
        peak = target.peak(case.dtype)
        if peak is None or peak.confidence is Confidence.UNVERIFIED:
            return None
        return peak.value, f"its dense peak in {peak.dtype}"
    facts = {
        key: fact
        for key, fact in target.facts.items()
        if fact.confidence is not Confidence.UNVERIFIED
    }
    found = []
    for algorithm in metric.algorithms:
        try:
            most = limit(facts, metric, algorithm, case.world if metric.ranks else None)
        except NoLimit:
            continue
        found.append((most.value, most.rule))
    return max(found, default=None)


def _applies_to(expectation: Expectation, case: BenchCase, size_bytes: int | None) -> bool:
    """Whether the expectation is about this variant, number of ranks, size and shape."""
    if case.algorithm is not None and expectation.algorithm != case.algorithm:
        return False
    if expectation.ranks is not None and expectation.ranks != case.world:
        return False
    if expectation.size_bytes is not None and expectation.size_bytes != size_bytes:
        return False
    if case.dtype is not None:
        return expectation.shape == _product_shape(case)
    return True


def _product_shape(case: BenchCase) -> str:
    """ "MxNxK"; empty for a search, whose shape nobody can expect."""
    edges = [case.arguments.get(edge) for edge in ("m", "n", "k")]
    return "" if None in edges else "x".join(map(str, edges))


def _expectation_text(expectation: Expectation) -> str:
    parts = [expectation.shape, expectation.algorithm]
    return f"{', '.join(part for part in parts if part)}"


def _judge_by_expectation(
    expectation: Expectation,
    case: BenchCase,
    summary: Summary,
    versions: Mapping[str, str | None],
) -> Judgement:
    expected = expected_of(expectation)
    value = summary.statistic(expectation.statistic)
    if value is None:
        reason = f"the expectation is of the {expectation.statistic}, which is not measured"
        return Judgement(Verdict.UNVERIFIED, reason, expected=expected)
    compared = expectation.judge(value)
    source = expected["source"]
    if compared.inside:
        return Judgement(Verdict.PASS, f"as {source} has it", expected=expected)
    bound = compared.low if compared.side == "below" else compared.high
    reason = (
        f"the {expectation.statistic} of {value:.6g} {case.unit} is {compared.side} "
        f"{_number(bound)} {case.unit} ({source})"
    )
    other = other_software(expectation, versions)
    if other:
        return Judgement(Verdict.UNVERIFIED, f"{reason}; {other}", expected=expected)
    if expectation.authority is Authority.THIRD_PARTY:
        return Judgement(
            Verdict.UNVERIFIED, f"{reason}; a third party's figure is a hint", expected=expected
        )
    return Judgement(Verdict.FAIL, reason, expected=expected)


def _number(value: float | None) -> str:
    return "its bound" if value is None else f"{value:.6g}"


def expected_of(expectation: Expectation) -> dict[str, Any]:
    """The expectation as ``Result.expected`` has it."""
    software = ", ".join(f"{name} {range_}" for name, range_ in expectation.software)
    return {
        "reference": expectation.reference,
        "lower": expectation.lower,
        "upper": expectation.upper,
        "unit": expectation.unit,
        "source": ", ".join(expectation.source) or "own measurement",
        "statistic": expectation.statistic,
        "shape": expectation.shape,
        "algorithm": expectation.algorithm,
        "software": software or None,
        "confidence": str(expectation.authority),
    }


def other_software(expectation: Expectation, versions: Mapping[str, str | None]) -> str:
    """In what the software here differs from the expectation's; empty where it does not."""
    for name, range_ in expectation.software:
        version = versions.get(name)
        if version is None:
            return f"it was obtained with {name} {range_}, and the version here is unknown"
        if not within(version, range_):
            return f"it was obtained with {name} {range_}, and here is {version}"
    return ""


def within(version: str, specifier: str) -> bool:
    """Whether ``version`` ("2.13.0+cpu") is in ``specifier`` (">=2.9,<3", "==6.3.*").

    Compares the numbers of the release only, with zeros for those that are missing.
    """
    release = _release(version)
    for part in specifier.split(","):
        match = re.fullmatch(r"\s*(==|!=|>=|<=|>|<)\s*([\d.]+?)(\.\*)?\s*", part)
        if match is None or not release:
            return False
        wanted = _release(match[2])
        here = release[: len(wanted)] if match[3] else release
        if not _HOLDS[match[1]](_compare_versions(here, wanted)):
            return False
    return True


_HOLDS: Final = {
    "==": lambda order: order == 0,
    "!=": lambda order: order != 0,
    ">=": lambda order: order >= 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    "<": lambda order: order < 0,
}


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _compare_versions(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = list(zip_longest(one, other, fillvalue=0))
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    return (left > right) - (left < right)
