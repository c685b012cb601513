"""Which lines of a large log are worth reading.

Lines that differ in digits alone have one shape. A shape is looked at once: where it has none of
the words that tables look for, no line of it is read. Where lines of a shape were read and said
nothing that changes a judgement, the rest of them is passed over, except where a code is not 0.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DIGITS: Final = b"0123456789"
_HEX: Final = b"abcdefx"
"""What is left of addresses without digits."""
_CHUNK: Final = 20_000
"""Lines whose shapes are made at once."""
_MAX_SHAPES: Final = 200_000
_MAX_QUIET: Final = 200
"""Lines of one shape that are read while they say nothing."""
_OF_CODES: Final = re.compile(rb"(?i)(?:\brc|code|status|errno|error|environment to)\b[ :=]")
_CODE: Final = re.compile(r"(?i)(?:\brc|code|status|errno|error|environment to)\b[ :=]{1,4}-?[1-9]")
"""Numbers that change what a line says, where it is 0 in other lines of its shape."""
_ESCAPED: Final = (b"\\u", b"\\/")
"""In JSON a word may be written with these."""


class LineFilter:
    """The lines worth reading, for tables whose lines all have one of ``words``; () for all."""

    def __init__(self, words: Sequence[str]) -> None:
        bare = {word.encode().translate(None, _DIGITS) for word in words}
        # a word that has another one in it says no more
        shortest = [w for w in bare if not any(other in w for other in bare - {w})]
        self._words = shortest if all(shortest) else []
        self._is_worth: dict[bytes, bool] = {}
        self._quiet: dict[bytes, int] = {}
        self._has_code: dict[bytes, bool] = {}
        self._kind = b""

    def numbers(self, lines: Sequence[str]) -> Iterator[int]:
        """The numbers of the lines to read, in order."""
        for start in range(0, len(lines), _CHUNK):
            chunk = "\n".join(lines[start : start + _CHUNK])
            shapes = chunk.encode("utf-8", "replace").translate(None, _DIGITS).split(b"\n")
            different = set(shapes)
            if len(self._is_worth) > _MAX_SHAPES:
                self._is_worth.clear()
            self._look_at([each for each in different if each not in self._is_worth])
            worth = {shape for shape in different if self._is_worth[shape]}
            if not worth:
                continue
            for number, shape in enumerate(shapes, start):
                if shape in worth:
                    kind = shape.translate(None, _HEX)
                    seen = self._quiet.get(kind, 0)
                    if seen == _MAX_QUIET and kind not in self._has_code:
                        self._has_code[kind] = _OF_CODES.search(shape) is not None
                    if seen < _MAX_QUIET or (self._has_code[kind] and _CODE.search(lines[number])):
                        self._kind = kind
                        yield number

    def _look_at(self, shapes: Sequence[bytes]) -> None:
        """Know of new shapes whether they have a word: each is looked for in all at once."""
        together = b"\n".join(shapes) + b"\n"
        ends = list(accumulate(len(shape) + 1 for shape in shapes))
        found: set[int] = set() if self._words else set(range(len(shapes)))
        for word in self._words:
            at = together.find(word)
            while at >= 0:
                number = bisect_right(ends, at)
                found.add(number)
                at = together.find(word, ends[number])
        for number, shape in enumerate(shapes):
            escaped = shape[:1] == b"{" and any(each in shape for each in _ESCAPED)
            self._is_worth[shape] = number in found or escaped

    def said_nothing(self) -> None:
        """The line of the number that came last changes no judgement."""
        if len(self._quiet) < _MAX_SHAPES or self._kind in self._quiet:
            self._quiet[self._kind] = self._quiet.get(self._kind, 0) + 1
