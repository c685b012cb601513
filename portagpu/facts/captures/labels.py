"""Name, domain and labels of an annotation as one text, for profilers that take no more than text.

``domain:name {'key':value}``: the labels are JSON with apostrophes for quotes. ROCTx has neither
domains nor payloads, and torch's profiler has no domains. Kineto writes a name into its JSON
without escaping: a quote breaks the file, a backslash becomes a slash, and control characters and
everything outside ASCII make it "unknown" (tried with torch 2.13). So ``encode`` writes such
characters as percent signs with the hexadecimal bytes of UTF-8, and ``decode`` reads them again.

A name alone stays as it is, wherever it cannot be taken for anything else.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

Label: TypeAlias = str | int | float | bool
Color: TypeAlias = int | str | None
"""0xRRGGBB, "#rrggbb" or one of COLORS."""

DOMAIN: Final = "portagpu"
"""The domain of annotations that name no other."""
COLLECTIVE: Final = "portagpu.collective"
"""The domain of annotated collectives. Their name is the operation; see COLLECTIVE_LABELS."""
COLLECTIVE_LABELS: Final = ("bytes", "dtype", "group", "group_size", "sequence")
"""Their labels, named as in ``captures.model.EVENT_COLUMNS``; some may be missing."""

COLORS: Final = {
    "black": 0x000000,
    "blue": 0x0000FF,
    "cyan": 0x00FFFF,
    "green": 0x00FF00,
    "magenta": 0xFF00FF,
    "orange": 0xFFA500,
    "purple": 0x800080,
    "red": 0xFF0000,
    "white": 0xFFFFFF,
    "yellow": 0xFFFF00,
}

_TYPES: Final = (str, int, float)
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COLOR: Final = re.compile(r"#[0-9A-Fa-f]{6}")
_UNSAFE: Final = re.compile(r'["\\\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]|%(?=[0-9A-Fa-f]{2})')
_UNSAFE_ASCII: Final = re.compile(r'["\\\x00-\x1f\x7f-\U0010ffff]|%(?=[0-9A-Fa-f]{2})')
_QUOTE: Final = re.compile(r"['{}]")
_LABELLED: Final = re.compile(r"(?:([A-Za-z0-9_.-]{0,64}):)?(.*?) (\{[^{}]*\})", re.DOTALL)
_BARE: Final = re.compile(rf"({re.escape(DOMAIN)}(?:\.[A-Za-z0-9_-]+)*):(.*)", re.DOTALL)


def check_domain(domain: str) -> str:
    """``domain``; raises ValueError where it is not a word of up to 64 letters, digits, ".-_"."""
    if not isinstance(domain, str) or not _DOMAIN.fullmatch(domain):
        raise ValueError(
            f"a domain is a word of up to 64 letters, digits, '.', '-' and '_', not {domain!r}"
        )
    return domain


def check_labels(labels: Mapping[str, Label]) -> None:
    """Raise TypeError for a label that is not a str, int, float or bool."""
    for key, value in labels.items():
        if not isinstance(value, _TYPES):
            raise TypeError(
                f"the label {key} is a {type(value).__name__}: labels are str, int, float or bool"
            )


def plain(labels: Mapping[str, object]) -> dict[str, Label]:
    """The labels, with the text of each value that is not a str, int, float or bool."""
    return {
        key: value if isinstance(value, _TYPES) else str(value) for key, value in labels.items()
    }


def check(domain: str, color: Color, labels: Mapping[str, Label]) -> None:
    """Raise ValueError or TypeError for what no annotation can have."""
    if domain not in ("", DOMAIN):
        check_domain(domain)
    if color is not None:
        argb(color)
    if labels:
        check_labels(labels)


def argb(color: Color) -> int | None:
    """The colour as 0xRRGGBB. Raises ValueError for one that is none."""
    if isinstance(color, str):
        if color in COLORS:
            return COLORS[color]
        if _COLOR.fullmatch(color):
            return int(color[1:], 16)
    elif color is None or (type(color) is int and 0 <= color <= 0xFFFFFFFF):
        return color
    raise ValueError(f"a color is 0xRRGGBB, '#rrggbb' or one of {', '.join(COLORS)}, not {color!r}")


def to_json(labels: Mapping[str, Label]) -> str:
    """The labels as a JSON object, in their order; numbers that JSON lacks are text."""
    finite = {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in labels.items()
    }
    return json.dumps(finite, ensure_ascii=False, separators=(",", ":"))


def encode(
    name: str,
    labels: Mapping[str, Label] | None = None,
    domain: str = "",
    *,
    ascii_only: bool = False,
) -> str:
    """One text that :func:`decode` takes apart again: no quote, backslash or control character.

    With ``ascii_only`` it has no other characters than ASCII's either. Numbers that JSON lacks (an
    infinity, a nan) become text; all else comes back as it was. Raises ValueError for a domain that
    is not a word, and TypeError for a label of another type.
    """
    if domain:
        check_domain(domain)
    if labels:
        check_labels(labels)
        return _with_braces(name, labels, domain, ascii_only)
    return _alone(name, domain, ascii_only)


@lru_cache(maxsize=4096)
def _alone(name: str, domain: str, ascii_only: bool) -> str:
    """The text of a name without labels; kept, because a program has few names."""
    safe = (_UNSAFE_ASCII if ascii_only else _UNSAFE).sub(_percent, name)
    bare = f"{domain}:{safe}" if domain else safe
    if safe == name and decode(bare) == (name, {}, domain):
        return bare
    return _with_braces(name, {}, domain, ascii_only)


def _with_braces(name: str, labels: Mapping[str, Label], domain: str, ascii_only: bool) -> str:
    unsafe = _UNSAFE_ASCII if ascii_only else _UNSAFE
    safe = unsafe.sub(_percent, name)
    pairs = [f"'{_inside(key, unsafe)}':{_value(value, unsafe)}" for key, value in labels.items()]
    prefix = f"{domain}:" if domain or ":" in safe else ""
    return f"{prefix}{safe} {{{','.join(pairs)}}}"


def decode(text: str) -> tuple[str, dict[str, Label], str]:
    """(name, labels, domain) of a text; one that :func:`encode` did not write is a name alone."""
    if text.endswith("}"):
        found = _LABELLED.fullmatch(text)
        labels = _labels(found[3]) if found else None
        if found and labels is not None:
            return unquote(found[2], errors="surrogatepass"), labels, found[1] or ""
    elif text.startswith(DOMAIN):
        bare = _BARE.fullmatch(text)
        if bare:
            return bare[2], {}, bare[1]
    return text, {}, ""


def _labels(text: str) -> dict[str, Label] | None:
    """The labels in their braces; None where the text is not of :func:`encode`."""
    if '"' in text:
        return None
    try:
        found = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(value, _TYPES) for value in found.values()):
        return None
    return {
        unquote(key, errors="surrogatepass"): (
            unquote(value, errors="surrogatepass") if isinstance(value, str) else value
        )
        for key, value in found.items()
    }


def _value(value: Label, unsafe: re.Pattern[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{_inside(value, unsafe)}'"
    if isinstance(value, float) and not math.isfinite(value):
        return f"'{value}'"
    return repr(float(value)) if isinstance(value, float) else repr(int(value))


def _inside(text: str, unsafe: re.Pattern[str]) -> str:
    """Text for between apostrophes and inside braces."""
    return _QUOTE.sub(_percent, unsafe.sub(_percent, text))


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
