"""Safe readers of tools' JSON and XML, which may be cut off.

JSON may stand after a prompt, several values in a row. The reader of XML fetches no document type,
refuses declared entities, and limits depth and number of elements.
"""

from __future__ import annotations

import json
import re
import xml.parsers.expat as expat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator


_JSON_MARK: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{},]', re.DOTALL)
_CLOSER: Final = {"{": "}", "[": "]"}
_JSON_VALUE: Final = re.compile(r"[\s,]*[\[{]")
_MAX_DIGITS: Final = 24
_MIN, _MAX = 1e-24, 1e24
"""Larger or smaller values are not measurements, and their products may not be finite."""


def json_start(text: str) -> int | None:
    """Where the first JSON array or object begins: a prompt or warnings may stand before it."""
    match = re.search(r"^[ \t]*(?:\[\s*[\[{\]]|\{)", text, re.MULTILINE)
    return match.start() if match is not None else None


def json_documents(text: str) -> tuple[list[object], bool]:
    """The JSON values that stand in ``text`` one after another, and whether the last breaks off.

    Keys of objects are in lower case: the tools changed the case of many. Of a repeated key the
    last counts. Raises FormatError where no value can be read.
    """
    found: list[object] = []
    position = json_start(text)
    if position is None:
        raise FormatError("not JSON")
    decoder = json.JSONDecoder(
        object_pairs_hook=_lower_keys,
        parse_int=_int,
        parse_float=_float,
        parse_constant=lambda _: None,
    )
    try:
        while position < len(text) and (match := _JSON_VALUE.match(text, position)) is not None:
            try:
                value, position = decoder.raw_decode(text, match.end() - 1)
            except json.JSONDecodeError:
                found.append(decoder.raw_decode(_close_brackets(text[match.end() - 1 :]))[0])
                return found, True
            found.append(value)
    except json.JSONDecodeError as error:
        if found:
            return found, True
        raise FormatError(f"not JSON: {error.msg} in line {error.lineno}") from None
    except RecursionError:
        raise FormatError("this JSON is nested too deeply") from None
    return found, False


def _lower_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {key.lower(): value for key, value in pairs}


def _int(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_DIGITS else None


def _float(text: str) -> float | None:
    value = float(text)
    return value if not value or _MIN <= abs(value) <= _MAX else None


def _close_brackets(text: str) -> str:
    """``text`` up to its last whole value, with the brackets closed that are open there."""
    brackets: list[str] = []
    end, depth = 0, 0
    for match in _JSON_MARK.finditer(text):
        mark = match.group()[0]
        if mark == '"':
            continue
        if mark in _CLOSER:
            brackets.append(_CLOSER[mark])
            continue
        if mark == ",":
            end = match.start()
        elif brackets and brackets.pop() == mark:
            end = match.end()
        else:
            break
        depth = len(brackets)
    return text[:end] + "".join(reversed(brackets[:depth]))


MAX_DEPTH: Final = 128
"""lstopo nests a GPU below four PCIe switches about 20 deep; code may recurse as deep as this."""
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
    """The name of the outermost element, from the beginning of a text; None for what is not XML."""
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
