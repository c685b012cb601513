"""The figures that a target states of one case, each compared with the value, and which judge.

A figure is about a case if metric, algorithm, ranks, size, element type and, for products, shape,
operands and memory layout are those that its source states. Of those that are:

1. The vendor's and this project's bind, if their software range holds here. Both have to be met.
2. Where none binds, all are hints, which never fail.
3. Of one standing and algorithm, the newest source judges: a vendor's later page replaces an
   earlier one. Of one day, it is the stricter figure.
4. Which algorithm ran is the library's choice, so meeting the figure of any is enough.

The others are kept beside the result, so that sources that disagree are all shown.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.targets.model import Authority
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.software import other_software

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.base.stats import Summary
    from portagpu.facts.targets import Expectation
    from portagpu.suites.performance.cases import BenchCase

_ORDER: Final = (Verdict.PASS, Verdict.UNVERIFIED, Verdict.FAIL)
_UNDATED: Final = datetime.date.min
_OPERANDS: Final = {"real": "real numbers", "whole": "a few whole numbers"}
_CONTIGUOUS: Final = "operands that lie differently in memory"


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

    Beside the keys of ``Result.expected`` it has ``met`` (true, false; null where it is of other
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
            "not_judged": "" if id(each) in chosen else _why_not(each, figures),
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


def _why_not(figure: Figure, figures: Sequence[Figure]) -> str:
    if figure.other:
        return f"it is of {figure.other}"
    if not figure.binds and any(each.binds for each in figures):
        return "a hint beside a figure that binds"
    return "a newer or stricter figure judges"
