"""The canonical form of a document, which does not depend on line breaks, and its digest."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


def canonical(value: object) -> bytes:
    """JSON in ASCII with sorted keys and no blanks; numbers as Python writes them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(value: Any, *, fast: bool = False) -> str:
    """The digest of the canonical form, in hexadecimal.

    :param value: a document.
    :param fast: whether it is a large object of finite numbers, which msgspec writes faster.
    """
    written = canonical_fast(value) if fast else None
    return hashlib.sha256(canonical(value) if written is None else written).hexdigest()


_OTHER_FORMS: Final = re.compile(rb"e(?:-\d|[1-9]\d)"), re.compile(rb"0\.0000[1-9]")
"""In a number that msgspec writes unlike Python: 1e-6, 1e16, 0.00001. Texts may have it too."""
_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?(?=[,\]}])")
_DIGITS: Final = 30
"""More than are in a number before its exponent."""


def canonical_fast(value: Mapping[str, Any]) -> bytes | None:
    """What :func:`canonical` gives of finite numbers, from msgspec, which writes numbers faster.

    None where it is not installed, and where its text may differ in more than some numbers.
    """
    try:
        import msgspec

        text = msgspec.json.encode(value, order="sorted")
    except (ImportError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    if not text.isascii() or b"\x7f" in text or b'\\"' in text:
        return None
    parts = []
    at = quotes = 0
    for place in sorted(each.start() for form in _OTHER_FORMS for each in form.finditer(text)):
        near = max(0, place - _DIGITS)
        begin = 1 + max(text.rfind(before, near, place) for before in (b"[", b",", b":"))
        found = _NUMBER.match(text, begin)
        if begin < at or found is None or found.end() <= place:
            continue
        quotes += text.count(b'"', at, begin)
        if quotes % 2:
            # it is in a text
            return None
        parts += [text[at:begin], repr(float(found[0])).encode()]
        at = found.end()
    return b"".join([*parts, text[at:]])
