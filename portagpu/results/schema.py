"""The rules of the document ``portagpu.result/1``, one for each key, for reading and writing.

A rule takes a value and the path of its key, and raises ResultError with that path.
``docs/results.md`` says what each key means.
"""

from __future__ import annotations

import json
import math
import numbers
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from portagpu.errors import ResultError
from portagpu.results.verdicts import Evidence, Verdict

SCHEMA: Final = "portagpu.result/1"

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Rule: TypeAlias = Callable[[object, str], None]


def plain(value: object, path: str, *, gaps: bool = False) -> Json:
    """``value`` in JSON's types: lists, dicts with text keys, text, integers and finite floats.

    Numbers of other libraries (anything registered as ``numbers.Real``) become Python's. NaN and
    infinity become null with ``gaps``, and raise ResultError without. Lone surrogates, which UTF-8
    cannot encode, are escaped. Raises ResultError for any other object.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        if math.isfinite(number):
            return number
        if gaps:
            return None
        raise ResultError(f"{path}: must be finite, not {number}; write null and say why in reason")
    if isinstance(value, Mapping):
        return {_key(k, path): plain(v, f"{path}.{k}", gaps=gaps) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{path}[{i}]", gaps=gaps) for i, item in enumerate(value)]
    raise ResultError(f"{path}: {type(value).__name__} has no form in JSON; write it as text")


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise ResultError(f"{path}: keys must be text, not {key!r}")
    return str(plain(key, path))


UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that control a terminal or change how nearby text is shown: control characters except
tab and line ends, zero-width and direction characters, and lone surrogates."""


def json_text(value: object, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """``value`` as JSON text that is safe to print: only unsafe characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    return UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def refuse(path: str, rule: str, value: object) -> ResultError:
    """The error for a key that breaks a rule, with the start of its value."""
    shown = repr(value)
    return ResultError(f"{path}: must be {rule}, not {shown[:60]}{'…' if len(shown) > 60 else ''}")


def is_number(value: object) -> bool:
    """True for a finite number that is not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def text(value: object, path: str) -> None:
    if not isinstance(value, str):
        raise refuse(path, "text", value)


def name(value: object, path: str) -> None:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise refuse(path, "text of one line that is not empty", value)


def flag(value: object, path: str) -> None:
    if not isinstance(value, bool):
        raise refuse(path, "true or false", value)


def number(value: object, path: str) -> None:
    if not is_number(value):
        raise refuse(path, "a finite number", value)


def positive(value: object, path: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refuse(path, "a whole number of at least 1", value)


def not_negative(value: object, path: str) -> None:
    if not is_number(value) or value < 0:  # type: ignore[operator]
        raise refuse(path, "a finite number of at least 0", value)


def or_null(rule: Rule) -> Rule:
    def checked(value: object, path: str) -> None:
        if value is not None:
            rule(value, path)

    return checked


def each(rule: Rule) -> Rule:
    def checked(value: object, path: str) -> None:
        if not isinstance(value, list):
            raise refuse(path, "a list", value)
        for index, item in enumerate(value):
            rule(item, f"{path}[{index}]")

    return checked


def one_of(*allowed: str) -> Rule:
    def checked(value: object, path: str) -> None:
        if value not in allowed:
            raise refuse(path, f"one of {', '.join(allowed)}", value)

    return checked


def mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refuse(path, "an object", value)
    return value


def keys(value: object, path: str, rules: Mapping[str, Rule], optional: frozenset[str]) -> None:
    """Check each key by its rule; all are there unless ``optional``, and there are no others."""
    document = mapping(value, path)
    prefix = f"{path}." if path else ""
    for key, rule in rules.items():
        if key in document:
            rule(document[key], prefix + key)
        elif key not in optional:
            raise ResultError(f"{prefix}{key}: is missing")
    for key in document:
        if key not in rules:
            raise ResultError(f"{prefix}{key}: is not a key of {SCHEMA}")


def instant(value: object, path: str) -> None:
    rule = "a time as RFC 3339 writes it, with its zone"
    if not isinstance(value, str) or "T" not in value:
        raise refuse(path, rule, value)
    try:
        zone = datetime.fromisoformat(value).tzinfo
    except ValueError:
        raise refuse(path, rule, value) from None
    if zone is None:
        raise refuse(path, rule, value)


def shape(value: object, path: str) -> None:
    """Text, a list of whole numbers, or an object of whole numbers and text."""
    if isinstance(value, Mapping):
        fits = all(
            isinstance(part, int | str) and not isinstance(part, bool) for part in value.values()
        )
    elif isinstance(value, list):
        fits = all(isinstance(part, int) and not isinstance(part, bool) for part in value)
    else:
        fits = isinstance(value, str)
    if not fits:
        raise refuse(path, "text, a list of whole numbers, or an object of them", value)


def _lower_tolerance(value: object, path: str) -> None:
    if not is_number(value) or not -1 <= value <= 0:  # type: ignore[operator]
        raise refuse(path, "a fraction of the reference from -1 to 0, or null", value)


def _upper_tolerance(value: object, path: str) -> None:
    if not is_number(value) or value < 0:  # type: ignore[operator]
        raise refuse(path, "a fraction of the reference of at least 0, or null", value)


def number_or_words(value: object, path: str) -> None:
    """A finite number, or one line of text."""
    (name if isinstance(value, str) else number)(value, path)


def _reference(value: object, path: str) -> None:
    (name if isinstance(value, str) else not_negative)(value, path)


EXPECTED_RULES: Final[Mapping[str, Rule]] = {
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


def expected(value: object, path: str) -> None:
    keys(value, path, EXPECTED_RULES, _EXPECTED_OPTIONAL)
    document = mapping(value, path)
    words = isinstance(document["reference"], str)
    for key in ("lower", "upper", "unit"):
        if words and document[key] is not None:
            raise ResultError(f"{path}.{key}: must be null, because the reference is text")
    if not words and document["unit"] is None:
        raise ResultError(f"{path}.unit: is missing; a number has a unit, 1 for a plain one")


_CURVE_RULES: Final[Mapping[str, Rule]] = {
    "x": each(or_null(number)),
    "y": each(or_null(number)),
    "x_label": name,
    "y_label": name,
    "x_unit": name,
    "y_unit": name,
    "x_log": flag,
    "series": name,
    "title": name,
}


def curve(value: object, path: str) -> None:
    keys(value, path, _CURVE_RULES, frozenset({"title"}))
    document = mapping(value, path)
    if len(document["x"]) != len(document["y"]):
        points = len(document["x"]), len(document["y"])
        raise ResultError(f"{path}.y: must have as many values as x, {points[0]}, not {points[1]}")


def figure(value: object, path: str) -> None:
    """What one source expects, and whether it judges."""
    rules = {"met": or_null(flag), "judges": flag, "not_judged": text}
    keys(value, path, {**EXPECTED_RULES, **rules}, _EXPECTED_OPTIONAL)


def extra(value: object, path: str) -> None:
    """Any object; its ``curve``, ``curves``, ``figures`` and ``samples`` have a fixed form."""
    document = mapping(value, path)
    plain(document, path)
    special = {
        "curve": curve,
        "curves": each(curve),
        "figures": each(figure),
        "samples": each(or_null(number)),
    }
    for key, rule in special.items():
        if key in document:
            rule(document[key], f"{path}.{key}")


def versions(value: object, path: str) -> None:
    for key, version in mapping(value, path).items():
        or_null(text)(version, f"{path}.{key}")


def device(value: object, path: str) -> None:
    document = mapping(value, path)
    if "name" not in document:
        raise ResultError(f"{path}.name: is missing")
    text(document["name"], f"{path}.name")


def durations(value: object, path: str) -> None:
    for key, seconds in mapping(value, path).items():
        not_negative(seconds, f"{path}.{key}")


RECORDING_RULES: Final[Mapping[str, Rule]] = {
    "name": name,
    "sha256": or_null(name),
    "source": or_null(name),
}


def recording(value: object, path: str) -> None:
    keys(value, path, RECORDING_RULES, frozenset())


RUN_RULES: Final[Mapping[str, Rule]] = {
    "id": name,
    "started": instant,
    "duration_s": not_negative,
    "area_duration_s": durations,
    "command": each(text),
    "host": text,
    "target": or_null(name),
    "backend": or_null(name),
    "versions": versions,
    "devices": each(device),
    "strict": flag,
    "interrupted": flag,
    "replay": each(recording),
}
RUN_OPTIONAL: Final = frozenset({"replay"})
"""Keys of a run that older documents lack."""

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

DOCUMENT_RULES: Final[Mapping[str, Rule]] = {
    "schema": one_of(SCHEMA),
    "verdict": one_of(*Verdict),
    "counts": lambda value, path: keys(
        value, path, dict.fromkeys(map(str, Verdict), _count), frozenset()
    ),
    "first_failed": or_null(name),
    "culprit": or_null(name),
    "run": lambda value, path: keys(value, path, RUN_RULES, RUN_OPTIONAL),
    "results": lambda value, path: each(check_result)(value, path),  # noqa: PLW0108 - defined below
}

_NEEDS_REASON: Final = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.SKIP})


def _count(value: object, path: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise refuse(path, "a whole number of at least 0", value)


def check_result(value: object, path: str) -> None:
    """Check every key of a result, and the keys that depend on each other."""
    keys(value, path, RESULT_RULES, frozenset())
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


def check_document(value: object) -> None:
    """Check the form of a document; ``Run.from_json`` checks its verdict against its results."""
    keys(mapping(value, "document"), "", DOCUMENT_RULES, frozenset())
