"""Text for messages: one line of any text or error, and suggestions for a wrong name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_NAMED: Final = 8
"""How many ranks or sentences a sentence names one by one."""


# Letters and marks that Unicode lets nobody see (Default_Ignorable_Code_Point), and the blank of
# Braille. str.isprintable knows all controls, those of bidirectional text too.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0000-\U000e0fff]"
)


def is_shown(text: str) -> bool:
    """Whether a terminal shows every character of ``text``, and obeys none."""
    return text.isprintable() and (text.isascii() or _INVISIBLE.search(text) is None)


def printable(text: str) -> str:
    """``text`` with a blank for every character that does not print, and its own blanks kept.

    For names and for lines in columns; :func:`one_line` is for sentences, and :func:`escaped` for
    what has to be seen as it is.
    """
    if is_shown(text):
        return text.strip()
    return "".join(char if is_shown(char) else " " for char in text).strip()


def printable_lines(text: str) -> str:
    """``text`` with its lines, each of them printable; one that is stays, indented as it is."""
    if is_shown(text):
        return text
    return "\n".join(line if is_shown(line) else printable(line) for line in text.split("\n"))


def escaped(text: str) -> str:
    """``text`` with Python's escape for every character that does not print, except tabs."""
    if is_shown(text):
        return text
    return "".join(
        char if char == "\t" or is_shown(char) else char.encode("unicode_escape").decode()
        for char in text
    )


def one_line(text: str) -> str:
    """``text`` as one printable line: each run of blanks is one blank.

    A character that does not print, such as an escape or a line break, counts as a blank.
    """
    return " ".join(printable(text).split())


def excerpt(text: str, most: int = 200) -> str:
    """The beginning of ``text``, printable, for a sentence that quotes it.

    :param text: any string; a character that does not print becomes a blank.
    :param most: how many characters the result has at most.
    :returns: text without blanks at its end.
    """
    return printable(text[: 2 * most])[:most].rstrip()


def shortened(text: str, most: int = 120) -> str:
    """``text``, with an ellipsis for its end where it has more than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def error_line(error: BaseException) -> str:
    """ "ValueError: its words" on one line; the type alone where it has none."""
    try:
        words = one_line(str(error))
    except Exception:  # noqa: BLE001 - an exception whose own text cannot be made
        words = ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def closest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known words that are most similar to ``word``, best first."""
    import difflib

    known, word = sorted(known), word.strip().lower()
    longer = [each for each in known if word and word in each]
    near = difflib.get_close_matches(word, known, n=count, cutoff=0.5)
    shorter = [each for each in known if each in word]
    return list(dict.fromkeys([*longer, *near, *shorter]))[:count]


def did_you_mean(word: str, known: Iterable[str], otherwise: str, count: int = 1) -> str:
    """ "did you mean 'rng'?", else ``otherwise`` where no word is similar."""
    near = closest(word, known, count)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern with * and ? fits all of a name; brackets are those of ids: "*[add]"."""
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern.replace("[", "[[]"))


def is_twice_in_itself(text: str, part: str) -> bool:
    """Whether two writers of one terminal made ``text``: ``part`` in the middle of ``part``."""
    middle = range(1, len(part))
    return len(text) == 2 * len(part) and any(text == part[:at] + part + part[at:] for at in middle)


def ranks_in_words(ranks: Collection[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 2", "ranks 0 to 7"."""
    named = sorted(ranks)
    if len(named) == 1:
        return f"rank {named[0]}"
    if len(named) > 2 and named == list(range(named[0], named[-1] + 1)):
        return f"ranks {named[0]} to {named[-1]}"
    shown = [str(each) for each in named[:MAX_NAMED]]
    if len(named) > MAX_NAMED:
        return f"ranks {', '.join(shown)} and {len(named) - MAX_NAMED} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def short_repr(value: object) -> str:
    """The start of a value as Python writes it."""
    try:
        shown = repr(value)
    except ValueError:
        # Python writes out no integer of thousands of digits
        return "a number of thousands of digits"
    return f"{shown[:60]}{'…' if len(shown) > 60 else ''}"
