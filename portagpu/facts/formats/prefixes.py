"""What launchers, clusters and collectors of logs write in front of lines.

One line may have several prefixes: ``kubectl logs --prefix --timestamps`` writes a pod and a time,
and torch a rank after them. Some forms are known by their own marks, so that they are found on any
line. All others are known by their regularity (:func:`regular_prefixes`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_PREFIXES: Final = 8

_DATE: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES: Final = re.compile(
    r"(?:>[ \t]?){1,8}"
    # torch's own hook for exceptions, and torchrun's and torchx's labels of roles
    r"|\[rank(?P<rank>\d{1,7})\]:[ ]?"
    r"|\[(?:default|[a-z_]{1,20})(?P<local>\d{1,7})(?:\|\d{1,7})?\]:[ ]?"
    r"|[a-z_]{1,20}/\d{1,7} \[\d{1,7}\]:[ ]?"
    # mpirun --tag-output, srun --label
    r"|\[\d{1,9}(?:,(?P<tagged>\d{1,7}))?\](?:<std(?:out|err|diag)>:[ ]?|[ ]?(?=\[rank\d))"
    r"|[ ]{0,6}(?P<label>\d{1,7}):(?:[ ]|$)"
    # Ray
    r"|\((?:[A-Za-z_][\w.:]{0,80} (?:rank=(?P<worker>\d{1,7}) |TP(?P<part>\d{1,7}) )?pid=\d{1,9}"
    r"|raylet)(?:, ip=[\w.:]{1,60})?\)[ ]?"
    # kubectl logs --prefix, stern, and benches that name the stream
    r"|\[pod/[\w./-]{1,200}\][ ]"
    r"|[\w./-]{1,100} \[std(?:out|err)\][ ]?"
    rf"|[ \t]{{0,8}}\|[ ](?={_DATE})"
    # SGLang, whose TP number is the rank of a job without pipeline stages
    rf"|\[{_DATE}(?: DP\d{{1,7}})?(?: TP(?P<slice>\d{{1,7}}))?(?: EP\d{{1,7}})?\][ ]?"
    rf"|\[?{_DATE}\]?(?:[ ]\|)?(?:[ ]{{1,4}}|$)"
    # the logging of serving frameworks
    r"|(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"\[?[\w./-]{1,80}\.py:\d{1,6}\][ ]?"
)
_LEVELS: Final = ("DEBUG ", "INFO ", "WARNING ", "ERROR ", "CRITICAL ")
_MAX_NAME: Final = 110
"""Letters in which a prefix that begins with a name has its bracket."""
REPEATED: Final = "[repeated "
"""What a line of Ray has that stands for others."""
_REPEATED: Final = re.compile(r" ?\[repeated (\d{1,7})x across cluster\].{0,200}$")
_JSON_TEXTS: Final = ("log", "message", "msg", "text", "textPayload", "line", "MESSAGE", "output")
_JSON_INNER: Final = ("message", "jsonPayload", "_source", "fields")
_FOLDED: Final = re.compile(r'\\n(?!")')
"""A line's end in a text of JSON, which is not that text's end."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the prefixes of a line say of it.

    ``rank`` is that of the whole job. ``label`` is what distinguishes the process: a number that a
    launcher gave to it, mostly its rank too, or what else a prefix has but times. ``repeats`` are
    further equal lines of other processes, for which this one stands: Ray's count is of this line
    and those (``python/ray/_private/ray_logging``). ``level`` is a level's word, "" without; lines
    of one origin may differ in it.
    """

    rank: int | None = None
    label: str = ""
    repeats: int = 0
    level: str = field(default="", compare=False)


PLAIN: Final = Origin()


def split_prefixes(line: str, regular: RegularPrefix | None = None) -> tuple[Origin, str]:
    """The line without what stands in front of it, and what that says.

    :param line: one line of text.
    :param regular: what stands in front of most lines here, from :func:`regular_prefixes`.
    """
    if regular is None and line[:1].isalpha() and not _may_have_one(line[:_MAX_NAME]):
        return _without_repeats(PLAIN, line)
    rank: int | None = None
    label = level = ""
    at = 0
    for _ in range(_MAX_PREFIXES):
        if (found := _PREFIXES.match(line, at)) is not None:
            said = found.groupdict()
            stated = said["rank"] or said["worker"] or said["part"] or said["slice"]
            if stated is not None:
                rank = int(stated)
            label = said["tagged"] or said["label"] or said["local"] or label
            level = said["level"] or level
            at = found.end()
        elif regular is not None and (length := regular.length(line[at : at + _MAX_HEAD])):
            text = line[at : at + length]
            if (named := _RANK.search(text)) is not None:
                rank = int(named[1])
            if (word := _LEVEL.search(text)) is not None:
                level = word[0]
            label += _LEVEL.sub("", _TIME.sub("", text))
            at += length
            regular = None
        else:
            break
    rest = line[at:] if at else line
    is_plain = rank is None and not label and not level
    return _without_repeats(PLAIN if is_plain else Origin(rank, label, level=level), rest)


def _may_have_one(head: str) -> bool:
    """Whether a line that begins with a letter may have a prefix of a known form."""
    return (" [std" in head or ("/" in head and " [" in head)) or head.startswith(_LEVELS)


def _without_repeats(origin: Origin, line: str) -> tuple[Origin, str]:
    if REPEATED not in line or (found := _REPEATED.search(line)) is None:
        return origin, line
    return replace(origin, repeats=max(int(found[1]) - 1, 0)), line[: found.start()]


_MAX_HEAD: Final = 160
"""Letters of a line in which its prefix ends."""
_MAX_SAMPLE: Final = 600
"""Lines of a text by which its prefix is known."""
_SHARE: Final = 0.8
"""Of the lines that say something: some are written by the program that wrote the prefixes."""
_CLASSES: Final = {
    "L": r"\b(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE)\b[ ]{0,5}"
    r"|\b[DIWEF](?=\d{4}\b)",
    "M": r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b",
    "S": r"\bstd(?:out|err|diag)\b",
    # names of hosts, pods and files
    "N": r"[A-Za-z_][\w./@]{0,60}[-\d/.][\w./@-]{0,100}",
    "D": r"\d+",
    "B": r"[ \t]+",
}
"""Tokens of prefixes that differ between lines, each with what it matches."""
_TOKEN: Final = re.compile(
    "|".join(f"(?P<{name}>{pattern})" for name, pattern in _CLASSES.items())
    + r"|(?P<W>[A-Za-z_]+)|(?P<O>.)"
)
_ENDS: Final = frozenset(":|]>)%")
_LEVEL: Final = re.compile(r"\b(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE)\b")
_RANK: Final = re.compile(r"(?i:\brank|mpirank)[ :=_]{0,2}(\d{1,7})\b")
_TIME: Final = re.compile(r"\d{1,4}(?:[-/:.,T @]{1,3}\d{1,9})+(?:Z|[+-]\d\d:?\d\d)?|[.,]\d+")


@dataclass(frozen=True, slots=True)
class RegularPrefix:
    """What stands in front of most lines of a text."""

    pattern: re.Pattern[str]

    def length(self, head: str) -> int:
        """How many letters of a line are its prefix; 0 where it has another beginning."""
        found = self.pattern.match(head)
        return 0 if found is None else found.end()


def _beginnings(head: str) -> Iterator[tuple[str, int]]:
    """Where a prefix may end in the head of a line, each with the pattern of such prefixes."""
    pattern = ""
    is_more = False
    for found in _TOKEN.finditer(head):
        kind, text = found.lastgroup or "", found[0]
        of_class = _CLASSES.get(kind)
        is_more |= of_class is not None and kind != "B"
        pattern += re.escape(text) if of_class is None else f"(?:{of_class})"
        ends = kind == "B" or (kind == "O" and text in _ENDS) or (kind == "L" and text[-1] == " ")
        if ends and (is_more or not head[: found.end()].strip("|>+ \t")):
            yield pattern, found.end()


def regular_prefixes(lines: Sequence[str]) -> tuple[RegularPrefix, ...]:
    """The beginnings that nearly all lines have, up to digits, names and levels; longest first.

    The longest is one after which lines differ: a prefix stands in front of different lines. A long
    one may have what the program itself wrote.
    """
    step = max(1, len(lines) // _MAX_SAMPLE)
    followed: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    spoken = 0
    for line in lines[::step]:
        if not line or line.isspace():
            continue
        spoken += 1
        _, rest = split_prefixes(line[: 2 * _MAX_HEAD])
        head = rest[:_MAX_HEAD]
        for pattern, at in _beginnings(head):
            counts[pattern] += 1
            after = followed.setdefault(pattern, set())
            if len(after) < _DIFFERENT:
                after.add(_DIGITS.sub("0", head[at : at + 12]))
    needed = max(2.0, _SHARE * spoken)
    common = [pattern for pattern, count in counts.items() if count >= needed]
    differ = [each for each in common if len(followed[each]) >= min(_DIFFERENT, counts[each])]
    longest = max(map(len, differ), default=0)
    known = [each for each in common if len(each) <= longest]
    known = sorted(known, key=len, reverse=True)[:_MAX_CHOICES]
    return tuple(RegularPrefix(re.compile(each)) for each in known)


_MAX_CHOICES: Final = 8
_DIFFERENT: Final = 3
"""Beginnings of what follows a prefix, at least, if there are as many lines."""
_DIGITS: Final = re.compile(r"\d+")


def text_of_json(line: str, between: str = " ") -> str:
    """What a program wrote, of a line that a collector put into JSON; the line itself without.

    :param line: one line of text.
    :param between: what is put between lines where the JSON has several.
    """
    if not (line.startswith("{") and line.rstrip().endswith("}")):
        return line
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(document, dict):
        return line
    # torch's file of an error has {"message": {"message": ..., "extraInfo": ...}}
    inner = next((d for k in _JSON_INNER if isinstance(d := document.get(k), dict)), document)
    texts = [text for key in _JSON_TEXTS if isinstance(text := inner.get(key), str)]
    return between.join(texts).rstrip("\n").replace("\n", between) if texts else line


def without_json(text: str, *, only_folded: bool = False) -> str:
    """A text whose lines a collector put into JSON, as the program wrote it.

    :param text: lines, some of them objects of JSON.
    :param only_folded: leave those as they are that hold one line.
    """
    if "{" not in text or (only_folded and "\\n" not in text):
        return text
    return "\n".join(
        text_of_json(line, "\n")
        if line[:1] == "{" and (not only_folded or _FOLDED.search(line))
        else line
        for line in text.split("\n")
    )
