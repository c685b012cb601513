"""What a measured value means: held against what the target expects and what it can reach at most.

1. A value above the most that the target's facts allow, by more than 2 %, is an ERROR: the
   measurement is wrong, and its number is not kept.
2. What the target states of the case judges it. Inside is PASS. Outside is FAIL where the vendor or
   this project vouches for the figure and its software range holds here, else UNVERIFIED.
3. Without a figure that is about this case it is UNVERIFIED.
4. With a spread of more than 10 % all of these are INCONCLUSIVE: half of the samples are further
   off the median than the 10 % that an expectation usually allows, so that another run may say
   otherwise.

A figure is about a case if metric, algorithm, ranks, size, element type and, for products, shape,
operands and memory layout are those that its source states. Of those that are:

1. The vendor's and this project's bind, if their software range holds here. Both have to be met.
2. Where none binds, all are hints, which never fail.
3. Of one standing and algorithm, the newest source judges: a vendor's later page replaces an
   earlier one. Of one day, it is the stricter figure.
4. Which algorithm ran is the library's choice, so meeting the figure of any is enough.

The others are kept next to the result, so that sources that disagree are all shown.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.units import share_apart
from portagpu.facts.targets.expect import METRICS, NoLimit, limit
from portagpu.facts.targets.model import Authority, Confidence
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import at_least, at_most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.base.stats import Summary
    from portagpu.facts.targets import Expectation, Target
    from portagpu.suites.performance.cases import BenchCase

_HOLDS: Final = {
    "==": lambda order: order == 0,
    "!=": lambda order: order != 0,
    ">=": lambda order: order >= 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    "<": lambda order: order < 0,
}
_ORDER: Final = (Verdict.PASS, Verdict.UNVERIFIED, Verdict.FAIL)
_UNDATED: Final = datetime.date.min
_OPERANDS: Final = {"real": "real numbers", "whole": "a few whole numbers"}
_CONTIGUOUS: Final = "operands that lie differently in memory"
ABOVE_PEAK: Final = 1.02
WIDEST_SPREAD: Final = 0.1
"""The largest median absolute deviation, as a share of the median, of a value that is judged."""


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


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _compare_versions(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = list(zip_longest(one, other, fillvalue=0))
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    return (left > right) - (left < right)


@dataclass(frozen=True, slots=True)
class Figure:
    """One expectation of a case, and what the value means to it.

    ``other`` says of what else it speaks, where it is of the same problem but other operands; such
    a figure is shown and never judges. ``binds`` says that missing it is a failure.
    """

    expectation: Expectation
    judgement: Judgement
    binds: bool
    other: str = ""


def figures_of(
    stated: Sequence[Expectation],
    case: BenchCase,
    summary: Summary,
    size_bytes: int | None,
    versions: Mapping[str, str | None],
) -> list[Figure]:
    """The figures among ``stated`` that speak of the problem of ``case``, in the target's order."""
    found = []
    for each in stated:
        if not _same_problem(each, case, size_bytes):
            continue
        other = _other_operands(each, case)
        judgement, binds = _compare(each, case, summary, versions)
        found.append(Figure(each, judgement, binds and not other, other))
    return found


def judging(figures: Sequence[Figure]) -> list[list[Figure]]:
    """The figures that judge: in each list, meeting one is enough; every list has to be met."""
    fitting = [each for each in figures if not each.other]
    binding = [each for each in fitting if each.binds]
    groups: dict[Authority | None, dict[str, Figure]] = {}
    for each in binding or fitting:
        authority = each.expectation.authority if binding else None
        newest = groups.setdefault(authority, {})
        kept = newest.get(each.expectation.algorithm)
        if kept is None or _rank(each) > _rank(kept):
            newest[each.expectation.algorithm] = each
    return [list(group.values()) for group in groups.values()]


def verdict_of_figures(figures: Sequence[Figure]) -> Judgement | None:
    """What the figures that judge say together; None where none is about the case."""
    groups = judging(figures)
    if not groups:
        return None
    best = [min(group, key=_gravity) for group in groups]
    return max(best, key=_gravity).judgement


def figures_to_show(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Every figure as ``extra.figures`` has it, where there are several; else none.

    Next to the keys of ``Result.expected`` it has ``met`` (true, false; null where it is of other
    operands), ``judges`` and ``not_judged``, which says why it does not judge.
    """
    if len(figures) < 2:
        return []
    chosen = [id(each) for group in judging(figures) for each in group]
    return [
        {
            **expected_of(each.expectation),
            "met": None if each.other else each.judgement.verdict is Verdict.PASS,
            "judges": id(each) in chosen,
            "not_judged": "" if id(each) in chosen else _reason_not_judged(each, figures),
        }
        for each in figures
    ]


def expected_of(expectation: Expectation) -> dict[str, Any]:
    """The expectation as ``Result.expected`` has it."""
    software = ", ".join(f"{name} {range_}" for name, range_ in expectation.software)
    source = ", ".join(expectation.source) or "own measurement"
    return {
        "reference": expectation.reference,
        "lower": expectation.lower,
        "upper": expectation.upper,
        "unit": expectation.unit,
        "source": f"{source}, {expectation.dated}" if expectation.dated else source,
        "statistic": expectation.statistic,
        "shape": expectation.shape,
        "algorithm": expectation.algorithm,
        "software": software or None,
        "confidence": str(expectation.authority),
    }


def _same_problem(expectation: Expectation, case: BenchCase, size_bytes: int | None) -> bool:
    """Whether it is of this variant, number of ranks, size, element type and shape."""
    if case.algorithm is not None and expectation.algorithm != case.algorithm:
        return False
    if expectation.ranks is not None and expectation.ranks != case.world:
        return False
    if expectation.size_bytes is not None and expectation.size_bytes != size_bytes:
        return False
    if expectation.dtype is not None and expectation.dtype != _shape_dtype(case):
        return False
    if case.dtype is not None:
        return expectation.shape == _product_shape(case)
    return True


def _shape_dtype(case: BenchCase) -> object:
    return case.shape.get("dtype") if isinstance(case.shape, Mapping) else None


def _product_shape(case: BenchCase) -> str:
    """ "MxNxK"; empty for a search, whose shape nobody can expect."""
    edges = [case.arguments.get(edge) for edge in ("m", "n", "k")]
    return "" if None in edges else "x".join(map(str, edges))


def _other_operands(expectation: Expectation, case: BenchCase) -> str:
    """Which operands it is about, where the product of ``case`` has others; else empty."""
    if expectation.operands is not None:
        # products here are of random normal numbers, those of integers of every integer
        real = case.dtype is not None and not case.dtype.startswith("int")
        if not (real and expectation.operands == "real"):
            return _OPERANDS[expectation.operands]
    laid_out = case.arguments.get("contiguous")
    if expectation.contiguous is not None and expectation.contiguous != laid_out:
        return _CONTIGUOUS
    return ""


def _compare(
    expectation: Expectation,
    case: BenchCase,
    summary: Summary,
    versions: Mapping[str, str | None],
) -> tuple[Judgement, bool]:
    """What the value means to one expectation, and whether it can fail by it."""
    expected = expected_of(expectation)
    value = summary.statistic(expectation.statistic)
    if value is None:
        reason = f"the expectation is of the {expectation.statistic}, which is not measured"
        return Judgement(Verdict.UNVERIFIED, reason, expected=expected), False
    other = other_software(expectation, versions)
    binds = not other and expectation.authority is not Authority.THIRD_PARTY
    compared = expectation.judge(value)
    source = expected["source"]
    if compared.inside:
        return Judgement(Verdict.PASS, f"as {source} has it", expected=expected), binds
    bound = compared.low if compared.side == "below" else compared.high
    reason = (
        f"the {expectation.statistic} of {value:.6g} {case.unit} is {compared.side} "
        f"{_number(bound)} {case.unit} ({source})"
    )
    if binds:
        return Judgement(Verdict.FAIL, reason, expected=expected), True
    hint = other or "a third party's figure is a hint"
    return Judgement(Verdict.UNVERIFIED, f"{reason}; {hint}", expected=expected), False


def _number(value: float | None) -> str:
    return "its bound" if value is None else f"{value:.6g}"


def _gravity(figure: Figure) -> int:
    return _ORDER.index(figure.judgement.verdict)


def _rank(figure: Figure) -> tuple[datetime.date, float]:
    low = figure.expectation.low
    return figure.expectation.dated or _UNDATED, float("-inf") if low is None else low


def _reason_not_judged(figure: Figure, figures: Sequence[Figure]) -> str:
    if figure.other:
        return f"it is of {figure.other}"
    if not figure.binds and any(each.binds for each in figures):
        return "a hint, and another figure binds"
    return "a newer or stricter figure judges"


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
        reason=f"the spread of {share_apart(share, WIDEST_SPREAD)} is too wide to judge by: more "
        f"than {WIDEST_SPREAD:.0%}",
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
