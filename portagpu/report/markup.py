"""HTML and SVG as text; everything that is not built here is escaped."""

from __future__ import annotations

import html
from typing import Final, TypeAlias

from portagpu.results.rules import UNSAFE

_VOID: Final = frozenset({"input", "meta", "wbr"})


class Markup(str):
    """Finished markup. Only ``tag``, ``join`` and constants of this package make it."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | None"
Attribute: TypeAlias = "str | int | float | bool | None"


def escape(value: object) -> Markup:
    """Text that is safe between tags and in quoted attributes, without control characters."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(UNSAFE.sub("", str(value)), quote=True))


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
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def page(title: str, css: str, main: Markup) -> str:
    """A self-contained HTML document: its content security policy forbids every request."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'",
        ),
        tag("title", title),
        tag("style", Markup(css)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n"


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {key}"
    shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
    return f' {key}="{escape(shown)}"'
