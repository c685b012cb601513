"""Scrub a result document: replace what identifies its machine.

Each identifying text becomes ``<kind-n>``. The same text has the same number throughout a document,
so that two devices stay two. Numbers are given in order of appearance: the hash of a serial number
or an address could be reversed by trying them all.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.redact.patterns import PLACEHOLDER, Replace, bare_uuid, replace_forms

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
LONGEST_TEXT: Final = 4000
"""Characters that are kept of one text: reasons are sentences, and a long dump may leak."""

_WORDS_OF_KEYS: Final = (
    "tokens?|secrets?|passw(?:or)?ds?|passphrase|api_?keys?|access_?keys?|private_?key|credentials?"
)
_IDENTIFYING: Final = tuple(
    (re.compile(rf"(?:\A|_)(?:{words})\Z"), kind)
    for words, kind in (
        ("uuid|guid|unique_id", "uuid"),
        ("serial(?:_(?:number|num|no))?|asset_tag", "serial"),
        ("host_?(?:name)?", "host"),
        ("users?_?(?:name)?", "user"),
        ("mac(?:_address)?", "address"),
        (rf"(?:{_WORDS_OF_KEYS})(?:_.*+)?", "secret"),
    )
)
"""Keys, with underscores for blanks, whose values are always replaced."""
_NOTHING: Final = frozenset({"", "0", "n/a", "none", "unknown"})
"""What tools write where they have no value."""
_DROPPED: Final[Mapping[str, str]] = {"output": "output", "environment": "environment"}
"""Keys of other programs' free text and of variables, which may hold anything."""
_WORTH_FINDING: Final = 6
"""Shortest identifying value that is searched for in other texts."""
_KERNEL: Final = re.compile(r"\d+(?:\.\d+)*(?:-\d+(?:\.\d+)*)?")
"""The version in a kernel's release; the builder chooses the rest."""
_VERB: Final = ("portagpu", "bringup")
_OPTIONS: Final = frozenset(
    {"--full", "--quick", "--strict", "--backend", "--target", "--expect-devices"}
)
_PATH_OPTIONS: Final = frozenset({"--out", "--json"})
_BLANKS: Final = re.compile(r"[\s-]++")
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
        of_kind = self.numbers.setdefault(kind, {})
        return f"<{kind}-{of_kind.setdefault(found.lower(), len(of_kind) + 1)}>"

    def text(self, text: str) -> str:
        if len(text) > LONGEST_TEXT:
            self.counts["text"] += 1
            text = text[: LONGEST_TEXT - 1] + "…"
        return self.replace_all(text, self.placeholder)

    def replace_all(self, text: str, replace: Replace) -> str:
        """``text`` of any length with ``replace`` applied to each known name and form."""

        def name(match: re.Match[str]) -> str:
            found = match[0].lower()
            if found not in self.kinds:  # behind a vendor's prefix of UUIDs
                found = bare_uuid(found)
            return replace(self.kinds[found], found)

        if self.expression is not None:
            text = self.expression.sub(name, text)
        return replace_forms(text, replace)


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
            if name in _DROPPED or name == "command":
                yield below, name, item
            else:
                yield from _leaves(item, below, name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]", key)
    else:
        yield path, key, value


def _scrub_value(value: Any, names: Placeholders, key: str) -> Any:
    if key in _DROPPED or key == "command":
        return _scrub_leaf(value, names, key)
    if isinstance(value, dict):
        return {names.text(name): _scrub_value(item, names, name) for name, item in value.items()}
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
    if kind is not None and _names_something(value, kind):
        return _placeholder_for(str(value), names, kind)
    if not isinstance(value, str):
        return value
    if key == "kernel":
        return _kernel_version(value, names)
    return names.text(value)


@lru_cache(maxsize=1024)
def identifying_kind(key: str) -> str | None:
    """The kind that values of that key identify, or None."""
    words = _BLANKS.sub("_", key.lower())
    return next((kind for form, kind in _IDENTIFYING if form.search(words)), None)


def _names_something(value: object, kind: str) -> bool:
    """Whether an identifying key has a value to remove; serial numbers may be numbers."""
    if isinstance(value, str):
        return value.lower() not in _NOTHING
    return kind in ("uuid", "serial") and type(value) in (int, float)


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
