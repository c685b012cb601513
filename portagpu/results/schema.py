"""The rules of the document ``portagpu.result/1``, one for each key, for reading and writing.

``docs/results.md`` says what each key means. ``docs/result.schema.json`` is made of these rules.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.errors import ResultError
from portagpu.results.actions import Action
from portagpu.results.rules import (
    Json,
    Rule,
    any_of,
    each,
    flag,
    if_then,
    instant,
    is_number,
    keys,
    mapping,
    name,
    nested,
    not_negative,
    number,
    numbers_or_gaps,
    object_of,
    one_of,
    or_null,
    plain,
    positive,
    refuse,
    rule,
    text,
    values_of,
)
from portagpu.results.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = "portagpu.result/1"
DEEPEST: Final = 64
"""How many lists and objects of a document may be inside one another."""
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def check_version(value: object, path: str, own: str) -> None:
    """Check that ``value`` is the schema ``own``; of a newer version of it, say what to do."""
    name, _, number = own.rpartition("/")
    stated = isinstance(value, str) and re.fullmatch(
        rf"{re.escape(name)}/([1-9][0-9]{{0,8}})", value
    )
    if stated and int(stated[1]) > int(number):
        raise ResultError(f"{path}: is {value}; this version reads {own}: upgrade portagpu")
    one_of(own)(value, path)


@rule(enum=[SCHEMA])
def _version(value: object, path: str) -> None:
    check_version(value, path, SCHEMA)


@rule(type="integer")
def _whole(value: object, path: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(path, "a whole number", value)


@rule(type="integer", minimum=0)
def _count(value: object, path: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise refuse(path, "a whole number of at least 0", value)


@rule(type="number", minimum=-1, maximum=0)
def _lower_tolerance(value: object, path: str) -> None:
    if not is_number(value) or not -1 <= value <= 0:  # type: ignore[operator]
        raise refuse(path, "a fraction of the reference from -1 to 0, or null", value)


@rule(type="number", minimum=0)
def _upper_tolerance(value: object, path: str) -> None:
    if not is_number(value) or value < 0:  # type: ignore[operator]
        raise refuse(path, "a fraction of the reference of at least 0, or null", value)


@rule(anyOf=[name.schema, number.schema])
def number_or_words(value: object, path: str) -> None:
    """A finite number, or one line of text."""
    (name if isinstance(value, str) else number)(value, path)


@rule(anyOf=[name.schema, not_negative.schema])
def _reference(value: object, path: str) -> None:
    (name if isinstance(value, str) else not_negative)(value, path)


shape: Final = any_of(
    text,
    each(_whole),
    values_of(any_of(_whole, text, words="a whole number or text")),
    words="text, a list of whole numbers, or an object of them",
)
"""The size of a problem: "4096x4096", [4096, 4096], {"m": 4096, "dtype": "fp32"}."""


def _expected_together(value: object, path: str) -> None:
    document = mapping(value, path)
    words = isinstance(document["reference"], str)
    for key in ("lower", "upper", "unit"):
        if words and document[key] is not None:
            raise ResultError(f"{path}.{key}: must be null, because the reference is text")
    if not words and document["unit"] is None:
        raise ResultError(f"{path}.unit: is missing; a number has a unit, 1 for a plain one")


_EXPECTED: Final[Mapping[str, Rule]] = {
    "reference": _reference,
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


def _as_many(value: object, path: str) -> None:
    document = mapping(value, path)
    if len(document["x"]) != len(document["y"]):
        points = len(document["x"]), len(document["y"])
        raise ResultError(f"{path}.y: must have as many values as x, {points[0]}, not {points[1]}")


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
}
RUN_OPTIONAL: Final = frozenset({"replay", "switches", "error"})
"""Keys of a run that older documents lack; "error" is only in a run that an error ended."""

RESULT_RULES: Final[Mapping[str, Rule]] = {
    "id": name,
    "suite": name,
    "area": name,
    "verdict": one_of(*Verdict),
    "evidence": each(one_of(*Evidence)),
    "device": or_null(name),
    "value": or_null(number_or_words),
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


def _result_together(value: object, path: str) -> None:
    """Check the keys of a result that depend on each other."""
    result = mapping(value, path)
    verdict = result["verdict"]
    if verdict in _NEEDS_REASON and not result["reason"].strip():
        raise ResultError(f"{path}.reason: is empty; {verdict} needs a reason")
    if result["blocked_by"] is not None and verdict != Verdict.INCONCLUSIVE:
        raise ResultError(f"{path}.blocked_by: is only for INCONCLUSIVE, not {verdict}")
    if len(set(result["evidence"])) != len(result["evidence"]):
        raise ResultError(f"{path}.evidence: names a badge twice")
    words, wanted = isinstance(result["value"], str), result["expected"]
    if words and result["unit"] is not None:
        raise ResultError(f"{path}.unit: must be null, because the value is text")
    if not words and result["value"] is not None and result["unit"] is None:
        raise ResultError(f"{path}.unit: is missing; a value has a unit, 1 for a plain number")
    if wanted is None:
        return
    if result["value"] is not None and words is not isinstance(wanted["reference"], str):
        raise ResultError(
            f"{path}.expected.reference: must be text where the value is, and only there"
        )
    if result["unit"] not in (None, wanted["unit"]):
        raise ResultError(
            f"{path}.expected.unit: must be the unit of the value, {result['unit']},"
            f" not {wanted['unit']}"
        )


def _compared_with(kind: dict[str, Json]) -> dict[str, Json]:
    return {"anyOf": [{"properties": {"reference": kind}}, _NULL]}


check_result: Final = object_of(
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
"""Checks every key of a result, and those that depend on each other."""

DOCUMENT_RULES: Final[Mapping[str, Rule]] = {
    "schema": _version,
    "verdict": one_of(*Verdict),
    "counts": object_of(dict.fromkeys(map(str, Verdict), _count)),
    "first_failed": or_null(name),
    "culprit": or_null(name),
    "run": object_of(RUN_RULES, RUN_OPTIONAL),
    "results": each(check_result),
}


def check_form(value: object) -> None:
    """Check the form of a document, without the values of ``extra`` that have no form of their own.

    ``Run.from_json`` checks those, and the verdict against the results.
    """
    if nested(value, DEEPEST):
        raise ResultError("document: is nested too deeply")
    keys(mapping(value, "document"), "", DOCUMENT_RULES)


def check_document(value: object) -> None:
    """Check the form of a document, and that JSON can hold every ``extra``."""
    check_form(value)
    for index, result in enumerate(mapping(value, "document")["results"]):
        plain(result["extra"], f"results[{index}].extra")


def json_schema() -> dict[str, Json]:
    """The form of a document as JSON Schema, draft 2020-12."""
    return {
        "$schema": _DRAFT,
        "title": SCHEMA,
        "description": "A run and its results; docs/results.md says what each key means.",
        **object_of(DOCUMENT_RULES).schema,
    }
