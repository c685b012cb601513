"""A safe reader of tools' XML.

It fetches no document type, refuses declared entities, and limits depth and number of elements.
From a text that breaks off it returns the elements that were read.
"""

from __future__ import annotations

import re
import xml.parsers.expat as expat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH: Final = 128
"""lstopo nests a GPU behind four PCIe switches about 20 deep; code may recurse as deep as this."""
MAX_ELEMENTS: Final = 200_000
"""A machine of 500 devices and 500 processors has some thousand."""

_PROLOG: Final = re.compile(
    r"\s*(?:<\?[^>]{0,500}\?>|<!DOCTYPE[^<>\[]{0,500}>|<!--|<([\w:.-]{1,80}))"
)


@dataclass(slots=True, eq=False)
class Element:
    """An element: ``children`` in order, and the ``text`` outside of them."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str | None:
        """The attribute, or None."""
        return self.attributes.get(name)

    def children_named(self, tag: str) -> list[Element]:
        """The children of that tag."""
        return [child for child in self.children if child.tag == tag]

    def walk(self) -> Iterator[Element]:
        """This element and everything in it, in the order of the text."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting.extend(reversed(element.children))


def root_tag(text: str) -> str | None:
    """The name of the outermost element, from the beginning of a text; None for what is no XML."""
    position = 1 if text.startswith("\ufeff") else 0
    while (match := _PROLOG.match(text, position)) is not None:
        if match.group(1) is not None:
            return match.group(1)
        position = match.end()
        if match.group().endswith("<!--"):
            end = text.find("-->", position)
            if end < 0:
                return None
            position = end + 3
    return None


def read_xml(text: str, kind: str) -> tuple[Element, tuple[str, ...]]:
    """The root element, and sentences about what could not be read.

    Raises FormatError for a text without an element, with declared entities, or beyond the bounds.
    """
    reader = _Reader(kind)
    problems: tuple[str, ...] = ()
    try:
        reader.parser.Parse(text.removeprefix("\ufeff").encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        problems = (f"the XML breaks off at line {error.lineno}: {expat.ErrorString(error.code)}",)
    if reader.root is None:
        raise FormatError(f"{kind}: there is no XML element in the text")
    return reader.root, problems


class _Reader:
    """Builds the elements from expat's callbacks."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.root: Element | None = None
        self._open: list[Element] = []
        self._texts: list[list[str]] = []
        self._count = 0
        # the text is encoded here, whatever encoding it declares
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._data
        self.parser.EntityDeclHandler = self._entity

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS:
            raise FormatError(f"{self.kind}: more than {MAX_ELEMENTS} XML elements")
        if len(self._open) >= MAX_DEPTH:
            raise FormatError(f"{self.kind}: XML nested deeper than {MAX_DEPTH} elements")
        element = Element(tag, attributes)
        if self._open:
            self._open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self._open.append(element)
        self._texts.append([])

    def _data(self, data: str) -> None:
        self._texts[-1].append(data)

    def _end(self, tag: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def _entity(self, name: str, *declaration: object) -> None:
        raise FormatError(f"{self.kind}: the XML declares the entity {name[:40]!r}")
