"""Values in JSON's types, and JSON text that is safe to print."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import ResultError

if TYPE_CHECKING:
    from portagpu.base.documents import Json


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
    raise ResultError(f"{path}: {type(value).__name__} cannot be written as JSON; write it as text")


def nested(value: object, levels: int) -> bool:
    """Whether lists and dicts are nested deeper than this many levels.

    It needs no stack: how deep a stack may grow differs between versions of Python.
    """
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(levels + 1):
        level = [
            inner
            for outer in level
            for items in ((outer.values() if type(outer) is dict else outer),)
            # most lists are long ones of numbers
            if not _NESTS.isdisjoint(map(type, items))
            for inner in items
            if type(inner) is list or type(inner) is dict
        ]
        if not level:
            return False
    return True


_NESTS: Final = frozenset({list, dict})


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
