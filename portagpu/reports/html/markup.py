"""HTML and SVG as text; everything that is not built here is escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import Any, Final, TypeAlias

from portagpu.runs.results.plain import UNSAFE

_VOID: Final = frozenset({"input", "meta", "wbr"})
_CLOSED: Final = frozenset({"path", "rect", "use"})
"""Elements of SVG that hold nothing: they may close themselves."""


class Markup(str):
    """Finished markup. Only ``tag``, ``join`` and constants of this package make it."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | None"
Attribute: TypeAlias = "str | int | float | bool | None"


def escape(value: object) -> Markup:
    """Text that is safe between tags and in quoted attributes, without control characters."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(shown_text(str(value)), quote=True))


def shown_text(text: str) -> str:
    """``text`` without what controls a terminal or changes how nearby text is shown."""
    return UNSAFE.sub("", text)


def join(*children: Child) -> Markup:
    """The children joined; text is escaped, None is left out."""
    return Markup("".join(escape(child) for child in children if child is not None))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """The element ``name``: ``tag("td", "a<b", class_="n", data_label="Size")``.

    In attribute names a trailing underscore is dropped and others become hyphens; None and False
    leave the attribute out, True writes it without a value, and floats keep two digits.
    """
    written = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    if name in _CLOSED and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def json_block(value: Any, identifier: str) -> Markup:
    """``value`` as JSON that a script of the page reads; nothing in it ends the element.

    Its texts have passed ``shown_text``.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # "<" occurs in texts alone, so that its escape is the same JSON
    text = text.replace("<", r"\u003c")
    return tag("script", Markup(text), type="application/json", id=identifier)


def page(title: str, css: str, main: Markup, script: str = "") -> str:
    """A self-contained HTML document: its content security policy forbids every request.

    ``script``, a constant of this package, runs after the page was read; the policy names it by its
    hash and forbids every other.
    """
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", Markup(css)),
    )
    code = tag("script", Markup(script)) if script else None
    return f"<!doctype html>\n{tag('html', head, tag('body', main, code), lang='en')}\n"


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {key}"
    shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
    return f' {key}="{escape(shown)}"'
