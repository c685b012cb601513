"""What of a Python file is worth the analysis of libcst, which takes a millisecond for each line.

Most files have no word of a rule, and most statements of the others have none either. Both are
left out here, by patterns that match more than the rules do.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from portagpu.train.port.names import INDEX_NAME, lines_of
from portagpu.train.port.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    Group = tuple[re.Pattern[str], ...]
    """Patterns of which each has to match somewhere in a block that is kept."""

_SHAPES: Final = (
    *("device_ids", "output_device", "DistributedDataParallel", "convert_sync_batchnorm"),
    *("GradScaler", "pin_memory", r"(?:\.to\(|dev(?:ice)?\s*[=(]|map_location\s*=)\s*\d"),
)
"""Shapes of code that have no word of a vendor's."""
_INDEX: Final = rf"\b(?:{INDEX_NAME.pattern})\b|LOCAL_RANK|device_count"
_PAIRS: Final[tuple[Group, ...]] = (
    (re.compile(r"\.to(?:_empty)?\(|(?i:dev(?:ice)?)\w*\s*[=(]|map_location"), re.compile(_INDEX)),
    (re.compile(r"(?i:gpu|device_count|is_available)"), re.compile(r"\b(?:_?exit|quit|raise)\b")),
)
"""A number of a device where a device belongs, and a script's end for want of GPUs."""
_LOCAL: Final = ("[\"']cpu", r"\bportagpu\b")
"""What decides beside the words whether a use is one."""
_STAY: Final = (ast.Import, ast.ImportFrom, ast.Return, ast.Continue, ast.Raise)
_TARGET: Final = r"^[ \t]*([\w.]+)(?:[ \t]*:[^=\n]*)?[ \t]*=(?!=)"
_NUMBER: Final = re.compile(
    rf"{_TARGET}[ \t]*(?:[\w.]*(?:{_INDEX})[ \t]*(?:#.*)?$|.*(?:LOCAL_RANK|device_count))",
    re.MULTILINE,
)
"""A device's number gets another name."""


@cache
def _words() -> str:
    """A pattern with a word of each name, package and text of the vendors' rules."""
    rules = load_rules()
    words = {word for each in rules.words for word in (each.device, each.library)}
    for name in rules.names:
        if not any(word in name for word in words):
            parts = name.split(".")
            words.add(max(parts, key=len) if parts[0] == "torch" else parts[0])
    words |= {package.partition(".")[0] for package in rules.packages}
    options = [rf"\b{re.escape(keyword)}\s*=" for keyword in rules.options]
    texts = [each.pattern.pattern for each in rules.texts if "python" in each.kinds]
    return "|".join([*sorted(map(re.escape, words)), *options, *texts, *_SHAPES])


@cache
def _file_groups() -> tuple[Group, ...]:
    return ((re.compile(_words()),), *_PAIRS)


@cache
def _answer() -> re.Pattern[str]:
    """The answer to a question about devices gets a name."""
    devices = "|".join(["cpu", *(re.escape(each.device) for each in load_rules().words)])
    one = rf"[\"'](?:{devices})"
    compared = rf"[!=]=.*{one}|{one}.*(?:[!=]=|\bin\b)|startswith"
    about = rf"is_available|device_count|is_(?:{devices})\b|{compared}"
    return re.compile(rf"{_TARGET}(?!.*\belse\b).*(?:{about})", re.MULTILINE)


def has_word(text: str) -> bool:
    """Whether a word of any rule is in the text, so that a rule can find something."""
    return any(all(each.search(text) for each in group) for group in _file_groups())


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines of a text, and the number, from 1, that each has in it."""

    text: str
    numbers: Sequence[int]


def excerpt(text: str, tree: ast.Module) -> Excerpt:
    """``text`` without the statements in which no rule can find anything; ``tree`` is its syntax.

    One "pass" stands for those of a block. Columns stay.
    """
    lines = lines_of(text)
    ends = [*accumulate(map(len, lines))]
    groups = [
        [[bisect_right(ends, hit.start()) + 1 for hit in each.finditer(text)] for each in group]
        for group in _local_groups(text, tree)
    ]
    screen = _Screen(lines, groups)
    screen.leave_out(tree.body)
    kept = [
        (number, line) for number, line in enumerate(screen.lines, 1) if line and _has_code(line)
    ]
    return Excerpt("".join(line for _, line in kept), [number for number, _ in kept])


def _has_code(line: str) -> bool:
    """Whether it may be more than a comment: a quote or a backslash may end a string."""
    bare = line.strip()
    return bare != "" and (not bare.startswith("#") or any(each in bare for each in "\"'\\"))


def _local_groups(text: str, tree: ast.Module) -> tuple[Group, ...]:
    """As of the file, with the names that its imports and assignments give to what they find."""
    words = re.compile(_words())
    names = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
        if words.search(f"{getattr(node, 'module', '')}.{each.name}")
    }
    assigned = {*_answer().findall(text), *_NUMBER.findall(text)}
    names |= {
        each for name in assigned if not INDEX_NAME.fullmatch(each := name.rpartition(".")[2])
    }
    whole = (rf"\b{re.escape(name)}\b" for name in sorted(names))
    return ((re.compile("|".join([_words(), *_LOCAL, *whole])),), *_PAIRS)


class _Screen:
    """Leaves out lines. ``groups`` has the numbers of the lines with a hit, as _local_groups."""

    def __init__(self, lines: list[str], groups: Sequence[Sequence[Sequence[int]]]) -> None:
        self.lines: list[str | None] = [*lines]
        self._of_blocks = groups
        self._of_statements = [*groups[:-1], groups[-1][1:]]  # the test is another statement

    def leave_out(self, block: Sequence[ast.stmt]) -> None:
        """Leave out what has no hit in the block."""
        word = "pass"
        for each in block:
            if isinstance(each, _STAY):
                continue
            if self._is_left_out(each, word):
                word = ""
                continue
            for field in ("body", "orelse", "finalbody"):
                self.leave_out(getattr(each, field, ()))
            for part in (*getattr(each, "handlers", ()), *getattr(each, "cases", ())):
                self.leave_out(part.body)

    def _is_left_out(self, node: ast.stmt, word: str) -> bool:
        """Replace its lines by ``word``, unless there was a hit or another statement."""
        above = getattr(node, "decorator_list", ())
        first = min(each.lineno for each in (node, *above))
        last = node.end_lineno or first
        groups = self._of_blocks if hasattr(node, "body") else self._of_statements
        if any(all(_is_between(found, first, last) for found in each) for each in groups):
            return False
        start, end = self.lines[first - 1] or "", self.lines[last - 1] or ""
        indent, rest = start[: node.col_offset], end.encode()[node.end_col_offset or 0 :].strip()
        if indent.strip() or (rest and not rest.startswith(b"#")):
            return False
        self.lines[first - 1 : last] = [None] * (last - first + 1)
        if word:
            self.lines[first - 1] = f"{indent}{word}{end[len(end.rstrip()) :]}"
        return True


def _is_between(numbers: Sequence[int], first: int, last: int) -> bool:
    at = bisect_left(numbers, first)
    return at < len(numbers) and numbers[at] <= last
