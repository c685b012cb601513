"""Checked reading of one TOML table. Every error names file, key and rule."""

from __future__ import annotations

import contextlib
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar

from portagpu.base.documents import short_repr
from portagpu.base.errors import TargetError
from portagpu.base.files import read_bounded
from portagpu.base.text import did_you_mean, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from enum import StrEnum
    from importlib.resources.abc import Traversable

    Word = TypeVar("Word", bound=StrEnum)

MAX_BYTES: Final = 1 << 20
"""Of a target's file; the largest has 40 KiB."""
_NOTHING: Final = frozenset({"", "null", "none", "nil", "n/a", "na", "unknown", "tbd", "?", "-"})


def normalise(name: str) -> str:
    """A product name without case and punctuation: "Instinct(TM) MI300X" -> "instinct mi300x"."""
    bare = re.sub(r"\((tm|r|c)\)|[™®©]", " ", name.lower())
    return " ".join(re.findall(r"[a-z0-9]+", bare))


class Table:
    """One TOML table of one file, read key by key. Every error names file, key and rule."""

    def __init__(
        self, file: str, path: str, data: Mapping[str, Any], known: tuple[str, ...]
    ) -> None:
        self.file, self.path, self.data = file, path, data
        for key in data:
            if key not in known:
                self.fail(key, "unknown-key", unknown_word(key, known))

    def key_path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def fail(self, key: str, rule: str, message: str) -> Never:
        raise TargetError(escaped(f"{self.file}: {self.key_path(key)}: {message} (rule {rule})"))

    def text(self, key: str, default: str | None = None) -> str:
        if key not in self.data and default is not None:
            return default
        value = self.required_value(key)
        if not isinstance(value, str):
            self.fail(key, "type", f"must be text, not {short_repr(value)}")
        if value.strip().lower() in _NOTHING:
            self.fail(key, "null", f"{value!r} says nothing: leave the key out")
        if not value.isprintable():
            self._fail_unprintable(key, value)
        return value

    def _fail_unprintable(self, key: str, value: str) -> Never:
        # texts are shown on terminals and in reports
        self.fail(key, "printable", f"must be one line of printable text, not {short_repr(value)}")

    def word(self, key: str, words: type[Word]) -> Word:
        value = self.text(key)
        try:
            return words(value)
        except ValueError:
            self.fail(key, "choice", unknown_word(value, tuple(words)))

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in allowed:
            self.fail(key, "choice", unknown_word(value, allowed))
        return value

    def number(self, key: str) -> float:
        value = self.required_value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, "type", f"must be a number, not {short_repr(value)}")
        try:
            return float(value)
        except OverflowError:
            self.fail(
                key, "range", f"{short_repr(value)} is larger than any number that is measured"
            )

    def integer(self, key: str, low: int, high: int) -> int | None:
        if key not in self.data:
            return None
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, "type", f"must be an integer, not {short_repr(value)}")
        if not low <= value <= high:
            self.fail(key, "range", f"{short_repr(value)} is outside {low} to {high}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key, [])
        if not isinstance(value, list) or {type(each) for each in value} - {str}:
            self.fail(key, "type", f"must be a list of texts, not {short_repr(value)}")
        if len(set(value)) != len(value):
            self.fail(key, "duplicate", "names something twice")
        for each in value:
            if not each.isprintable():
                self._fail_unprintable(key, each)
        return tuple(value)

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            self.fail(key, "type", f"must be a table, not {short_repr(value)}")
        return value

    def tables(self, key: str) -> list[dict[str, Any]]:
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.fail(key, "type", f"must be an array of tables ([[{key}]])")
        return value

    def required_value(self, key: str) -> object:
        if key not in self.data:
            self.fail(key, "required", "is missing")
        value: object = self.data[key]
        return value


def unknown_word(word: str, known: Iterable[str]) -> str:
    known = tuple(known)
    there = f"there is {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
    return f"{word!r} is not known; {did_you_mean(word, known, there, 3)}"


def load_toml(file: str, text: str) -> dict[str, Any]:
    """The document in ``text``. Raises TargetError that names ``file`` and the place."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # an integer of thousands of digits raises a plain ValueError, any other slip a subclass
        raise TargetError(f"{file}: malformed TOML: {error} (rule toml-syntax)") from error


def load_head(file: str, text: str) -> dict[str, Any]:
    """The document in ``text`` at least up to its first table, where keys without a table stand.

    Text that is a document up to the end of a line means the same with more lines after it.
    """
    with contextlib.suppress(TargetError):
        return load_toml(file, text[: text.find("\n[") + 1] or text)
    return load_toml(file, text)


def load_table(file: str, text: str, name: str) -> object:
    """The value of the key ``name`` of the document in ``text``; the rest may stay unread."""
    part = (split_tables(text) or {}).get(name)
    with contextlib.suppress(TargetError):
        if part is not None:
            return load_toml(file, part)[name]
    return load_toml(file, text).get(name, {})


def split_tables(text: str) -> dict[str, str] | None:
    """The text of each table by its name as written, and of what stands before all of them by "".

    None for a document with strings of several lines, which may hold lines that look like headers.
    Without them a line that begins with the header of a table is one: in an array it is malformed.
    """
    if '"""' in text or "'''" in text:
        return None
    head, *tables = text.split("\n[")
    return {"": f"{head}\n"} | {each.partition("]")[0]: f"[{each}\n" for each in tables}


def read_text(path: Traversable) -> str:
    """The text of ``path``. Raises TargetError when it cannot be read as UTF-8.

    A pipe or a device, and more than any target's file, is not read.
    """
    name = path.name
    try:
        most = MAX_BYTES + 1
        # a file in a zipped package is not the system's
        data = read_bounded(path, most) if isinstance(path, Path) else path.read_bytes()
        if len(data) > MAX_BYTES:
            raise TargetError(
                escaped(f"{name}: is larger than {MAX_BYTES >> 10} KiB (rule readable)")
            )
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise TargetError(escaped(f"{name}: cannot be read: {reason} (rule readable)")) from error
