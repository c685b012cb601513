"""Facts from the ``facts`` tables of a file, with checked type, unit, range and source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import TargetError
from portagpu.facts.targets.model import Confidence, Fact, Scope
from portagpu.facts.targets.rules import violations
from portagpu.facts.targets.schema import KEYS, Kind
from portagpu.facts.targets.table import Table, one_line, short_repr, unknown_word

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Mapping

    from portagpu.facts.targets.model import FactValue
    from portagpu.facts.targets.schema import Key

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
    dated: datetime.date | None = None
    """The day of that version; None where it is not known."""


def source_ids(table: Table, sources: Mapping[str, Source], key: str = "source") -> tuple[str, ...]:
    named = table.texts(key)
    for each in named:
        if each not in sources:
            table.fail(key, "source-resolves", unknown_word(each, tuple(sources)))
    return named


def _read_value(table: Table, key: Key) -> FactValue:
    """The value, of the type and within the range of ``key``."""
    value = table.required_value("value")
    wrong = f"must be {key.kind}, not {short_repr(value)}"
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
        return _read_scalar(table, key, value, wrong)
    if not isinstance(value, list) or not value:
        table.fail("value", "type", wrong)
    if key.kind is Kind.INTEGERS:
        numbers = [int(_read_scalar(table, key, each, wrong)) for each in value]
        if sorted(set(numbers)) != numbers:
            table.fail("value", "ascending", "must ascend, each once")
        return tuple(numbers)
    texts = table.texts("value")
    for each in texts:
        if key.kind is Kind.CHOICES and each not in key.choices:
            table.fail("value", "choice", unknown_word(each, key.choices))
    return texts


def _read_scalar(table: Table, key: Key, value: object, wrong: str) -> int | float:
    integer = key.kind in (Kind.INTEGER, Kind.INTEGERS)
    allowed = int if integer else int | float
    if isinstance(value, bool) or not isinstance(value, allowed):
        table.fail("value", "type", wrong)
    # written so that a NaN, which compares with nothing, is outside
    if not key.low <= value <= key.high:
        table.fail("value", "range", f"{short_repr(value)} is outside {key.low:g} to {key.high:g}")
    return value


def _read_unit(table: Table, key: Key) -> str | None:
    unit = table.data.get("unit")
    if not key.units:
        if unit is not None:
            table.fail("unit", "unit", f"has no unit, not {short_repr(unit)}")
        return None
    if unit is None:
        table.fail("unit", "unit", f"is missing; it must be {' or '.join(key.units)}")
    if unit not in key.units:
        table.fail("unit", "unit", f"must be {' or '.join(key.units)}, not {short_repr(unit)}")
    return str(unit)


def _fact_tables(
    file: str, path: str, data: Mapping[str, Any]
) -> Iterable[tuple[str, dict[str, Any]]]:
    """The facts in nested tables, each a table that has a value, by dotted key."""
    for name, inner in data.items():
        key = f"{path}.{name}" if path else name
        if not isinstance(inner, dict):
            raise TargetError(
                one_line(
                    f"{file}: facts.{key}: must be a table {{ value, unit, source, confidence }}, "
                    f"not {short_repr(inner)} (rule type)"
                )
            )
        if "value" in inner or key in KEYS:
            yield key, inner
        else:
            yield from _fact_tables(file, key, inner)


def read_facts(
    top: Table, scope: Scope, sources: Mapping[str, Source], family: Mapping[str, Fact]
) -> Mapping[str, Fact]:
    facts = dict(family)
    for name, data in _fact_tables(top.file, "", top.table("facts")):
        if name not in KEYS:
            top.fail(f"facts.{name}", "unknown-key", unknown_word(name, KEYS))
        key = KEYS[name]
        table = Table(top.file, f"facts.{name}", data, _FACT_KEYS)
        if key.product and scope is Scope.FAMILY:
            top.fail(
                f"facts.{name}", "family-scope", "belongs to a product, not to an architecture"
            )
        fact = Fact(
            key=name,
            value=_read_value(table, key),
            unit=_read_unit(table, key),
            source=source_ids(table, sources),
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
        _check_against_family(table, fact, family.get(name))
        facts[name] = fact
    for violation in violations(facts):
        top.fail(f"facts.{violation.key}", violation.rule, violation.message)
    return MappingProxyType(facts)


def _check_against_family(table: Table, fact: Fact, inherited: Fact | None) -> None:
    """Check that a product states why it differs from its family, and has the same warp size."""
    why = table.text("overrides_family", "") if "overrides_family" in table.data else ""
    same = inherited is not None and (inherited.value, inherited.unit) == (fact.value, fact.unit)
    if why and (inherited is None or same):
        table.fail("overrides_family", "family-contradiction", "there is nothing to override")
    if inherited is not None and not same and (not why or fact.key == "exec.wave_size_default"):
        table.fail(
            "value",
            "family-contradiction",
            f"{short_repr(fact.value)} contradicts its family, which has "
            f"{short_repr(inherited.value)}; say why in overrides_family",
        )
