"""Findings as JSON and back: what a child process answers, and what a file may keep."""

from __future__ import annotations

from typing import Any, Final

from portagpu.codec import DocumentError, decode, encode
from portagpu.readings.model import Findings, FormatError

MOST: Final = 1e24
"""The largest number: of bytes, units or identities, all of which have at most 64 bits."""


def to_document(findings: Findings) -> dict[str, Any]:
    """What :func:`from_document` makes the same findings of; values are what JSON holds."""
    document: dict[str, Any] = encode(findings)
    return document


def from_document(document: object) -> Findings:
    """The findings in ``document``. Raises FormatError that names the place of what is wrong.

    A number that no machine has is as good as none.
    """
    try:
        return decode(Findings, _believable(document, "findings"), "findings")
    except DocumentError as error:
        raise FormatError(str(error)) from error


def _believable(value: Any, where: str) -> Any:
    """``value`` without numbers that no machine has; raises for text that is not one line."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) and key.isprintable() for key in value):
            raise DocumentError(f"{where}: must be a table of texts")
        kept = {key: item for key, item in value.items() if not _is_beyond(item)}
        return {key: _believable(item, f"{where}.{key}") for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [None if _is_beyond(item) else _believable(item, where) for item in value]
    if isinstance(value, str) and not value.isprintable():
        raise DocumentError(f"{where}: is no text of one line")
    return value


def _is_beyond(value: object) -> bool:
    """Whether ``value`` is a number that no machine has; NaN compares with nothing."""
    return isinstance(value, int | float) and not abs(value) <= MOST
