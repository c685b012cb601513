"""Findings as JSON and back: what a child process answers, and what a file may keep."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from portagpu.readings.model import Findings, FormatError

MOST: Final = 1e24
"""The largest number: of bytes, units or identities, all of which have at most 64 bits."""


def to_document(findings: Findings) -> dict[str, Any]:
    """What :func:`from_document` makes the same findings of; values are what JSON holds."""
    return dataclasses.asdict(findings)


def from_document(document: object) -> Findings:
    """The findings in ``document``. Raises FormatError that names the place of what is wrong."""
    found: Findings = _read(document, Findings, "findings")
    return found


def _read(value: object, kind: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: must be a table")
    wanted = _types(kind)
    unknown = sorted(str(key) for key in value if key not in wanted)
    if unknown:
        raise FormatError(f"{where}: {unknown[0]!r} is not known")
    given = {name: _value(item, wanted[name], f"{where}.{name}") for name, item in value.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise FormatError(f"{where}: {error}") from error


@functools.cache
def _types(kind: type[Any]) -> dict[str, Any]:
    # the model imports it for type checkers alone
    return typing.get_type_hints(kind, localns={"Mapping": Mapping})


def _value(value: object, kind: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if value is None or _is_beyond(value):
            return None
        return _value(value, next(each for each in arguments if each is not types.NoneType), where)
    if origin is tuple:
        return _items(value, arguments, where)
    if origin is Mapping:
        if not isinstance(value, dict) or not all(
            isinstance(key, str) and key.isprintable() for key in value
        ):
            raise FormatError(f"{where}: must be a table of texts")
        return {
            key: _value(item, arguments[1], f"{where}.{key}")
            for key, item in value.items()
            if not _is_beyond(item)
        }
    if dataclasses.is_dataclass(kind):
        return _read(value, kind, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        try:
            return kind(typing.cast("str", value))
        except ValueError as error:
            raise FormatError(f"{where}: {value!r} is not known") from error
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise FormatError(f"{where}: must be {kind.__name__}, not {type(value).__name__}")
    if isinstance(value, str) and not value.isprintable():
        raise FormatError(f"{where}: is no text of one line")
    if _is_beyond(value):
        raise FormatError(f"{where}: is no number that a machine has")
    return value


def _is_beyond(value: object) -> bool:
    """Whether ``value`` is a number that no machine has; NaN compares with nothing."""
    return isinstance(value, int | float) and not abs(value) <= MOST


def _items(value: object, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise FormatError(f"{where}: must be a list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise FormatError(f"{where}: must have {len(kinds)} items")
    return tuple(_value(item, kind, where) for item, kind in zip(value, kinds, strict=True))
