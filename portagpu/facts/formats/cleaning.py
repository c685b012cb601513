"""Recover the lines that a program printed, from recorded bytes and from what launchers write in
front of all of them.

Removes terminal control sequences (ECMA-48) and prefixes of lines: those of ``srun --label``,
``mpirun --tag-output`` and ``pdsh``, the timestamps of GitHub Actions, and the quotation marks of
mail and Markdown.

What stands in front of single lines is read by :mod:`portagpu.facts.formats.prefixes`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


# the escape as it is, as the one character of C1, and as "cat -v" and documents of JSON write it
_ESCAPE: Final = r"(?:\x1b|\^\[(?=[\[\]])|\\u001b|\\x1b|\\033|\\e(?=\[))"
_RIGHT: Final = re.compile(rf"(?:{_ESCAPE}\[|\x9b)(\d{{0,3}})C")
_MOVES: Final = re.compile(rf"(?:{_ESCAPE}\[|\x9b)[\d;]{{0,12}}[ABEFGHdf]")
_CONTROLS: Final = re.compile(
    rf"(?:{_ESCAPE}\[|\x9b)[0-?]{{0,40}}[ -/]{{0,4}}[@-~]"
    rf"|{_ESCAPE}\][^\x07\x1b\n]{{0,200}}(?:\x07|\x1b\\|\^G)?"
    r"|\x1b[()*+][0-9A-Za-z]|\x1b[ -/]{0,2}[0-~]|\x1b"
    r"|\[\d{1,2}(?:;\d{1,3}){0,4}m"
)
_MARKS: Final = ("\x1b", "\x9b", "^[", "\\u001b", "\\x1b", "\\033", "\\e[")
"""One of them is in every text with control sequences that kept their escape."""
_ESCAPED_COLOUR: Final = re.compile(r"\x1b\[[\d;]{0,40}m")
_COLOUR: Final = re.compile(r"\[\d{1,2}(?:;\d{1,3}){0,4}m")
_STRUCK: Final = re.compile(r"[^\n\x08]\x08")
_ODD: Final = str.maketrans(
    dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), None)
    | dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF), None)
    | dict.fromkeys((0x0C, 0x0B, 0x85, 0x2028, 0x2029), "\n")
    | dict.fromkeys((0xA0, 0x202F, 0x2007), " ")
)

_QUOTE: Final = re.compile(r"[ \t]{0,3}(?:>[ \t]?){1,8}")
_QUOTED_ALONE: Final = re.compile(r">[ \t]?(?=[\[A-Z])")
"""The mark of a quotation of which one line has it (Markdown's lazy continuation), not a prompt."""
_INLINE_CODE: Final = re.compile(r"^[ \t]{0,20}`([^`\n]{1,400})`[ \t]{0,20}$", re.MULTILINE)
"""A line that Markdown shows as code."""
# the group of each distinguishes the programs that wrote lines
_LABELS: Final = (
    re.compile(r" {0,6}(\d{1,5}):(?: |$)"),
    re.compile(r"\[\d{1,5},(\d{1,5})\]<std(?:out|err|diag)>:"),
)
_NAMES: Final = (
    re.compile(r"([A-Za-z0-9][\w.-]{0,63}): ?"),
    re.compile(r"([A-Za-z0-9][\w.-]{0,63}) {0,20}\| ?"),
    re.compile(r"(\[[\w./-]{1,100}\]) "),
    re.compile(r"()\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d) "),
    re.compile(
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} ([\w./-]{1,64})(?:\[\d{1,7}\])?: ?"
    ),
)
_MAX_LABELS: Final = 64
_SHARE: Final = 0.8
"""Of the lines that say something: some are written by the program that wrote the labels."""


def decode_text(data: bytes) -> str:
    """A file's bytes as text with "\\n" at line ends and no NUL; never fails.

    UTF-16 is recognised by its byte order mark, or by the NUL bytes of ASCII text. Bytes that are
    not UTF-8 are read as Latin-1.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data.decode("utf-16", "replace")
    else:
        data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\0", b"")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode("latin-1")
    text = text.replace("\0", "")
    if "\r" not in text:
        return text
    # a terminal's driver and a program on it may each add a carriage return
    return re.sub(r"\r{1,3}\n", "\n", text).replace("\r", "\n")


def clean_streams(text: str, is_known: Callable[[str], bool]) -> tuple[str, ...]:
    """The outputs in ``text``, without escapes and prefixes: one for each label of its lines.

    ``is_known`` says whether an output begins in a text. A word before each line is taken for a
    host's name only if the text is known without it.
    """
    text = without_escapes(text)
    for pattern in _LABELS:
        if (found := _split_by_label(text, pattern)) is not None:
            return tuple(_without_quote_marks(each) for each in found)
    text = _without_quote_marks(text)
    if not is_known(text):
        if is_known(plain := _without_comment_marks(text)):
            return (plain,)
        for pattern in _NAMES:
            found = _split_by_label(text, pattern)
            if found is not None and any(map(is_known, found)):
                return tuple(map(_without_quote_marks, found))
    return (text,)


def without_marks(text: str) -> str:
    """``text`` without terminal control sequences and without marks of quotations and code."""
    return _without_quote_marks(without_escapes(text))


def without_escapes(text: str) -> str:
    """``text`` without terminal control sequences; a cursor move to another line begins a line."""
    if "\x08" in text:
        text = _STRUCK.sub("", text)
    if "\x1b[" in text:
        # most of them by far
        text = _ESCAPED_COLOUR.sub("", text)
    if any(mark in text for mark in _MARKS):
        text = _RIGHT.sub(lambda match: " " * min(int(match.group(1) or 1), 200), text)
        text = _CONTROLS.sub("", _MOVES.sub("\n", text))
    elif "m" in text:
        # copies often lose the escape character of a colour
        text = _COLOUR.sub("", text)
    return text.translate(_ODD)


def _without_quote_marks(text: str) -> str:
    """``text`` without marks of quotations and code; bars count if all of a paragraph have one."""
    if text.startswith(">") or "\n>" in text:
        lines = text.split("\n")
        quoted = sum(line.startswith(">") for line in lines)
        if quoted > 1 or quoted == sum(bool(line.strip()) for line in lines):
            text = "\n".join(
                _QUOTE.sub("", line, count=1) if ">" in line[:4] else line for line in lines
            )
        elif quoted:
            text = "\n".join(_QUOTED_ALONE.sub("", line, count=1) for line in lines)
    if "`" in text:
        text = _INLINE_CODE.sub(r"\1", text)
    if not (text.startswith("|") or "\n|" in text):
        return text
    return "\n\n".join(_without_bars(paragraph) for paragraph in text.split("\n\n"))


def _without_comment_marks(text: str) -> str:
    """``text`` without the marks of a comment, if every line is one."""
    lines = text.split("\n")
    if not all(line.startswith("# ") for line in lines if line.strip()):
        return text
    return "\n".join(line.removeprefix("# ") for line in lines)


def _without_bars(paragraph: str) -> str:
    lines = paragraph.strip("\n").split("\n")
    if len(lines) < 2 or not all(line.startswith("|") for line in lines):
        return paragraph
    # rows of a table have a bar at their end as well
    if any(line[1:].rstrip().endswith("|") and not line.startswith("| |") for line in lines):
        return paragraph
    return "\n".join(line.removeprefix("|").removeprefix(" ") for line in lines)


def _split_by_label(text: str, pattern: re.Pattern[str]) -> list[str] | None:
    """The lines of each label without it; None where most lines have none."""
    lines = text.split("\n")
    matches = [pattern.match(line) for line in lines]
    spoken = sum(bool(line.strip()) for line in lines)
    if sum(match is not None for match in matches) < max(1, _SHARE * spoken):
        return None
    found: dict[str, list[str]] = {}
    for line, match in zip(lines, matches, strict=True):
        if match is not None:
            found.setdefault(match.group(1), []).append(line[match.end() :])
        elif line.strip():
            found.setdefault("", []).append(line)
        if len(found) > _MAX_LABELS:
            return None
    return ["\n".join([*each, ""]) for each in found.values()]
