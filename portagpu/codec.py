"""Dataclasses as JSON and back, for messages between processes and for files.

A field's type is a JSON type (text, numbers, true and false, None), ``bytes``, a day, a StrEnum, a
Literal, another dataclass, an optional one of these, or a tuple, frozenset or mapping of them.
``Any`` is left unchanged.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date
from enum import StrEnum
from typing import Any, Final, TypeVar

from portagpu.errors import PortagpuError

_T = TypeVar("_T")


class DocumentError(PortagpuError, ValueError):
    """A document does not fit its dataclass; the message is one line that names the place."""


def encode(value: Any) -> Any:
    """``value`` as JSON; a dataclass is an object with a key for each field."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return {name: encode(getattr(value, name)) for name in _field_names(kind)}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else value


def decode(kind: Callable[..., _T], document: object, where: str) -> _T:
    """The dataclass in ``document``, which ``where`` names.

    Raises DocumentError for an unknown or missing key, and for a value of another type.
    """
    if not isinstance(document, dict):
        raise DocumentError(f"{where}: must be a table")
    wanted = _field_types(kind)
    unknown = sorted(str(key) for key in document if key not in wanted)
    if unknown:
        raise DocumentError(f"{where}: {unknown[0]!r} is not known")
    given = {
        key: _decode_value(item, wanted[key], f"{where}.{key}") for key, item in document.items()
    }
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise DocumentError(f"{where}: {error}") from error


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


@functools.cache
def _origin_and_arguments(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


@functools.cache
def _field_types(kind: Any) -> dict[str, Any]:
    # modules import it for type checkers alone
    return typing.get_type_hints(kind, localns={"Mapping": Mapping})


def _decode_value(value: Any, kind: Any, where: str) -> Any:
    origin, arguments = _origin_and_arguments(kind)
    if kind is Any:
        return value
    if origin is types.UnionType:
        if value is None:
            return None
        return _decode_value(
            value, next(each for each in arguments if each is not types.NoneType), where
        )
    if origin is typing.Literal:
        if value not in arguments:
            raise DocumentError(f"{where}: {value!r} is not known")
        return value
    if origin is tuple:
        return _decode_items(value, arguments, where)
    if origin is frozenset:
        return frozenset(_decode_items(value, (*arguments, Ellipsis), where))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise DocumentError(f"{where}: must be a table of texts")
        return {
            key: _decode_value(item, arguments[1], f"{where}.{key}") for key, item in value.items()
        }
    if dataclasses.is_dataclass(kind):
        return decode(typing.cast("type[Any]", kind), value, where)
    if (read := kind if issubclass(kind, StrEnum) else _TEXT_READERS.get(kind)) is not None:
        try:
            return read(value)
        except (TypeError, ValueError, binascii.Error) as error:
            raise DocumentError(f"{where}: {value!r} is not known") from error
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise DocumentError(f"{where}: must be {kind.__name__}, not {type(value).__name__}")
    return value


_TEXT_READERS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    bytes: functools.partial(base64.b64decode, validate=True),
    date: date.fromisoformat,
}


def _decode_items(value: object, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise DocumentError(f"{where}: must be a list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise DocumentError(f"{where}: must have {len(kinds)} items")
    return tuple(_decode_value(item, kind, where) for item, kind in zip(value, kinds, strict=True))
