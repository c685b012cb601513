"""Findings as JSON and back, for child processes and for files."""

from __future__ import annotations

from typing import Any, Final

from portagpu.base.documents import DocumentError, decode, encode, refuse
from portagpu.facts.readings.model import Findings, FormatError

MAX_NUMBER: Final = 1e24
"""The largest number: of bytes, units or identities, all of which have at most 64 bits."""


def to_document(findings: Findings) -> dict[str, Any]:
    """``findings`` as values that JSON holds; :func:`from_document` reads them."""
    document: dict[str, Any] = encode(findings)
    return document


def from_document(document: object) -> Findings:
    """The findings in ``document``. Raises FormatError with the place of what is wrong.

    Numbers that no machine has are left out.
    """
    try:
        return decode(Findings, _plausible(document, "findings"), "findings")
    except DocumentError as error:
        raise FormatError(str(error)) from error


def _plausible(value: Any, where: str) -> Any:
    """``value`` without numbers that no machine has; raises for text that is not one line."""
    if value is None:
        return None
    if isinstance(value, dict):
        if not all(isinstance(key, str) and key.isprintable() for key in value):
            raise refuse(where, "an object with keys of printable text", value)
        kept = {key: item for key, item in value.items() if not _is_implausible(item)}
        return {key: _plausible(item, f"{where}.{key}") for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [
            None if _is_implausible(item) else _plausible(item, f"{where}[{index}]")
            for index, item in enumerate(value)
        ]
    if isinstance(value, str) and not value.isprintable():
        raise refuse(where, "text of one line", value)
    return value


def _is_implausible(value: object) -> bool:
    """Whether ``value`` is a number that no machine has; NaN compares with nothing."""
    return isinstance(value, int | float) and not abs(value) <= MAX_NUMBER
