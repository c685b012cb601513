"""The rules of all vendors' tables ``port.toml``, and what they find in a file.

A rule either has a ``finds``, which names a shape of code that a module of this package knows, or
is named by entries of names, packages and texts, which are data alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from portagpu.facts.vendors.model import tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Severity = Literal["trains nothing", "raises", "other numbers", "slower"]
"""What happens where the use does not work, the worst first."""

Fix = Literal["safe", "unsafe", "none"]
"""Whether a rewrite keeps the meaning ("safe"), may change it ("unsafe"), or there is none."""

SEVERITIES: Final[tuple[Severity, ...]] = ("trains nothing", "raises", "other numbers", "slower")


@dataclass(frozen=True, slots=True)
class Rule:
    """One hazard. ``breaks`` says where and why, ``write`` what to write instead."""

    id: str
    title: str
    severity: Severity
    breaks: str
    write: str
    source: str
    fix: Fix = "none"
    finds: str = ""


@dataclass(frozen=True, slots=True)
class Name:
    """What to write for a qualified name: ``to`` is an attribute of portagpu, or whole with a dot
    before it as in ".torch.nn.LayerNorm". None has no answer. With ``called`` only calls have, and
    none that has one of its ``own_keywords``."""

    rule: Rule
    to: str | None
    called: bool = False
    own_keywords: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword of calls that asks for a vendor's device with one of ``values``, as Python writes
    them; without values, with all but 0, False and None. ``packages`` are those of what is called;
    none are any."""

    rule: Rule
    values: frozenset[str]
    packages: frozenset[str]


@dataclass(frozen=True, slots=True)
class Text:
    """A pattern for lines of files of these kinds; ``kinds`` has "python" for strings in Python.

    ``near`` has to match somewhere in the same line.
    """

    rule: Rule
    kinds: frozenset[str]
    pattern: re.Pattern[str]
    near: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Words:
    """What one vendor's programs call its devices, in Python: ``device`` is a type of torch's."""

    module: str
    device: str
    library: str
    available: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules by id, and what leads to them.

    ``suffixes`` are of kernels' sources; other C++ is one where a pattern of ``kernels`` matches.
    """

    rules: dict[str, Rule] = field(default_factory=dict)
    shapes: dict[str, Rule] = field(default_factory=dict)
    names: dict[str, Name] = field(default_factory=dict)
    packages: dict[str, Rule] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)
    texts: list[Text] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    """Classes of the program with a method of a device's name, such as "cuda", and their files."""
    imported: dict[str, set[str]] = field(default_factory=dict)
    """Modules of the program, and the names that its files import from them; "*" is all."""
    suffixes: set[str] = field(default_factory=set)
    kernels: list[re.Pattern[str]] = field(default_factory=list)


@cache
def load_rules() -> Rules:
    """The rules of all installed vendors. Raises ValueError for a table that is wrong."""
    found = Rules()
    for table in tables("port").values():
        _add(found, table)
    return found


def _add(found: Rules, table: Mapping[str, Any]) -> None:
    for entry in table.get("rule", ()):
        rule = Rule(**entry)
        if rule.id in found.rules or rule.severity not in SEVERITIES:
            raise ValueError(f"the rule {rule.id} is there twice, or has no known severity")
        found.rules[rule.id] = rule
        if rule.finds:
            found.shapes[rule.finds] = rule
    for entry in table.get("name", ()):
        rule = found.rules[entry["rule"]]
        more = (entry.get("called", False), frozenset(entry.get("own_keywords", ())))
        for name in entry.get("same", ()):
            found.names[f"{entry['module']}.{name}"] = Name(rule, name, *more)
        for name, to in entry.get("other", {}).items():
            found.names[f"{entry['module']}.{name}"] = Name(rule, to or None, *more)
    for entry in table.get("package", ()):
        found.packages.update(dict.fromkeys(entry["names"], found.rules[entry["rule"]]))
    for entry in table.get("option", ()):
        wanted, packages = map(repr, entry.get("values", ())), entry.get("packages", ())
        option = Option(found.rules[entry["rule"]], frozenset(wanted), frozenset(packages))
        found.options[entry["keyword"]] = option
    for entry in table.get("text", ()):
        rule, kinds = found.rules[entry["rule"]], frozenset(entry["in"])
        pattern = re.compile(entry["pattern"], re.MULTILINE)
        near = re.compile(entry.get("near", ""))
        found.texts.append(Text(rule, kinds, pattern, near))
    for entry in table.get("words", ()):
        found.words.append(Words(**{**entry, "available": frozenset(entry["available"])}))
    found.suffixes.update(table.get("suffixes", ()))
    found.kernels.extend(re.compile(each) for each in (table.get("kernels"),) if each)


INDEX_NAME: Final = re.compile(
    r"(?:\w+_)?local_rank|rank|(?:local_)?gpu(?:_(?:id|idx|index))?|dev(?:ice)?_(?:id|idx|index|num)"
)
"""Names that hold the number of a device."""
DEVICE_NAME: Final = re.compile(
    r"(?:\w+_)?dev(?:ice)?(?:_(?:type|name|str|string|map))?", re.IGNORECASE
)
TAKE_DEVICE: Final = frozenset({"device", "map_location"})
"""Parameters that take a device and nothing else."""
LIBRARY_NAME: Final = re.compile(r"(?:\w+_)?backend", re.IGNORECASE)

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


def lines_of(text: str) -> list[str]:
    """The lines with their ends, as Python counts them: a form feed ends none."""
    return _LINE.findall(text)


_IGNORE: Final = re.compile(r"portagpu:\s*ignore\b(?:\s*\[([^\]]*))?")


@dataclass(frozen=True, slots=True)
class Finding:
    """One use. ``line`` and ``column`` count from 1; ``left`` says why no rewrite decides it."""

    path: str
    line: int
    column: int
    rule: Rule
    code: str
    left: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that was not judged, and why; it stays as it is."""

    path: str
    why: str


class Ignored:
    """The rules that comments "portagpu: ignore[RULE]" name, and "portagpu: ignore" for all.

    A bracket without the id of a rule ends no finding.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        found = ((number, _IGNORE.search(line)) for number, line in enumerate(lines, 1))
        self._rules = {number: each[1] for number, each in found if each is not None}

    def has(self, line: int, rule: str) -> bool:
        """Whether a comment on that line, from 1, ends the rule's findings."""
        if line not in self._rules:
            return False
        named = self._rules[line]
        return named is None or rule in {each.strip() for each in named.split(",")}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By file, line and column."""
    return sorted(findings, key=lambda each: (each.path, each.line, each.column, each.rule.id))
