"""What a measured value means: held against what the target expects and what it can reach at most.

1. A value above the most that the target's facts allow, by more than 2 %, is an ERROR: the
   measurement is wrong, and its number is not kept.
2. What the target states of the case judges it; ``portagpu.suites.performance.figures`` says which
   figure, where
   there are several. Inside is PASS. Outside is FAIL where the vendor or this project stands behind
   the figure and its software range holds here, else UNVERIFIED.
3. Without a figure that speaks of this case it is UNVERIFIED.
4. With a spread of more than 10 % all of these are INCONCLUSIVE: half of the samples are further
   off the median than the 10 % that an expectation usually allows, so that another run may say
   otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.targets.expect import METRICS, NoLimit, limit
from portagpu.facts.targets.model import Confidence
from portagpu.runs.results.expectations import at_least, at_most
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.figures import figures_of, verdict_of_figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.base.stats import Summary
    from portagpu.facts.targets import Expectation, Target
    from portagpu.suites.performance.cases import BenchCase

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
    best = verdict_of_figures(figures_of(stated, case, summary, size_bytes, versions))
    if best is None:
        reason = f"{target.id} states no expectation of this measure"
        if stated:
            stated_text = " or ".join(dict.fromkeys(_expectation_text(each) for each in stated))
            reason = f"{target.id} states {case.metric} only for {stated_text}"
        return Judgement(Verdict.UNVERIFIED, reason)
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


def _expectation_text(expectation: Expectation) -> str:
    parts = [expectation.shape, expectation.dtype, expectation.algorithm]
    if expectation.operands:
        parts.append(f"{expectation.operands} numbers")
    if expectation.contiguous:
        parts.append(f"contiguous along {' and '.join(expectation.contiguous)}")
    return ", ".join(part for part in parts if part)
