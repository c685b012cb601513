"""Events in log lines, by tables of regular expressions, each with a source.

``kernel_log.toml`` has lines of logs. ``answers.toml`` has what tools print where they have no
answer. Each vendor brings its own (``portagpu.facts.vendors.Vendor.tables``); the host's are here.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import decode
from portagpu.facts.actions import Action
from portagpu.facts.formats import pci_address
from portagpu.facts.readings.model import Event
from portagpu.facts.vendors import leave_out_table, tables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

ANSWERS: Final = "a tool's answer"
HOST: Final = "host"
"""The vendor of events that are not of a GPU or its driver."""
_FOLDER: Final = Path(__file__).resolve().parent
_LINE_CHARS: Final = 2000
"""Characters of a line that are matched; the kernel cuts at 1024 (``PRINTKRB_RECORD_MAX``)."""
_ABOUT_LINES: Final = 4
"""Lines after one that names a device that may be about it: drivers wrap their sentences."""
TIMES: Final = re.compile(
    r"(?:/[\w./-]{1,80}:)?(?:<\d{1,3}>|[a-z]{3,8} *:[a-z]{2,6} *: |kernel: )?(?:"
    r"\d{1,4},\d{1,20},(?P<kmsg>\d{1,20}),[^;]{0,40};"
    r"|\[(?P<bracket>[^\]\[]{1,40})\]"
    r"|(?P<iso>\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24}) "
    r"|(?P<syslog>(?:[^\W\d_]{3,9}\.?|\d{1,2}月) [ \d]\d [\d:.]{8,15}) "
    r"|(?:[\w.-]{1,60}: )?kern: [a-z]{3,8}: \[(?P<talos>\d{4}-\d\d-\d\dT[\d:.]{8,18}Z?)\])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Todo:
    """What to do about an event, in words and for programs."""

    action: str | None = None
    fatal: bool | None = None
    todo: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A pattern of lines; ``name`` is of what a version is stated, or the form of a device's."""

    pattern: str
    name: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventLine:
    pattern: str
    code: str
    meaning: str | None = None
    action: str | None = None
    fatal: bool | None = None
    todo: str | None = None
    codes: str | None = None
    unsettled: bool = False
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A table's file; ``kernel_log.toml`` of this folder describes its keys."""

    worth: tuple[str, ...]
    event: tuple[_EventLine, ...]
    of_processes: tuple[str, ...] = ()
    where: tuple[_Line, ...] = ()
    about: tuple[_Line, ...] = ()
    gpu: tuple[_Line, ...] = ()
    version: tuple[_Line, ...] = ()
    codes: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """[meaning, name of an action] by code number."""
    codes_of: str | None = None
    """The vendor's other table that has the codes and their actions."""
    unused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    actions: Mapping[str, _Todo] = field(default_factory=dict)
    recovery: Mapping[str, _Todo] = field(default_factory=dict)
    severity: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rule:
    """``where`` finds the device in a line whose pattern has not found its address."""

    pattern: re.Pattern[str]
    vendor: str
    event: _EventLine
    file: _File
    where: tuple[tuple[str, re.Pattern[str]], ...]
    literal: str
    """Letters that every line has which the pattern matches; "" where none are known."""


@dataclass(frozen=True, slots=True)
class Table:
    """The rules of all vendors and of the host; ``about`` names the device of lines that follow.

    A line without any of a vendor's ``keywords`` in it, in lower case, says nothing of that
    vendor's. Lines of the events ``process_codes`` name processes.
    """

    keywords: Mapping[str, tuple[str, ...]]
    process_codes: frozenset[str]
    rules: tuple[_Rule, ...]
    about: tuple[tuple[str, re.Pattern[str]], ...]
    gpus: tuple[tuple[str, re.Pattern[str]], ...]
    versions: tuple[tuple[str, re.Pattern[str]], ...]
    by_shape: dict[str, _Shape] = field(default_factory=dict, compare=False, repr=False)
    """Rules that lines may be of, by their letters without digits: what was looked up before."""


@cache
def table(name: str) -> Table:
    """The rules of each vendor's ``<name>.toml``, and the host's after them.

    A vendor's table that is wrong is left out, and ``portagpu.facts.vendors.problems`` says why.
    """
    found: list[Table] = []
    for vendor, data in [*tables(name).items()]:
        try:
            file = decode(_File, data, f"{name}.toml")
            if (of := file.codes_of) is not None:
                other = decode(_File, tables(of)[vendor], f"{of}.toml")
                file = replace(file, codes=other.codes, actions=other.actions, unused=other.unused)
            found.append(_vendor_table(vendor, file))
        except (KeyError, ValueError, re.error) as error:
            leave_out_table(vendor, name, error)
    host = _FOLDER / f"{name}.toml"
    if host.is_file():
        data = tomllib.loads(host.read_text(encoding="utf-8"))
        found.append(_vendor_table(HOST, decode(_File, data, f"{name}.toml")))
    return Table(
        keywords={vendor: words for each in found for vendor, words in each.keywords.items()},
        process_codes=frozenset(code for each in found for code in each.process_codes),
        rules=tuple(rule for each in found for rule in each.rules),
        about=tuple(pattern for each in found for pattern in each.about),
        gpus=tuple(pattern for each in found for pattern in each.gpus),
        versions=tuple(pattern for each in found for pattern in each.versions),
    )


def _vendor_table(vendor: str, file: _File) -> Table:
    """One file's rules. Raises for patterns, groups and codes that are not there."""

    def compile_pattern(text: str, *groups: str) -> re.Pattern[str]:
        pattern = re.compile(text)
        for group in groups:
            if group not in pattern.groupindex:
                raise ValueError(f"the pattern {text!r} has no group {group}")
        return pattern

    def patterns(lines: tuple[_Line, ...], *groups: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
        return tuple(
            (each.name or vendor, compile_pattern(each.pattern, *groups)) for each in lines
        )

    where = tuple((each.name or "{device}", compile_pattern(each.pattern)) for each in file.where)
    for form, pattern in where:
        if not pattern.groupindex.keys() & {"pci", "device"}:
            raise ValueError(f"the pattern {pattern.pattern!r} has neither a group pci nor device")
        form.format(device="")

    def rule(each: _EventLine) -> _Rule:
        pattern = compile_pattern(each.pattern, *(() if each.codes is None else ("number",)))
        # what is to fail fails here, and not with a line of a log
        _code(each.code, dict.fromkeys(pattern.groupindex, ""))
        if each.codes is not None and each.codes not in file.codes:
            raise ValueError(f"there are no codes {each.codes!r}")
        if each.source is not None and each.source not in file.sources:
            raise ValueError(f"there is no source {each.source!r}")
        return _Rule(pattern, vendor, each, file, where, required_letters(each.pattern))

    stated = [each.todo for each in file.event]
    stated += [each.todo for each in (*file.actions.values(), *file.recovery.values())]
    for todo in stated:
        if todo is not None and todo not in set(Action):
            raise ValueError(f"todo is one of {', '.join(Action)}, not {todo!r}")
    return Table(
        keywords={vendor: tuple(word.lower() for word in file.worth)},
        process_codes=frozenset(file.of_processes),
        rules=tuple(rule(each) for each in file.event),
        about=patterns(file.about, "pci"),
        gpus=patterns(file.gpu, "pci", "uuid"),
        versions=patterns(file.version, "version"),
    )


def events(text: str, rules: Table, source: str) -> Iterator[tuple[str, Event | None]]:
    """Each line that has a keyword, with its event; None for a line without one."""
    about: tuple[str, str] | None = None
    left = 0
    worth = _lines_with_words(text.lower(), rules.keywords)
    lines = text.splitlines() if worth else []
    before = -1
    for at in sorted(worth):
        line, vendors = lines[at][:_LINE_CHARS], worth[at]
        left -= at - before
        before = at
        for of, pattern in rules.about:
            if (match := pattern.search(line)) is not None:
                about, left = (of, match.group("pci")), _ABOUT_LINES
        event = _event(line, rules, source, vendors)
        if event is not None and event.pci is None and about is not None and left > 0:
            pci = pci_address(about[1]) if event.vendor == about[0] else None
            event = replace(event, pci=pci)
        yield line, event


_PLAIN: Final = re.compile(r"(?:[\w ,:;=<>@/#%&'\"~`!-]|\\[^\w\s])+")
"""Letters of a regular expression that stand for themselves."""


def required_letters(pattern: str) -> str:
    """The longest run of letters that every text has which the regular expression matches.

    Only what stands outside of groups, classes and alternatives is looked at; "" where that has
    none, or where the case of letters does not count.
    """
    if "(?i" in pattern:
        return ""
    best, at, depth = "", 0, 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "[":
            # a bracket may be the first letter of a class
            at = pattern.index("]", at + (3 if pattern[at + 1 : at + 3] == "^]" else 2)) + 1
        elif letter == "{":
            at = pattern.index("}", at) + 1
        elif depth == 0 and letter == "|":
            return ""
        elif depth == 0 and (run := _PLAIN.match(pattern, at)) is not None:
            at = run.end()
            text = re.sub(r"\\(.)", r"\1", run.group())
            # a quantifier belongs to the last letter
            if pattern[at : at + 1] in ("?", "*", "{"):
                text = text[:-1]
            best = max(best, text, key=len)
        else:
            depth += (letter == "(") - (letter == ")")
            at += 2 if letter == "\\" else 1
            if letter == ")" and depth < 0:
                return ""
    return best


def _lines_with_words(lower: str, keywords: Mapping[str, Collection[str]]) -> dict[int, set[str]]:
    """The numbers of lines that have a keyword, each with the vendors whose it is.

    The words are searched in the whole text: most lines of a log have none, and cost nothing.
    """
    found: dict[int, set[str]] = {}
    places = [
        (vendor, hit.start())
        for vendor, words in keywords.items()
        if (present := [re.escape(word) for word in words if word in lower])
        for hit in re.finditer("|".join(present), lower)
    ]
    if not places:
        return found
    ends = list(accumulate(map(len, lower.splitlines(keepends=True))))
    for vendor, place in places:
        at = bisect_right(ends, place)
        if place - (ends[at - 1] if at else 0) < _LINE_CHARS:
            found.setdefault(at, set()).add(vendor)
    return found


def may_be_event(line: str) -> bool:
    """Whether a line of a log has a word of those that all events have one of."""
    lower = line.lower()
    return any(word in lower for words in table("kernel_log").keywords.values() for word in words)


def no_answer_events(text: str) -> tuple[Event, ...]:
    """Events for the lines that vendors' tools print where they have no answer."""
    found = events(text, table("answers"), ANSWERS)
    return tuple(event for _, event in found if event is not None)


_DIGITS: Final = str.maketrans("", "", "0123456789")
_MAX_SHAPES: Final = 20_000
_TRIES: Final = 50
"""Lines of one shape without an event, after which rules that name no number are not tried."""
_NO_NUMBER: Final = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\{[\d,]+\}|\(\?P<\w+>")
"""What of a regular expression is not a number of a line, though it may have digits."""


@dataclass(slots=True)
class _Shape:
    """Lines that differ in digits alone: the rules that they may be of."""

    rules: tuple[_Rule, ...]
    without_event: int = 0


def _shape_of(line: str, rules: Table) -> _Shape:
    letters = line.translate(_DIGITS)
    found = rules.by_shape.get(letters)
    if found is None:
        if len(rules.by_shape) >= _MAX_SHAPES:
            rules.by_shape.clear()
        may = tuple(each for each in rules.rules if each.literal.translate(_DIGITS) in letters)
        found = rules.by_shape[letters] = _Shape(may)
    return found


def _names_a_number(rule: _Rule) -> bool:
    return re.search(r"\d", _NO_NUMBER.sub("", rule.event.pattern)) is not None


def _event(line: str, rules: Table, source: str, vendors: Collection[str]) -> Event | None:
    shape = _shape_of(line, rules)
    for rule in shape.rules:
        if rule.vendor not in vendors or rule.literal not in line:
            continue
        match = rule.pattern.search(line)
        if match is None:
            continue
        groups = {key: value for key, value in match.groupdict().items() if value is not None}
        if groups.get("count", "1").strip("0") == "":
            return None  # the driver also reports that there are none
        meaning, todo = _meaning(rule, groups)
        pci = pci_address(groups.get("pci"))
        pci, device = (pci, None) if pci is not None else _device(rule, line)
        return Event(
            source=source,
            vendor=rule.vendor,
            code=_code(rule.event.code, groups),
            pci=pci,
            time=line_time(line),
            meaning=meaning,
            action=todo.action,
            fatal=todo.fatal,
            todo=todo.todo,
            reference=rule.file.sources.get(rule.event.source or ""),
            line=line.strip(),
            device=device,
            unsettled=rule.event.unsettled,
        )
    shape.without_event += 1
    if shape.without_event == _TRIES:
        shape.rules = tuple(filter(_names_a_number, shape.rules))
    return None


def _device(rule: _Rule, line: str) -> tuple[str | None, str | None]:
    """(address, None), or (None, what the line calls the device); two times None if neither."""
    name = None
    for form, pattern in rule.where:
        groups = match.groupdict() if (match := pattern.search(line)) is not None else {}
        if (pci := pci_address(groups.get("pci"))) is not None:
            return pci, None
        if name is None and groups.get("device") is not None:
            name = form.format(device=groups["device"])
    return None, name


def _code(form: str, groups: Mapping[str, str]) -> str:
    return form.format(**{"number": "", "block": "", **groups}).strip()


def _meaning(rule: _Rule, groups: dict[str, str]) -> tuple[str | None, _Todo]:
    """What a line means and asks for; its own words take precedence over the tables."""
    event, file = rule.event, rule.file
    meaning, found = event.meaning, _Todo(action=event.action, fatal=event.fatal, todo=event.todo)
    if event.codes is not None:
        number = _table_key(groups["number"], 10)
        meaning, bucket = file.codes[event.codes].get(number, (None, ""))
        if number in map(str, file.unused.get(event.codes, ())):
            meaning = "not used by the vendor's current GPUs"
        found = file.actions.get(bucket, _Todo())
    if "recovery" in groups:
        stated = file.recovery.get(_table_key(groups["recovery"], 16), _Todo())
        found = _Todo(
            action=found.action if stated.action is None else stated.action,
            fatal=found.fatal if stated.fatal is None else stated.fatal,
            todo=found.todo if stated.todo is None else stated.todo,
        )
    if "severity" in groups:
        severity = groups["severity"].lower()
        found = replace(found, fatal="fatal" in severity and "non" not in severity)
    if found.fatal and (found.todo is None or "severity" in groups):
        # that is what the word says: the GPU needs a reset or replacement
        found = replace(found, todo=max(Action(found.todo or Action.RESET), Action.RESET))
    return meaning, found


def _table_key(text: str, base: int) -> str:
    """The key of a number in a table: "7" for "007"; ``text`` where it is not a number."""
    try:
        return str(int(text, base))
    except ValueError:
        return text


def line_time(line: str) -> str | None:
    """When the line was written, as it says it: a date, or seconds since the kernel started."""
    match = TIMES.match(line)
    if match is None:
        return None
    if match.group("kmsg") is not None:
        return f"{int(match.group('kmsg')) / 1e6:.6f}"  # in microseconds
    text = next(filter(None, match.groups()), "").strip()
    return text if any(character.isdigit() for character in text) else None
