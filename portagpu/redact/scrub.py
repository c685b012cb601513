"""Taking out of a result document what says whose machine it was, as a function of the document.

Everything that is taken out becomes ``<kind-n>``. The same text has the same number throughout one
document, so that two devices stay two; numbers are given in order of appearance and not computed
from the text, because a hash of a serial number or an address is found again by trying them all.
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
"""What is taken out, as bundles count it."""
LONGEST_TEXT: Final = 4000
"""Characters that are kept of one text: reasons are sentences, and the end of a dump is a leak."""

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
"""Keys, with underscores for blanks, whose values are replaced whatever they look like."""
_NOTHING: Final = frozenset({"", "0", "n/a", "none", "unknown"})
"""What tools write where they know no value."""
_DROPPED: Final[Mapping[str, str]] = {"output": "output", "environment": "environment"}
"""Keys of free text of other programs, and of variables: nobody can tell what is in them."""
_WORTH_FINDING: Final = 6
"""Characters from which an identifying value is looked for in other texts too: "0" is not."""
_KERNEL: Final = re.compile(r"\d+(?:\.\d+)*(?:-\d+(?:\.\d+)*)?")
"""Of a kernel's release what its publisher numbers; what follows is named by whoever built it."""
_VERB: Final = ("portagpu", "bringup")
_OPTIONS: Final = frozenset(
    {"--full", "--quick", "--strict", "--backend", "--target", "--expect-devices"}
)
_PATH_OPTIONS: Final = frozenset({"--out", "--json"})
_BLANKS: Final = re.compile(r"[\s-]++")
_PLAIN_WORD: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """A document without what identifies, and how often each kind was taken out."""

    document: Any
    counts: Mapping[str, int]


@dataclass(slots=True)
class Names:
    """Which placeholder stands for which text, and where replacing happened.

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
        return self.replaced(text, self.placeholder)

    def replaced(self, text: str, replace: Replace) -> str:
        """``text`` of any length with what ``replace`` says for each name and form in it."""

        def name(match: re.Match[str]) -> str:
            found = match[0].lower()
            if found not in self.kinds:  # behind a vendor's prefix of UUIDs
                found = bare_uuid(found)
            return replace(self.kinds[found], found)

        if self.expression is not None:
            text = self.expression.sub(name, text)
        return replace_forms(text, replace)


def scrub(document: Any, known: Sequence[tuple[str, str]] = ()) -> Scrubbed:
    """``document`` (JSON's types) without what identifies, by key, by form and by name.

    ``known`` holds pairs of kind and text of this machine, such as ("host", "node-07"); they are
    found in any case of letters, wherever they stand as a word of their own. Nothing is read but
    the arguments. Scrubbing what is scrubbed, with or without ``known``, changes nothing.
    """
    names = Names([*known, *_identifying(document)])
    return Scrubbed(_scrubbed(document, names, ""), dict(sorted(names.counts.items())))


def remaining(document: Any) -> Iterator[tuple[str, str]]:
    """(path of the key, kind) of what still identifies by its key or its form."""
    for path, key, value in _leaves(document, "", ""):
        names = Names(())
        if _leaf(value, names, key) != value:
            yield path, next(iter(names.counts))


def _identifying(document: Any) -> Iterator[tuple[str, str]]:
    for _, key, value in _leaves(document, "", ""):
        kind = kind_of(key)
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


def _scrubbed(value: Any, names: Names, key: str) -> Any:
    if key in _DROPPED or key == "command":
        return _leaf(value, names, key)
    if isinstance(value, dict):
        return {names.text(name): _scrubbed(item, names, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_scrubbed(item, names, key) for item in value]
    return _leaf(value, names, key)


def _leaf(value: Any, names: Names, key: str) -> Any:
    """What stands for ``value``, which is under the key of that name."""
    if key in _DROPPED and value and isinstance(value, str | list | dict):
        return _whole(str(value), names, _DROPPED[key])
    if key == "command" and isinstance(value, list):
        return list(_command(value, names))
    kind = kind_of(key)
    if kind is not None and _names_something(value, kind):
        return _whole(str(value), names, kind)
    if not isinstance(value, str):
        return value
    if key == "kernel":
        return _kernel(value, names)
    return names.text(value)


@lru_cache(maxsize=1024)
def kind_of(key: str) -> str | None:
    """What the values of that key identify, or None."""
    words = _BLANKS.sub("_", key.lower())
    return next((kind for form, kind in _IDENTIFYING if form.search(words)), None)


def _names_something(value: object, kind: str) -> bool:
    """Whether the value of an identifying key is one: a serial number may be a number."""
    if isinstance(value, str):
        return value.lower() not in _NOTHING
    return kind in ("uuid", "serial") and type(value) in (int, float)


def _whole(text: str, names: Names, kind: str) -> str:
    return text if PLACEHOLDER.fullmatch(text) else names.placeholder(kind, text)


def _kernel(release: str, names: Names) -> str:
    match = _KERNEL.match(release)
    kept = match[0] if match is not None else ""
    if kept != release:
        names.counts["kernel"] += 1
    return kept


def _command(words: Sequence[Any], names: Names) -> Iterator[Any]:
    """The verb and the options whose values are words of this package; nothing else is kept."""
    before = ""
    for position, word in enumerate(words):
        plain = isinstance(word, str) and _PLAIN_WORD.fullmatch(word) is not None
        verb = position < len(_VERB) and word == _VERB[position]
        if verb or word in _OPTIONS | _PATH_OPTIONS:
            yield word
        elif before in _OPTIONS and plain:
            yield names.text(word)
        else:
            yield _whole(str(word), names, "argument")
        before = word if isinstance(word, str) else ""
