"""The rules of the document ``portagpu.result/1``, one for each key, for reading and writing.

``docs/results.md`` says what each key means. ``docs/result.schema.json`` is made of these rules.
"""

from __future__ import annotations

import contextlib
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    DocumentError,
    Json,
    Rule,
    bounded,
    count,
    each,
    flag,
    instant,
    name,
    not_negative,
    number,
    object_of,
    one_of,
    or_null,
    positive,
    refuse,
    text,
    values_of,
    version,
    whole,
)
from portagpu.base.errors import ResultError
from portagpu.facts.actions import Action
from portagpu.runs.results.plain import nested, plain
from portagpu.runs.results.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMA: Final = "portagpu.result/1"
MAX_DEPTH: Final = 64
"""How many lists and objects of a document may be inside one another."""
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def check_version(value: object, path: str, own: str) -> None:
    """Check that ``value`` is the schema ``own``; of a newer version of it, say what to do."""
    _checker(version(own))(value, path)


def _checker(rule: Rule) -> Callable[[object, str], Any]:
    """What reads by a rule and raises ResultError."""

    def check(value: object, path: str) -> Any:
        try:
            return rule.read(value, path)
        except DocumentError as error:
            raise ResultError(str(error)) from error

    return check


_lower_tolerance: Final = bounded("a fraction of the reference from -1 to 0, or null", -1, 0)
_upper_tolerance: Final = bounded("a fraction of the reference of at least 0, or null", 0)


def _or_words(rule: Rule) -> Rule:
    """One line of text, or what keeps the rule."""

    def read(value: Any, path: str) -> Any:
        return (name if isinstance(value, str) else rule).read(value, path)

    def fits(value: Any) -> object:
        own = (name if isinstance(value, str) else rule).fits
        return own is not None and own(value)

    return Rule(read, {"anyOf": [name.schema, rule.schema]}, fits=fits)


def _numbers_or_gaps(value: Any, path: str) -> Any:
    # a curve has hundreds: most are checked without a call for each
    if type(value) is list and {float, int}.issuperset(map(type, value)):
        # the sum of finite numbers may be too large, which the slow way then accepts
        with contextlib.suppress(OverflowError):
            if isfinite(sum(map(abs, value))):
                return value
    return each(or_null(number)).read(value, path)


numbers_or_gaps: Final = Rule(_numbers_or_gaps, each(or_null(number)).schema)
"""A list of finite numbers, and of null where one is missing."""


def any_of(*rules: Rule, what: str) -> Rule:
    """What keeps one of the rules; ``what`` says in messages what it must be."""

    def read(value: Any, path: str) -> Any:
        for rule in rules:
            # an error would be written for each rule that is not the one
            if rule.fits is not None and not rule.fits(value):
                continue
            try:
                return rule.read(value, path)
            except DocumentError:
                continue
        raise refuse(path, what, value)

    return Rule(read, {"anyOf": [rule.schema for rule in rules]})


def if_then(when: dict[str, Json], then: dict[str, Json]) -> dict[str, Json]:
    """The JSON Schema of an object whose keys fit ``then`` where its keys fit ``when``."""
    return {"if": {"properties": when}, "then": {"properties": then}}


shape: Final = any_of(
    text,
    each(whole),
    values_of(any_of(whole, text, what="a whole number or text")),
    what="text, a list of whole numbers, or an object of them",
)
"""The size of a problem: "4096x4096", [4096, 4096], {"m": 4096, "dtype": "fp32"}."""


def _expected_together(document: Any, path: str) -> None:
    words = isinstance(document["reference"], str)
    for key in ("lower", "upper", "unit"):
        if words and document[key] is not None:
            raise DocumentError(f"{path}.{key}: must be null, because the reference is text")
    if not words and document["unit"] is None:
        raise DocumentError(f"{path}.unit: is missing; a number has a unit, 1 for a plain one")


_EXPECTED: Final[Mapping[str, Rule]] = {
    "reference": _or_words(not_negative),
    "lower": or_null(_lower_tolerance),
    "upper": or_null(_upper_tolerance),
    "unit": or_null(name),
    "source": name,
    "statistic": or_null(text),
    "shape": or_null(shape),
    "algorithm": or_null(text),
    "software": or_null(text),
    "confidence": or_null(text),
}
_EXPECTED_OPTIONAL: Final = frozenset({"statistic", "shape", "algorithm", "software", "confidence"})
_TEXT: Final[dict[str, Json]] = {"type": "string"}
_NUMBER: Final[dict[str, Json]] = {"type": "number"}
_NULL: Final[dict[str, Json]] = {"type": "null"}

expected: Final = object_of(
    _EXPECTED,
    _EXPECTED_OPTIONAL,
    further=_expected_together,
    together=[
        if_then({"reference": _TEXT}, dict.fromkeys(("lower", "upper", "unit"), _NULL)),
        if_then({"reference": _NUMBER}, {"unit": _TEXT}),
    ],
)
figure: Final = object_of(
    {**_EXPECTED, "met": or_null(flag), "judges": flag, "not_judged": text}, _EXPECTED_OPTIONAL
)
"""What one source expects, and whether it judges."""


def _as_many(document: Any, path: str) -> None:
    if len(document["x"]) != len(document["y"]):
        points = len(document["x"]), len(document["y"])
        raise DocumentError(
            f"{path}.y: must have as many values as x, {points[0]}, not {points[1]}"
        )


curve: Final = object_of(
    {
        "x": numbers_or_gaps,
        "y": numbers_or_gaps,
        "x_label": name,
        "y_label": name,
        "x_unit": name,
        "y_unit": name,
        "x_log": flag,
        "series": name,
        "title": name,
    },
    frozenset({"title"}),
    further=_as_many,
)

_EXTRA: Final[Mapping[str, Rule]] = {
    "action": one_of(*Action),
    "action_source": name,
    "curve": curve,
    "curves": each(curve),
    "figures": each(figure),
    "samples": numbers_or_gaps,
}
extra: Final = object_of(_EXTRA, frozenset(_EXTRA), others=True)
"""Any object in JSON's types, which ``plain`` checks; these keys have a fixed form."""

RUN_RULES: Final[Mapping[str, Rule]] = {
    "id": name,
    "started": instant,
    "duration_s": not_negative,
    "area_duration_s": values_of(not_negative),
    "command": each(text),
    "host": text,
    "target": or_null(name),
    "backend": or_null(name),
    "versions": values_of(or_null(text)),
    "devices": each(object_of({"name": text}, others=True)),
    "strict": flag,
    "interrupted": flag,
    "switches": values_of(text),
    "replay": each(object_of({"name": name, "sha256": or_null(name), "source": or_null(name)})),
    "error": or_null(object_of({"exit_code": positive, "message": text})),
    "seed": or_null(count),
}
RUN_ABSENT: Final = ("error", "seed")
"""Keys that only some runs have: one that an error ended, one that draws operands or programs."""
RUN_OPTIONAL: Final = frozenset({"replay", "switches", *RUN_ABSENT})
"""These, and the keys that older documents lack."""

RESULT_RULES: Final[Mapping[str, Rule]] = {
    "id": name,
    "suite": name,
    "area": name,
    "verdict": one_of(*Verdict),
    "evidence": each(one_of(*Evidence)),
    "device": or_null(name),
    "value": or_null(_or_words(number)),
    "unit": or_null(name),
    "statistic": or_null(name),
    "n": or_null(positive),
    "spread": or_null(not_negative),
    "expected": or_null(expected),
    "shape": or_null(shape),
    "reason": text,
    "blocked_by": or_null(name),
    "does_not_show": text,
    "duration_s": not_negative,
    "extra": extra,
}

_NEEDS_REASON: Final = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.SKIP})


def _result_together(result: Any, path: str) -> None:
    """Check the keys of a result that depend on each other."""
    verdict = result["verdict"]
    if verdict in _NEEDS_REASON and not result["reason"].strip():
        raise DocumentError(f"{path}.reason: is empty; {verdict} needs a reason")
    if result["blocked_by"] is not None and verdict != Verdict.INCONCLUSIVE:
        raise DocumentError(f"{path}.blocked_by: is only for INCONCLUSIVE, not {verdict}")
    if len(set(result["evidence"])) != len(result["evidence"]):
        raise DocumentError(f"{path}.evidence: names a badge twice")
    words, wanted = isinstance(result["value"], str), result["expected"]
    if words and result["unit"] is not None:
        raise DocumentError(f"{path}.unit: must be null, because the value is text")
    if not words and result["value"] is not None and result["unit"] is None:
        raise DocumentError(f"{path}.unit: is missing; a value has a unit, 1 for a plain number")
    if wanted is None:
        return
    if result["value"] is not None and words is not isinstance(wanted["reference"], str):
        raise DocumentError(
            f"{path}.expected.reference: must be text where the value is, and only there"
        )
    if result["unit"] not in (None, wanted["unit"]):
        raise DocumentError(
            f"{path}.expected.unit: must be the unit of the value, {result['unit']},"
            f" not {wanted['unit']}"
        )


def _compared_with(kind: dict[str, Json]) -> dict[str, Json]:
    return {"anyOf": [{"properties": {"reference": kind}}, _NULL]}


_RESULT: Final = object_of(
    RESULT_RULES,
    further=_result_together,
    together=[
        if_then(
            {"verdict": {"enum": [str(each) for each in sorted(_NEEDS_REASON)]}},
            {"reason": {"pattern": r"\S"}},
        ),
        if_then({"blocked_by": _TEXT}, {"verdict": {"enum": [str(Verdict.INCONCLUSIVE)]}}),
        {"properties": {"evidence": {"uniqueItems": True}}},
        if_then({"value": _TEXT}, {"unit": _NULL, "expected": _compared_with(_TEXT)}),
        if_then({"value": _NUMBER}, {"unit": _TEXT, "expected": _compared_with(_NUMBER)}),
    ],
)
check_result: Final = _checker(_RESULT)
"""Checks every key of a result, and those that depend on each other."""
_RUN: Final = object_of(RUN_RULES, RUN_OPTIONAL)
check_run: Final = _checker(_RUN)

_DOCUMENT: Final = object_of(
    {
        "schema": version(SCHEMA),
        "verdict": one_of(*Verdict),
        "counts": object_of(dict.fromkeys(map(str, Verdict), count)),
        "first_failed": or_null(name),
        "culprit": or_null(name),
        "run": _RUN,
        "results": each(_RESULT),
    }
)


_check_keys: Final = _checker(_DOCUMENT)


def check_form(value: object) -> dict[str, Any]:
    """The keys of a document, without a check of what ``extra`` holds in no form of its own.

    ``Run.from_json`` checks that, and the verdict against the results. Raises ResultError.
    """
    if nested(value, MAX_DEPTH):
        raise ResultError("document: is nested too deeply")
    found: dict[str, Any] = _check_keys(value, "")
    return found


def check_document(value: object) -> None:
    """Check the form of a document, and that JSON can hold every ``extra``."""
    for index, result in enumerate(check_form(value)["results"]):
        plain(result["extra"], f"results[{index}].extra")


def json_schema() -> dict[str, Json]:
    """The form of a document as JSON Schema, draft 2020-12."""
    return {
        "$schema": _DRAFT,
        "title": SCHEMA,
        "description": "A run and its results; docs/results.md says what each key means.",
        **_DOCUMENT.schema,
    }
