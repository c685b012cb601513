"""From the ``facts`` tables of a file to facts: type, unit, range, source, and the cross-checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from portagpu.errors import TargetError
from portagpu.target.model import Confidence, Fact, Scope
from portagpu.target.rules import violations
from portagpu.target.schema import KEYS, Kind
from portagpu.target.table import Table, one_line, shown, unknown

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Mapping

    from portagpu.target.model import FactValue
    from portagpu.target.schema import Key

_TILE: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){2}")
_FACT_KEYS: Final = ("value", "unit", "source", "confidence", "note", "overrides_family")


@dataclass(frozen=True, slots=True)
class Source:
    """Where facts come from; ``kind`` is "vendor-doc", "vendor-code", "executed" and so on."""

    id: str
    kind: str
    where: str
    version: str = ""
    retrieved: datetime.date | None = None
    note: str = ""


def named_sources(
    table: Table, sources: Mapping[str, Source], key: str = "source"
) -> tuple[str, ...]:
    named = table.texts(key)
    for each in named:
        if each not in sources:
            table.fail(key, "source-resolves", unknown(each, tuple(sources)))
    return named


def _value(table: Table, key: Key) -> FactValue:
    """The value, of the type and within the range of ``key``."""
    value = table.required("value")
    wrong = f"must be {key.kind}, not {shown(value)}"
    if key.kind is Kind.BOOLEAN:
        if not isinstance(value, bool):
            table.fail("value", "type", wrong)
        return value
    if key.kind in (Kind.TEXT, Kind.CHOICE):
        text = table.text("value")
        return table.choice("value", key.choices) if key.kind is Kind.CHOICE else text
    if key.kind is Kind.TILE:
        if not isinstance(value, str) or not _TILE.fullmatch(value):
            table.fail("value", "type", wrong)
        return value
    if key.kind in (Kind.INTEGER, Kind.NUMBER):
        return _scalar(table, key, value, wrong)
    if not isinstance(value, list) or not value:
        table.fail("value", "type", wrong)
    if key.kind is Kind.INTEGERS:
        numbers = [int(_scalar(table, key, each, wrong)) for each in value]
        if sorted(set(numbers)) != numbers:
            table.fail("value", "ascending", "must ascend, each once")
        return tuple(numbers)
    texts = table.texts("value")
    for each in texts:
        if key.kind is Kind.CHOICES and each not in key.choices:
            table.fail("value", "choice", unknown(each, key.choices))
    return texts


def _scalar(table: Table, key: Key, value: object, wrong: str) -> int | float:
    integer = key.kind in (Kind.INTEGER, Kind.INTEGERS)
    allowed = int if integer else int | float
    if isinstance(value, bool) or not isinstance(value, allowed):
        table.fail("value", "type", wrong)
    # written so that a NaN, which compares with nothing, is outside
    if not key.low <= value <= key.high:
        table.fail("value", "range", f"{shown(value)} is outside {key.low:g} to {key.high:g}")
    return value


def _unit(table: Table, key: Key) -> str | None:
    unit = table.data.get("unit")
    if not key.units:
        if unit is not None:
            table.fail("unit", "unit", f"has no unit, not {shown(unit)}")
        return None
    if unit is None:
        table.fail("unit", "unit", f"is missing; it must be {' or '.join(key.units)}")
    if unit not in key.units:
        table.fail("unit", "unit", f"must be {' or '.join(key.units)}, not {shown(unit)}")
    return str(unit)


def _leaves(file: str, path: str, data: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The facts in nested tables, each a table that has a value, by dotted key."""
    for name, inner in data.items():
        key = f"{path}.{name}" if path else name
        if not isinstance(inner, dict):
            raise TargetError(
                one_line(
                    f"{file}: facts.{key}: must be a table {{ value, unit, source, confidence }}, "
                    f"not {shown(inner)} (rule type)"
                )
            )
        if "value" in inner or key in KEYS:
            yield key, inner
        else:
            yield from _leaves(file, key, inner)


def read_facts(
    top: Table, scope: Scope, sources: Mapping[str, Source], family: Mapping[str, Fact]
) -> Mapping[str, Fact]:
    facts = dict(family)
    for name, data in _leaves(top.file, "", top.table("facts")):
        if name not in KEYS:
            top.fail(f"facts.{name}", "unknown-key", unknown(name, KEYS))
        key = KEYS[name]
        table = Table(top.file, f"facts.{name}", data, _FACT_KEYS)
        if key.product and scope is Scope.FAMILY:
            top.fail(
                f"facts.{name}", "family-scope", "belongs to a product, not to an architecture"
            )
        fact = Fact(
            key=name,
            value=_value(table, key),
            unit=_unit(table, key),
            source=named_sources(table, sources),
            confidence=table.word("confidence", Confidence),
            note=table.text("note", ""),
            scope=scope,
        )
        if not fact.source and fact.confidence is not Confidence.UNVERIFIED:
            table.fail(
                "source", "source", f"is missing; only {Confidence.UNVERIFIED.value!r} has none"
            )
        if fact.confidence is Confidence.DERIVED and not fact.note:
            table.fail("note", "derivation", "is missing; a derived fact says how it was computed")
        _contradiction(table, fact, family.get(name))
        facts[name] = fact
    for violation in violations(facts):
        top.fail(f"facts.{violation.key}", violation.rule, violation.message)
    return MappingProxyType(facts)


def _contradiction(table: Table, fact: Fact, inherited: Fact | None) -> None:
    """A product differs from its family only where it says why, and never in its warp size."""
    why = table.text("overrides_family", "") if "overrides_family" in table.data else ""
    same = inherited is not None and (inherited.value, inherited.unit) == (fact.value, fact.unit)
    if why and (inherited is None or same):
        table.fail("overrides_family", "family-contradiction", "there is nothing to override")
    if inherited is not None and not same and (not why or fact.key == "exec.wave_size_default"):
        table.fail(
            "value",
            "family-contradiction",
            f"{shown(fact.value)} contradicts its family, which has {shown(inherited.value)}; "
            "say why in overrides_family",
        )
