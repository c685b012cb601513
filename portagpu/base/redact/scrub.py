"""Scrub a result document: replace what identifies its machine.

Each identifying text becomes ``<kind-n>``. The same text has the same number throughout a document,
so that two devices stay two. Numbers are given in order of appearance: the hash of a serial number
or an address could be reversed by trying them all.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.redact.names import identifying_kind, names_something, nearest_key
from portagpu.base.redact.patterns import (
    PLACEHOLDER,
    Replace,
    bare_address,
    bare_uuid,
    replace_forms,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KINDS: Final = (
    "address",
    "argument",
    "environment",
    "host",
    "kernel",
    "output",
    "path",
    "secret",
    "serial",
    "text",
    "url",
    "user",
    "uuid",
)
"""Kinds of removed texts, as bundles count them."""
MAX_TEXT: Final = 4000
"""Characters that are kept of one text: reasons are sentences, and a long dump may leak."""

_DROPPED: Final[Mapping[str, str]] = {"output": "output", "environment": "environment"}
"""Keys of other programs' free text and of variables, which may hold anything."""
_WHOLE: Final = frozenset({*_DROPPED, "command"})
"""Keys whose values are treated as a whole."""
_WORTH_FINDING: Final = 6
"""Shortest identifying value that is searched for in other texts."""
_KERNEL: Final = re.compile(r"\d+(?:\.\d+)*(?:-\d+(?:\.\d+)*)?")
"""The version in a kernel's release; the builder chooses the rest."""
_VERB: Final = ("portagpu", "bringup")
_OPTIONS: Final = frozenset(
    {"--full", "--quick", "--level", "--strict", "--backend", "--target", "--expect-devices"}
)
_PATH_OPTIONS: Final = frozenset({"--out", "--json", "--ocp"})
_LIKE_JSON: Final = re.compile(r"[{\[]\s*+[\"{\[]|\"(?=[{\[]\s*+\\\")")
_DECODER: Final = json.JSONDecoder()
_TRIES: Final = 4
"""Places of one line that look like JSON and are none."""
_PLAIN_WORD: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")


@dataclass(frozen=True, slots=True)
class ScrubbedDocument:
    """A scrubbed document, and how often each kind was replaced."""

    document: Any
    counts: Mapping[str, int]


@dataclass(slots=True)
class Placeholders:
    """Assigns placeholders to texts, and counts replacements.

    ``known`` are pairs of kind and text that are found as words of their own, in any case of
    letters.
    """

    known: Sequence[tuple[str, str]]
    counts: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    expression: re.Pattern[str] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        longest_first = sorted({text for _, text in self.known if text}, key=len, reverse=True)
        if longest_first:
            choices = "|".join(map(re.escape, longest_first))
            # an underscore separates: a name is found in the name of its cache
            self.expression = re.compile(
                rf"(?<![A-Za-z0-9])(?!(?<=<)[a-z]+-\d+>)(?:[A-Z]{{2,4}}-)??(?:{choices})(?![A-Za-z0-9])",
                re.IGNORECASE,
            )
        self.kinds = {text.lower(): kind for kind, text in self.known}

    def placeholder(self, kind: str, found: str) -> str:
        self.counts[kind] += 1
        if kind == "uuid":
            found = bare_uuid(found)
        elif kind == "address":
            found = bare_address(found)
        of_kind = self.numbers.setdefault(kind, {})
        return f"<{kind}-{of_kind.setdefault(found.lower(), len(of_kind) + 1)}>"

    def text(self, text: str) -> str:
        if len(text) > MAX_TEXT:
            self.counts["text"] += 1
            text = text[: MAX_TEXT - 1] + "…"
        return self.replace_all(text, self.placeholder)

    def replace_all(self, text: str, replace: Replace) -> str:
        """``text`` of any length with ``replace`` applied to each known name and form."""

        pieces: list[str] = []
        end = 0
        for begin, after in _places_like_json(text):
            if begin >= end and (clean := self._json_text(text[begin:after], replace)) is not None:
                pieces += [self._outside_json(text[end:begin], replace), clean]
                end = after
        return "".join([*pieces, self._outside_json(text[end:], replace)])

    def _outside_json(self, text: str, replace: Replace) -> str:
        def name(match: re.Match[str]) -> str:
            found = match[0].lower()
            if found not in self.kinds:  # after a vendor's prefix of UUIDs
                found = bare_uuid(found)
            return replace(self.kinds[found], found)

        if self.expression is not None:
            text = self.expression.sub(name, text)
        return replace_forms(text, replace)

    def _json_text(self, text: str, replace: Replace) -> str | None:
        """``text`` as the JSON that it is, cleaned by its keys; None if it is something else."""
        try:
            document = json.loads(text, object_pairs_hook=_distinct)
            clean = self._json_value(document, "", replace)
            return text if clean == document else json.dumps(clean, ensure_ascii=False)
        except (ValueError, RecursionError):
            return None

    def _json_value(self, value: Any, key: str, replace: Replace) -> Any:
        if isinstance(value, dict):
            return {
                self.replace_all(name, replace): self._json_value(
                    item, nearest_key(key, name, value), replace
                )
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._json_value(item, key, replace) for item in value]
        kind = identifying_kind(key)
        if kind is not None and names_something(kind, key, value):
            text = str(value)
            return text if PLACEHOLDER.fullmatch(text) else replace(kind, text)
        return self.replace_all(value, replace) if isinstance(value, str) else value


def _places_like_json(text: str) -> Iterator[tuple[int, int]]:
    """Where the text as a whole, or else a part of one of its lines, begins and ends like JSON."""
    bare = text.strip()
    if len(bare) > 1 and bare[0] + bare[-1] in ("{}", "[]", '""'):
        yield (first := text.index(bare)), first + len(bare)
    at = line_end = tries = 0
    while (begin := _LIKE_JSON.search(text, at)) is not None:
        at = begin.start()
        if at >= line_end:
            found = text.find("\n", at)
            line_end, tries = found if found >= 0 else len(text), 0
        try:
            _, length = _DECODER.raw_decode(text[at:line_end])
        except (ValueError, RecursionError):
            tries += 1
            at = line_end if tries == _TRIES else at + 1
        else:
            yield at, at + length
            at += length


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for a key that is there twice: one would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def scrub(document: Any, known: Sequence[tuple[str, str]] = ()) -> ScrubbedDocument:
    """``document`` (JSON's types) with identifying texts replaced, by key, by form and by name.

    ``known`` holds pairs of kind and text of this machine, such as ("host", "node-07"); they are
    found in any case of letters, wherever they stand as a word of their own. Nothing is read but
    the arguments. Scrubbing what is scrubbed, with or without ``known``, changes nothing.
    """
    names = Placeholders([*known, *_identifying_values(document)])
    return ScrubbedDocument(_scrub_value(document, names, ""), dict(sorted(names.counts.items())))


def find_identifying(document: Any) -> Iterator[tuple[str, str]]:
    """(path of the key, kind) of values that still identify by their key or form."""
    for path, key, value in _leaves(document, "", ""):
        names = Placeholders(())
        if _scrub_leaf(value, names, key) != value:
            yield path, next(iter(names.counts))


def _identifying_values(document: Any) -> Iterator[tuple[str, str]]:
    for _, key, value in _leaves(document, "", ""):
        kind = identifying_kind(key)
        if kind is None or not isinstance(value, str) or len(value) < _WORTH_FINDING:
            continue
        if not PLACEHOLDER.fullmatch(value):
            yield kind, bare_uuid(value) if kind == "uuid" else value


def _leaves(value: Any, path: str, key: str) -> Iterator[tuple[str, str, Any]]:
    """(path, name of the nearest key, value) of every text, number and key."""
    if isinstance(value, dict):
        for name, item in value.items():
            below = f"{path}.{name}" if path else name
            yield path, "", name
            if name in _WHOLE:
                yield below, name, item
            else:
                yield from _leaves(item, below, nearest_key(key, name, value))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]", key)
    else:
        yield path, key, value


def _scrub_value(value: Any, names: Placeholders, key: str) -> Any:
    if key in _WHOLE:
        return _scrub_leaf(value, names, key)
    if isinstance(value, dict):
        return {
            names.text(name): _scrub_value(
                item, names, name if name in _WHOLE else nearest_key(key, name, value)
            )
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_scrub_value(item, names, key) for item in value]
    return _scrub_leaf(value, names, key)


def _scrub_leaf(value: Any, names: Placeholders, key: str) -> Any:
    """The replacement of ``value``, which is under the key of that name."""
    if key in _DROPPED and value and isinstance(value, str | list | dict):
        return _placeholder_for(str(value), names, _DROPPED[key])
    if key == "command" and isinstance(value, list):
        return list(_known_words(value, names))
    kind = identifying_kind(key)
    if kind is not None and names_something(kind, key, value):
        return _placeholder_for(str(value), names, kind)
    if not isinstance(value, str):
        return value
    if key == "kernel":
        return _kernel_version(value, names)
    return names.text(value)


def _placeholder_for(text: str, names: Placeholders, kind: str) -> str:
    return text if PLACEHOLDER.fullmatch(text) else names.placeholder(kind, text)


def _kernel_version(release: str, names: Placeholders) -> str:
    match = _KERNEL.match(release)
    kept = match[0] if match is not None else ""
    if kept != release:
        names.counts["kernel"] += 1
    return kept


def _known_words(words: Sequence[Any], names: Placeholders) -> Iterator[Any]:
    """The words of a command to keep: the verb, and options with this package's own words."""
    before = ""
    for position, word in enumerate(words):
        plain = isinstance(word, str) and _PLAIN_WORD.fullmatch(word) is not None
        verb = position < len(_VERB) and word == _VERB[position]
        if verb or word in _OPTIONS | _PATH_OPTIONS:
            yield word
        elif before in _OPTIONS and plain:
            yield names.text(word)
        else:
            yield _placeholder_for(str(word), names, "argument")
        before = word if isinstance(word, str) else ""
