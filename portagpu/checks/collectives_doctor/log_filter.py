"""Which lines of a large log are worth reading.

Lines that differ in numbers and addresses alone have one shape: what is left without digits and the
letters of hexadecimal. A shape is looked at once: where it has nothing that is left of the words
that tables look for, no line of it is read. Where lines of a shape have no such word, or were read
and said nothing that changes a judgement, the rest of them is passed over, except where a code is
not 0.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NUMBERS: Final = b"0123456789abcdefx"
"""What numbers and addresses are written with."""
_CHUNK: Final = 20_000
"""Lines whose shapes are made at once."""
_MAX_SHAPES: Final = 200_000
_MAX_QUIET: Final = 200
"""Lines of one shape that are looked at while they say nothing."""
_OF_CODES: Final = re.compile(r"(?i)(?:\brc|code|status|errno|error|environment to)\b[ :=]")
_CODE: Final = re.compile(r"(?i)(?:\brc|code|status|errno|error|environment to)\b[ :=]{1,4}-?[1-9]")
"""Numbers that change what a line says, where it is 0 in other lines of its shape."""
_MIN_LEFT: Final = 4
"""Letters of a word that are left in a shape, so that few lines without the word have them."""
_ESCAPED: Final = (b"\\u", b"\\/")
"""In JSON a word may be written with these."""


class LineFilter:
    """The lines worth reading, for tables whose lines all have one of ``words``; () for all."""

    def __init__(self, words: Sequence[str]) -> None:
        given = {word.encode() for word in words}
        # a word that has another one in it says no more
        self._words = _shortest(given) if all(given) else []
        left = {word: word.translate(None, _NUMBERS) for word in self._words}
        self._left = _shortest({each for each in left.values() if len(each) >= _MIN_LEFT})
        self._whole = [word for word, each in left.items() if len(each) < _MIN_LEFT]
        """Words of which too little is left in a shape: they are looked for in lines."""
        self._is_worth: dict[bytes, bool] = {}
        self._quiet: dict[bytes, int] = {}
        self._of_codes: set[bytes] = set()
        """Shapes of which a line has a code."""
        self._shape = b""

    def numbers(self, lines: Sequence[str]) -> Iterator[int]:
        """The numbers of the lines to read, in order."""
        for start in range(0, len(lines), _CHUNK):
            part = lines[start : start + _CHUNK]
            chunk = "\n".join(part).encode("utf-8", "replace")
            shapes = chunk.translate(None, _NUMBERS).split(b"\n")
            different = set(shapes)
            if len(self._is_worth) > _MAX_SHAPES:
                self._is_worth.clear()
            self._look_at([each for each in different if each not in self._is_worth])
            still = {each for each in different if self._is_open(each)}
            worth = {each for each in still if self._is_worth[each]}
            whole = _found(chunk, self._whole) if worth != still else set()
            if not worth and not whole:
                continue
            places = [n for n, each in enumerate(shapes) if each in worth or n in whole]
            raw = chunk.split(b"\n") if self._words else []
            with_word = self._with_word([raw[n] for n in places]) if self._words else None
            for at, number in enumerate(places):
                self._shape = shapes[number]
                if self._quiet.get(self._shape, 0) < _MAX_QUIET:
                    if _OF_CODES.search(part[number]) is not None:
                        self._of_codes.add(self._shape)
                elif _CODE.search(part[number]) is None:
                    continue
                if with_word is None or at in with_word:
                    yield start + number
                else:
                    self.said_nothing()

    def _look_at(self, shapes: Sequence[bytes]) -> None:
        """Know of new shapes whether a line of them may have a word."""
        found = _found(b"\n".join(shapes), self._left) if self._words else set(range(len(shapes)))
        for number, shape in enumerate(shapes):
            self._is_worth[shape] = number in found or _is_escaped(shape)

    def _with_word(self, raw: Sequence[bytes]) -> set[int]:
        escaped = {number for number, line in enumerate(raw) if _is_escaped(line)}
        return _found(b"\n".join(raw), self._words) | escaped

    def _is_open(self, shape: bytes) -> bool:
        """Whether lines of a shape are looked at still."""
        return self._quiet.get(shape, 0) < _MAX_QUIET or shape in self._of_codes

    def said_nothing(self) -> None:
        """The line of the number that came last changes no judgement."""
        if len(self._quiet) < _MAX_SHAPES or self._shape in self._quiet:
            self._quiet[self._shape] = self._quiet.get(self._shape, 0) + 1


def _shortest(words: set[bytes]) -> list[bytes]:
    return [each for each in words if not any(other in each for other in words - {each})]


def _found(text: bytes, words: Sequence[bytes]) -> set[int]:
    """The numbers of the lines of ``text`` that have one of ``words``."""
    ends: list[int] = []
    found: set[int] = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            ends = ends or list(accumulate(len(line) + 1 for line in text.split(b"\n")))
            number = bisect_right(ends, at)
            found.add(number)
            at = text.find(word, ends[number])
    return found


def _is_escaped(line: bytes) -> bool:
    return line[:1] == b"{" and any(each in line for each in _ESCAPED)
