"""Rules for the keys of a JSON document: each checks a value, and says it as JSON Schema too.

A rule takes a value and the path of its key, and raises ResultError with that path. What JSON
Schema (https://json-schema.org/draft/2020-12) cannot say of it, such as that two lists have one
length, it leaves out: the schema refuses nothing that the rule accepts.
"""

from __future__ import annotations

import contextlib
import json
import math
import numbers
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any, Final, TypeAlias

from portagpu.errors import ResultError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Check: TypeAlias = Callable[[object, str], object]


@dataclass(frozen=True, slots=True)
class Rule:
    """``check(value, path)`` raises ResultError; ``schema`` is the same as JSON Schema.

    A ``nullable`` rule accepts None, which is then not checked: most keys of a result have it.
    """

    check: Check
    schema: dict[str, Json] = field(default_factory=dict)
    nullable: bool = False

    def __call__(self, value: object, path: str) -> None:
        self.check(value, path)


def rule(**schema: Json) -> Callable[[Check], Rule]:
    """Make a rule of a function that checks, with what it checks as JSON Schema."""
    return lambda check: Rule(check, schema)


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


def nested(value: object, levels: int) -> bool:
    """Whether lists and dicts are in one another more than so many levels deep.

    It needs no stack: how deep a stack may grow differs between versions of Python.
    """
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(levels + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is list or type(inner) is dict
        ]
        if not level:
            return False
    return True


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


@rule(type="string")
def text(value: object, path: str) -> None:
    if not isinstance(value, str):
        raise refuse(path, "text", value)


_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f"


@rule(
    type="string",
    minLength=1,
    # Python's $ also stands before a last line break
    pattern=rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$(?!\n)",
)
def name(value: object, path: str) -> None:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise refuse(path, "text of one line that is not empty", value)


@rule(type="boolean")
def flag(value: object, path: str) -> None:
    if not isinstance(value, bool):
        raise refuse(path, "true or false", value)


@rule(type="number")
def number(value: object, path: str) -> None:
    if not is_number(value):
        raise refuse(path, "a finite number", value)


@rule(type="integer", minimum=1)
def positive(value: object, path: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refuse(path, "a whole number of at least 1", value)


@rule(type="number", minimum=0)
def not_negative(value: object, path: str) -> None:
    if not is_number(value) or value < 0:  # type: ignore[operator]
        raise refuse(path, "a finite number of at least 0", value)


def or_null(rule: Rule) -> Rule:
    """The rule, or null."""

    def check(value: object, path: str) -> None:
        if value is not None:
            rule.check(value, path)

    return Rule(check, {"anyOf": [rule.schema, {"type": "null"}]}, nullable=True)


def each(rule: Rule) -> Rule:
    """A list whose items keep the rule."""

    def check(value: object, path: str) -> None:
        if not isinstance(value, list):
            raise refuse(path, "a list", value)
        for index, item in enumerate(value):
            rule.check(item, f"{path}[{index}]")

    return Rule(check, {"type": "array", "items": rule.schema})


def _numbers_or_gaps(value: object, path: str) -> None:
    # a curve has hundreds: most are told without a call for each
    if type(value) is list and {float, int}.issuperset(map(type, value)):
        # the sum of finite numbers may be too large, which the slow way then accepts
        with contextlib.suppress(OverflowError):
            if isfinite(sum(map(abs, value))):
                return
    each(or_null(number))(value, path)


numbers_or_gaps: Final = Rule(_numbers_or_gaps, each(or_null(number)).schema)
"""A list of finite numbers, and of null where one is missing."""


def one_of(*allowed: str) -> Rule:
    """One of these texts."""

    def check(value: object, path: str) -> None:
        if value not in allowed:
            raise refuse(path, f"one of {', '.join(allowed)}", value)

    return Rule(check, {"enum": [str(each) for each in allowed]})


def any_of(*rules: Rule, words: str) -> Rule:
    """What keeps one of the rules; ``words`` says that in messages."""

    def check(value: object, path: str) -> None:
        for each in rules:
            try:
                return each(value, path)
            except ResultError:
                continue
        raise refuse(path, words, value)

    return Rule(check, {"anyOf": [each.schema for each in rules]})


def values_of(rule: Rule) -> Rule:
    """An object of any keys whose values keep the rule."""

    def check(value: object, path: str) -> None:
        for key, item in mapping(value, path).items():
            rule.check(item, f"{path}.{key}")

    return Rule(check, {"type": "object", "additionalProperties": rule.schema})


def object_of(
    rules: Mapping[str, Rule],
    optional: frozenset[str] = frozenset(),
    *,
    further: Check | None = None,
    together: Sequence[Json] = (),
    others: bool = False,
) -> Rule:
    """An object with these keys and no ``others``; all are there unless ``optional``.

    ``further`` checks what depends on several keys, and ``together`` has the JSON Schemas of it.
    """

    def check(value: object, path: str) -> None:
        keys(value, path, rules, optional, others=others)
        if further is not None:
            further(value, path)

    schema: dict[str, Json] = {
        "type": "object",
        "properties": {key: rule.schema for key, rule in rules.items()},
        "required": [key for key in rules if key not in optional],
        **({"allOf": list(together)} if together else {}),
    }
    return Rule(check, schema if others else {**schema, "additionalProperties": False})


def mapping(value: object, path: str) -> Mapping[str, Any]:
    if type(value) is dict or isinstance(value, Mapping):
        return value
    raise refuse(path, "an object", value)


def keys(
    value: object,
    path: str,
    rules: Mapping[str, Rule],
    optional: frozenset[str] = frozenset(),
    *,
    others: bool = False,
) -> None:
    """Check each key by its rule; all are there unless ``optional``, and there are no others.

    With ``others`` there may be others.
    """
    document = mapping(value, path)
    prefix = f"{path}." if path else ""
    for key, rule in rules.items():
        if key in document:
            value = document[key]
            if value is not None or not rule.nullable:
                rule.check(value, prefix + key)
        elif key not in optional:
            raise ResultError(f"{prefix}{key}: is missing")
    if others or document.keys() == rules.keys():
        return
    for key in document:
        if key not in rules:
            raise ResultError(f"{prefix}{key}: is no key of this document")


def if_then(when: dict[str, Json], then: dict[str, Json]) -> dict[str, Json]:
    """The JSON Schema of an object whose keys fit ``then`` where its keys fit ``when``."""
    return {"if": {"properties": when}, "then": {"properties": then}}


_DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
_INSTANT: Final = f"{_DAY}T{_TIME}(Z|[+-][0-9]{{2}}:[0-9]{{2}})"


@rule(type="string", format="date-time", pattern=rf"^{_INSTANT}$(?!\n)")
def instant(value: object, path: str) -> None:
    rule = "a time as RFC 3339 writes it, with its zone"
    if not isinstance(value, str) or not re.fullmatch(_INSTANT, value):
        raise refuse(path, rule, value)
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise refuse(path, rule, value) from None
