"""Arrays of events in large JSON files, in batches, with memory that does not grow with the file.

A batch is cut where an object ends and the next begins. Whether a place is such a cut shows in
decoding: what precedes a wrong one, in a string or inside an event, is not a list of whole values.
A batch that cannot be decoded is taken apart event by event, and what is not JSON there is dropped
and counted.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.packed import ZSTD, zstd_file
from portagpu.base.text import one_line
from portagpu.facts.captures.model import check_unpacked, import_library, most_unpacked
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

Where = tuple[str, ...]
"""Keys from the outermost object inwards; "*" for each element of a list."""

CHUNK_BYTES: Final = 1 << 18
"""A batch and its events stay in a processor's cache; with 1 MiB reading takes a quarter longer."""
MAX_VALUE: Final = 64 << 20
"""Bytes of a value next to the events, such as the properties of all devices."""
_MAX_EVENT, _MIN_LIMIT = 4 << 20, 64 << 10
_BLANKS: Final = b" \t\r\n"
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_COMMAS: Final = re.compile(rb"[ \t\r\n,]*")
_TOKEN: Final = re.compile(rb'"(?:[^"\\\n]++|\\.)*+"|[\[\]{}"]', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,\]}]+")
_NEXT: Final = re.compile(rb"\}\s*,\s*(?=\{)")
# Kineto prints a bandwidth of a copy without duration so
_NO_NUMBER: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?\b(?:nan|inf)\b', re.DOTALL)
_LOOKS_BACK, _TRIES = 64, 4
_MAX_OTHERS: Final = 1_000_000
"""Values that are not events, each of which takes microseconds: a small gzip holds any number."""


class _Cut(Exception):
    """The file ends inside a value."""


class _Broken(Exception):
    """This is not JSON."""


@dataclass(frozen=True, slots=True)
class Events:
    """What to do with one array: the type of its elements, and who takes lists of them.

    Where ``take`` returns False, it gets the same elements again as ``exact``, and all later ones.
    """

    element: type
    take: Callable[[list[Any]], bool]
    exact: type | None = None


@dataclass(slots=True)
class Document:
    """A file while it is read, and what was wrong with it."""

    path: Path
    arrays: Mapping[Where, Events]
    take_value: Callable[[Where, Any], None]
    """Gets each other value of the objects around the arrays."""
    chunk: int = CHUNK_BYTES
    repeated: bool = False
    """Whether an array may be there more than once, as in a list of processes."""
    problems: list[str] = field(default_factory=list)
    dropped: int = 0
    """Elements that could not be read."""
    seen: set[Where] = field(default_factory=set)
    """The arrays that the file has."""
    _source: Iterator[bytes] = field(init=False)
    _data: bytes = b""
    _at: int = 0
    _ended: bool = False
    _others: int = 0
    _longest: int = _MAX_EVENT

    def read(self) -> None:
        """Read all of it. Raises FormatError where it is neither an object nor a list."""
        self._source = unpacked(self.path, self.chunk, self.problems)
        self._more()
        if self._data.startswith(b"\xef\xbb\xbf"):
            self._at = 3
        first = self._peek()
        if first not in (b"{", b"["):
            raise FormatError(f"{self.path}: not a JSON object or list")
        found: Where | None = ()
        try:
            while found is not None:
                try:
                    self._value(found)
                    found = None
                except _Broken:
                    self.problems.append(f"a part of {self.path} is not JSON, and was left out")
                    found = self._find_array()
        except _Cut:
            self.problems.append(
                f"{self.path} breaks off: the events before are here, and what came after is lost"
            )

    def _object(self, where: Where) -> None:
        self._at += 1
        while (char := self._need()) != b"}":
            if char == b",":
                self._at += 1
                continue
            if char != b'"':
                raise _Broken
            key = _text(self._raw())
            if self._need() != b":":
                raise _Broken
            self._at += 1
            self._value((*where, key))
        self._at += 1

    def _list(self, where: Where) -> None:
        self._at += 1
        while (char := self._need()) != b"]":
            if char == b",":
                self._at += 1
                continue
            self._value(where)
        self._at += 1

    def _value(self, where: Where) -> None:
        char = self._need()
        inside = (*where, "*")
        if char == b"[" and where in self.arrays:
            if where in self.seen and not self.repeated:
                self.problems.append(f"{self.path} has {'.'.join(where)} more than once")
            self.seen.add(where)
            self._events(self.arrays[where])
        elif char == b"[" and self._leads(inside):
            self._list(inside)
        elif char == b"{" and self._leads(where):
            self._object(where)
        else:
            raw = self._raw()
            self._count_other()
            try:
                value = json.loads(raw.decode("utf-8", "replace"), strict=False)
            except (ValueError, RecursionError):
                self.problems.append(
                    f"{one_line('.'.join(where))[:80]} in {self.path} is not a JSON value"
                )
            else:
                self.take_value(where, value)

    def _count_other(self) -> None:
        self._others += 1
        if self._others > _MAX_OTHERS:
            raise FormatError(
                f"{self.path}: has over {_MAX_OTHERS:,} values that are not events: is it a trace?"
            )

    def _leads(self, where: Where) -> bool:
        return any(each[: len(where)] == where and len(each) > len(where) for each in self.arrays)

    def _events(self, events: Events) -> None:
        msgspec: Any = import_library("msgspec")
        refused = (msgspec.MsgspecError, RecursionError, ValueError)
        element = events.element
        whole = msgspec.json.Decoder(list[element]).decode  # type: ignore[valid-type]
        self._at += 1
        while True:
            if len(self._data) - self._at < self.chunk:
                self._more()
            for comma in self._cuts():
                try:
                    batch = whole(b"[" + self._data[self._at : comma] + b"]")
                except refused:
                    continue
                if not events.take(batch) and events.exact and element is not events.exact:
                    element = events.exact
                    whole = msgspec.json.Decoder(list[element]).decode  # type: ignore[valid-type]
                    break
                self._at = comma + 1
                break
            else:
                raws: list[bytes] = []
                more = True
                while more and len(raws) < 4096:
                    more = self._one(raws)
                if not events.take(self._made(raws, element, refused)) and events.exact:
                    element = events.exact
                    whole = msgspec.json.Decoder(list[element]).decode  # type: ignore[valid-type]
                    events.take(self._made(raws, element, refused))
                if not more and self._data[self._at : self._at + 1] == b"]":
                    self._at += 1
                    return
                if not more and self._ended:
                    raise _Cut

    def _cuts(self) -> Iterator[int]:
        """Places of commas between two objects, from the end: some of them are inside an event."""
        data, end, found = self._data, len(self._data), 0
        for _ in range(200):
            end = data.rfind(b"{", self._at, end)
            if end < 0 or found == _TRIES:
                return
            before = data[max(self._at, end - _LOOKS_BACK) : end].rstrip(_BLANKS)
            if before.endswith(b",") and before[:-1].rstrip(_BLANKS).endswith(b"}"):
                found += 1
                yield data.rfind(b",", self._at, end)

    def _made(self, raws: list[bytes], element: type, refused: Any) -> list[Any]:
        msgspec: Any = import_library("msgspec")
        single = msgspec.json.Decoder(element).decode
        batch: list[Any] = []
        for at, raw in enumerate(raws):
            try:
                batch.append(single(raw))
            except refused:
                made = _lenient(raw, element) if raw else None
                if made is not None:
                    batch.append(made)
                elif raw:
                    self._count_other()
                    self.dropped += 1
                    raws[at] = b""
        return batch

    def _one(self, raws: list[bytes]) -> bool:
        """Find one element; False where the array or the file ends."""
        char = self._peek(_COMMAS)
        if char is None or char == b"]":
            return False
        try:
            end = self._end(self._longest)
        except _Broken:
            self._longest = max(self._longest // 4, _MIN_LIMIT)
            return self._skip_element()
        if end is None:
            # without another event after it, it is the one in which the file breaks off
            return self._skip_element()
        raws.append(self._data[self._at : end])
        self._at = end
        return True

    def _skip_element(self) -> bool:
        self.dropped += 1
        while True:
            found = _NEXT.search(self._data, self._at)
            if found:
                self._at = found.end()
                return True
            if self._ended:
                self._at = len(self._data)
                return False
            self._at = max(self._at, len(self._data) - _LOOKS_BACK)
            self._more()

    def _find_array(self) -> Where | None:
        """The next array that was not read yet; this place is then its beginning."""
        missing = {each[-1]: each for each in self.arrays if each and each not in self.seen}
        names = "|".join(map(re.escape, missing))
        key = re.compile(rb'(?<!\\)"(' + names.encode() + rb')"\s*:\s*(?=\[)')
        while missing:
            found = key.search(self._data, self._at)
            if found:
                self._at = found.end()
                return missing[found[1].decode()]
            if self._ended:
                break
            self._at = max(self._at, len(self._data) - 4 * _LOOKS_BACK)
            self._more()
        return None

    def _raw(self) -> bytes:
        """The bytes of the value here; then go past it."""
        end = self._end(MAX_VALUE)
        if end is None:
            raise _Cut
        raw = self._data[self._at : end]
        self._at = end
        return raw

    def _end(self, longest: int) -> int | None:
        """Where the value here ends; None where the file ends before. Raises _Broken."""
        depth, at = 0, self._at
        if self._data[at : at + 1] not in (b"{", b"[", b'"'):
            while True:
                found = _SCALAR.match(self._data, at)
                if found is None or found.end() - at > longest:
                    raise _Broken
                if found.end() < len(self._data) or not self._grow():
                    break
                at = self._at
            return found.end()
        while True:
            found = _TOKEN.search(self._data, at)
            if found is None or (found[0] == b'"' and not self._line_ends(found.start())):
                at = found.start() if found else len(self._data)
                if at - self._at > longest or len(self._data) - self._at > longest:
                    raise _Broken
                at -= self._at
                if not self._grow():
                    return None
                at += self._at
                continue
            token, at = found[0], found.end()
            if token == b'"' or at - self._at > longest:
                raise _Broken
            if token in b"{[":
                depth += 1
            elif token in b"}]":
                depth -= 1
            if depth <= 0:
                return at

    def _line_ends(self, quote: int) -> bool:
        """Whether the string at ``quote`` holds the end of a line, which no string may."""
        return self._data.find(b"\n", quote) >= 0

    def _peek(self, skipped: re.Pattern[bytes] = _BLANK) -> bytes | None:
        while True:
            self._at = skipped.match(self._data, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            if not self._more():
                return None

    def _need(self) -> bytes:
        char = self._peek()
        if char is None:
            raise _Cut
        return char

    def _grow(self) -> bool:
        """Twice the data, so that a long value is not scanned once for each chunk."""
        wanted, grown = 2 * (len(self._data) - self._at), False
        while len(self._data) - self._at < wanted and self._more():
            grown = True
        return grown

    def _more(self) -> bool:
        """Add the next chunk after the data that is not read yet."""
        chunk = next(self._source, b"")
        self._ended = not chunk
        if chunk:
            self._data = self._data[self._at :] + chunk
            self._at = 0
        return bool(chunk)


def unpacked(path: Path, chunk: int, problems: list[str]) -> Iterator[bytes]:
    """The file in chunks, unpacked where it is gzip or zstd; damage ends it, with a problem.

    Raises FormatError where it cannot be opened.
    """
    try:
        file = path.open("rb")
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from error
    with file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        unpack = zlib.decompressobj(31) if packed else None
        size, most = 0, most_unpacked(path)
        try:
            if file.peek(4)[:4] == ZSTD:
                with zstd_file(file) as unpacked_zstd:
                    while part := unpacked_zstd.read1(chunk):
                        size += len(part)
                        check_unpacked(path, size, most)
                        yield part
                return
            while data := file.read(chunk):
                if unpack is None:
                    yield data
                    continue
                while data:
                    part = unpack.decompress(data, chunk)
                    data = unpack.unconsumed_tail
                    size += len(part)
                    check_unpacked(path, size, most)
                    if part:
                        yield part
                    if unpack.eof:
                        data = unpack.unused_data.lstrip(b"\0")
                        unpack = zlib.decompressobj(31)
            if unpack is not None and (rest := unpack.flush()):
                yield rest
        except (OSError, zlib.error) as error:
            problems.append(f"{path} cannot be read to its end: {one_line(str(error))}")


def _text(raw: bytes) -> str:
    try:
        return str(json.loads(raw.decode("utf-8", "replace"), strict=False))
    except ValueError as error:
        raise _Broken from error


def _lenient(raw: bytes, element: type) -> Any:
    """An element that is nearly JSON, without the values that are of another type; else None."""

    def number(found: re.Match[bytes]) -> bytes:
        return found[0] if found[0].startswith(b'"') else b"null"

    try:
        text = _NO_NUMBER.sub(number, raw).decode("utf-8", "replace")
        value = json.loads(text, strict=False, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return _of_type(value, element) if isinstance(value, dict) else None


def _of_type(value: Mapping[str, Any], element: Any) -> Any:
    msgspec: Any = import_library("msgspec")
    fitting = {}
    for each in msgspec.structs.fields(element):
        if each.encode_name not in value:
            continue
        found = value[each.encode_name]
        kinds = [each.type, *getattr(each.type, "__args__", ())]
        inner = [
            kind for kind in kinds if isinstance(kind, type) and hasattr(kind, "__struct_fields__")
        ]
        if isinstance(found, dict) and inner:
            fitting[each.name] = _of_type(found, inner[0])
            continue
        try:
            fitting[each.name] = msgspec.convert(found, each.type)
        except (msgspec.ValidationError, RecursionError):
            continue
    return element(**fitting)
