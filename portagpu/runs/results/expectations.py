"""Expected values as ``Result.expected`` holds them, and values and expectations in words.

An expectation has ReFrame's form: a reference, and bounds as signed fractions of it. If the value
is text (a product, a version, "on"), so is the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.base import units

if TYPE_CHECKING:
    from collections.abc import Mapping


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
