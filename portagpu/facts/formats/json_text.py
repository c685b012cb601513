"""JSON in a tool's output: after a prompt, several values in a row, or cut off."""

from __future__ import annotations

import json
import re
from typing import Final

from portagpu.facts.readings.model import FormatError

_JSON_MARK: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{},]', re.DOTALL)
_CLOSER: Final = {"{": "}", "[": "]"}
_JSON_VALUE: Final = re.compile(r"[\s,]*[\[{]")
_MAX_DIGITS: Final = 24
_LEAST, _MOST = 1e-24, 1e24
"""Larger or smaller values are no measurements, and their products may not be finite."""


def json_start(text: str) -> int | None:
    """Where the first JSON array or object begins: a prompt or warnings may stand before it."""
    match = re.search(r"^[ \t]*(?:\[\s*[\[{\]]|\{)", text, re.MULTILINE)
    return match.start() if match is not None else None


def json_documents(text: str) -> tuple[list[object], bool]:
    """The JSON values that stand in ``text`` one after another, and whether the last breaks off.

    Keys of objects are in lower case: the tools changed the case of many. Of a repeated key the
    last counts. Raises FormatError where no value can be read.
    """
    found: list[object] = []
    position = json_start(text)
    if position is None:
        raise FormatError("this is no JSON")
    decoder = json.JSONDecoder(
        object_pairs_hook=_lower_keys,
        parse_int=_int,
        parse_float=_float,
        parse_constant=lambda _: None,
    )
    try:
        while position < len(text) and (match := _JSON_VALUE.match(text, position)) is not None:
            try:
                value, position = decoder.raw_decode(text, match.end() - 1)
            except json.JSONDecodeError:
                found.append(decoder.raw_decode(_close_brackets(text[match.end() - 1 :]))[0])
                return found, True
            found.append(value)
    except json.JSONDecodeError as error:
        if found:
            return found, True
        raise FormatError(f"this is no JSON: {error.msg} in line {error.lineno}") from None
    except RecursionError:
        raise FormatError("this JSON is nested too deeply") from None
    return found, False


def _lower_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {key.lower(): value for key, value in pairs}


def _int(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_DIGITS else None


def _float(text: str) -> float | None:
    value = float(text)
    return value if not value or _LEAST <= abs(value) <= _MOST else None


def _close_brackets(text: str) -> str:
    """``text`` up to its last whole value, with the brackets closed that are open there."""
    brackets: list[str] = []
    end, depth = 0, 0
    for match in _JSON_MARK.finditer(text):
        mark = match.group()[0]
        if mark == '"':
            continue
        if mark in _CLOSER:
            brackets.append(_CLOSER[mark])
            continue
        if mark == ",":
            end = match.start()
        elif brackets and brackets.pop() == mark:
            end = match.end()
        else:
            break
        depth = len(brackets)
    return text[:end] + "".join(reversed(brackets[:depth]))
