"""Results in words, the same on a terminal and in a report; and the expected values among them.

An expectation has ReFrame's form: a reference, and bounds as signed fractions of it. If the value
is text (a product, a version, "on"), so is the reference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base import units
from portagpu.base.text import one_line
from portagpu.runs.results.advice import check_of, gravest_first, severity_of
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.runs.results.advice import Check
    from portagpu.runs.results.result import Result


def exactly(reference: float | str, source: str, unit: str = "1") -> dict[str, Any]:
    """Exactly the reference; ``unit`` applies to a number."""
    if isinstance(reference, str):
        return {
            "reference": reference,
            "lower": None,
            "upper": None,
            "unit": None,
            "source": source,
        }
    return _number(reference, source, unit, lower=0.0, upper=0.0)


def at_least(reference: float, source: str, unit: str = "1") -> dict[str, Any]:
    """The reference or more."""
    return _number(reference, source, unit, lower=0.0, upper=None)


def at_most(reference: float, source: str, unit: str = "1") -> dict[str, Any]:
    """The reference or less."""
    return _number(reference, source, unit, lower=None, upper=0.0)


def within(reference: float, fraction: float, source: str, unit: str = "1") -> dict[str, Any]:
    """The reference, plus or minus that fraction of it."""
    return _number(reference, source, unit, lower=-min(fraction, 1.0), upper=fraction)


def _number(
    reference: float, source: str, unit: str, *, lower: float | None, upper: float | None
) -> dict[str, Any]:
    return {
        "reference": reference,
        "lower": lower,
        "upper": upper,
        "unit": unit,
        "source": source,
    }


def bounds(expected: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The lowest and highest accepted value, in the expectation's unit; None where it has no bound.

    ``lower`` and ``upper`` are signed fractions of ``reference``, as in ReFrame's performance
    references: the bounds are ``reference * (1 + lower)`` and ``reference * (1 + upper)``. A
    reference that is text has no bounds.
    """
    reference = expected["reference"]
    lower, upper = (
        None if expected[side] is None else reference * (1 + expected[side])
        for side in ("lower", "upper")
    )
    return lower, upper


def value_in_words(value: float | str | None, unit: str | None) -> str:
    """A value for a reader: "13.2 GB/s", "off"; empty if there is none."""
    if value is None or isinstance(value, str):
        return value or ""
    return units.quantity(value, unit)


def expected_in_words(expected: Mapping[str, Any]) -> str:
    """What was accepted: "16 to 23 GB/s", "at least 8", "0", "on"."""
    reference, unit = expected["reference"], expected["unit"]
    if isinstance(reference, str):
        return reference
    lower, upper = bounds(expected)
    if lower is not None and upper is not None:
        high = units.quantity(upper, unit)
        low = units.quantity(lower, unit, like=upper)
        return high if lower == upper else f"{low.partition(' ')[0]} to {high}"
    if lower is not None:
        return f"at least {units.quantity(lower, unit)}"
    if upper is not None:
        return f"at most {units.quantity(upper, unit)}"
    return "any value"


_COUNTED: Final = {
    Verdict.ERROR: "broke",
    Verdict.FAIL: "failed",
    Verdict.INCONCLUSIVE: "not judged",
    Verdict.PASS: "passed",
    Verdict.UNVERIFIED: "unverified",
    Verdict.SKIP: "skipped",
}


def headline(results: Sequence[Result]) -> str:
    """One line for a gate: its gravest failure or first unjudged result, and the counts."""
    if len(results) == 1:
        return _reason_with_device(results[0])
    open_ = (each for each in results if each.verdict is Verdict.INCONCLUSIVE)
    shown = next(iter([*gravest_first(results), *open_]), None)
    counts = Counter(result.verdict for result in results)
    if shown is not None:
        counts[shown.verdict] -= 1
    listed = ", ".join(
        f"{count} {'more ' if shown and verdict is shown.verdict else ''}{word}"
        for verdict, word in _COUNTED.items()
        if (count := counts[verdict])
    )
    if shown is None:
        return listed
    return f"{_reason_with_device(shown)} ({listed})" if listed else _reason_with_device(shown)


def tally(results: Iterable[Result]) -> str:
    """ "2 failed, 3 passed", the worst first."""
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{counts[each]} {word}" for each, word in _COUNTED.items() if counts[each])


def _reason_with_device(result: Result) -> str:
    """The reason on one line, with the device's name in front unless it starts with it."""
    reason = one_line(result.reason)
    has_name = result.device is None or reason.startswith(result.device)
    return reason if has_name else f"{result.device}: {reason}"


def without_device(result: Result) -> str:
    """The reason on one line, without the device's name before it."""
    reason = one_line(result.reason)
    return reason.removeprefix(f"{result.device}: ") if result.device else reason


def found_in_words(result: Result) -> str:
    """ "found 8, expected 16"; without the part that the result does not have."""
    parts = []
    if result.value is not None:
        parts.append(f"found {value_in_words(result.value, result.unit)}")
    if result.expected is not None:
        parts.append(f"expected {expected_in_words(result.expected)}")
    return ", ".join(parts)


def further_figures(result: Result) -> list[str]:
    """The figures of ``extra.figures`` that do not judge, each with its source and why."""
    return [
        f"{expected_in_words(each)} ({each['source']}): {_OUTCOMES[each['met']]}"
        f"{each['not_judged'] or 'it judges'}"
        for each in result.extra.get("figures", ())
        if not each["judges"]
    ]


_OUTCOMES: Final = {True: "met; ", False: "missed; ", None: ""}


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of one severity and check; results in a tuple of ``groups`` differ only in device
    or parameters."""

    title: str
    check: Check | None
    groups: tuple[tuple[Result, ...], ...]


def content_key(result: Result) -> tuple[str, str, str, str]:
    """What a result says apart from its device and its parameters: verdict, id, reason, found."""
    name = result.id.partition("[")[0]
    return result.verdict, name, without_device(result), found_in_words(result)


def failures(results: Iterable[Result]) -> list[Failures]:
    """Every failure, the gravest first."""
    groups: dict[tuple[str, Check | None], dict[tuple[str, ...], list[Result]]] = {}
    for each in gravest_first(results):
        same = groups.setdefault((severity_of(each).title, check_of(each)), {})
        same.setdefault(content_key(each), []).append(each)
    return [
        Failures(title, check, tuple(map(tuple, same.values())))
        for (title, check), same in groups.items()
    ]


def failures_text(results: Iterable[Result]) -> list[str]:
    """Lines about every failure: what was found and expected, and what to do.

    The last line is empty. The list is empty if nothing failed.
    """
    lines, above, count = [], "", 0
    for group in failures(results):
        lines += ["", f"{group.title}:"] if group.title != above else []
        above = group.title
        for members in group.groups:
            first, count = members[0], count + len(members)
            lines.append(f"  {first.verdict:<6}{ids_and_devices(members)}: {without_device(first)}")
            found = found_in_words(first)
            lines += [f"        {found}"] if found else []
        lines += [f"  next: {group.check.do}"] if group.check is not None else []
    if not lines:
        return []
    return ["1 failure:" if count == 1 else f"{count} failures, the gravest first:", *lines, ""]


_IDS: Final = 3
"""Further ids, which differ only in their parameters, are counted."""


def ids_and_devices(results: Sequence[Result]) -> str:
    """The first ids of ``results``, and every device: "links/hive on cuda:0, cuda:3"."""
    ids = list(dict.fromkeys(each.id for each in results))
    more = f" and {len(ids) - _IDS} more" if len(ids) > _IDS else ""
    return f"{', '.join(ids[:_IDS])}{more}{on_devices(results)}"


def on_devices(results: Iterable[Result]) -> str:
    """ " on cuda:0, cuda:3"; empty if no result names a device."""
    devices = dict.fromkeys(each.device for each in results if each.device)
    return f" on {', '.join(devices)}" if devices else ""
