"""What stands in a file of targets: TOML, whole or in part, and rules of its values."""

from __future__ import annotations

import contextlib
import datetime
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    DocumentError,
    Rule,
    anything,
    each,
    hint,
    is_whole,
    refuse,
    that,
    wrong,
)
from portagpu.base.errors import TargetError
from portagpu.base.files import read_bounded
from portagpu.base.text import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from enum import StrEnum
    from importlib.resources.abc import Traversable

MAX_BYTES: Final = 1 << 20
"""Of a target's file; the largest has 40 KiB."""
_NOTHING: Final = frozenset({"", "null", "none", "nil", "n/a", "na", "unknown", "tbd", "?", "-"})


@contextlib.contextmanager
def errors_in(file: str) -> Iterator[None]:
    """What is wrong in a document is a TargetError that names ``file``, key and rule."""
    try:
        yield
    except DocumentError as error:
        raise TargetError(escaped(f"{file}: {error} (rule {error.rule})")) from error


def _is_printable(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_line(value: object) -> bool:
    # not by the function above: a target has hundreds of them
    text = isinstance(value, str) and value.isprintable()
    return text and str(value).strip().lower() not in _NOTHING


def _text_that(fits: Callable[[object], bool]) -> Rule:
    def read(value: Any, path: str) -> Any:
        if fits(value):
            return value
        if not isinstance(value, str):
            raise refuse(path, "text", value)
        if not value.isprintable():
            # texts are shown on terminals and in reports
            raise refuse(path, "one line of printable text", value, "printable")
        raise wrong(path, f"{value!r} says nothing: leave the key out", "null")

    return Rule(read, fits=fits)


printable: Final = _text_that(_is_printable)
line: Final = _text_that(_is_line)
table: Final = that("a table", lambda value: isinstance(value, dict))
day: Final = that("a date such as 2027-01-31", lambda value: type(value) is datetime.date)
span: Final = that(
    "[least, greatest], two integers",
    lambda value: (
        isinstance(value, list)
        and len(value) == 2
        and all(map(is_whole, value))
        and 0 < value[0] <= value[1]
    ),
    "range",
)


def word_of(words: type[StrEnum] | Iterable[str], rule: str = "choice") -> Rule:
    """One of these words, as a member where they are an enum; the error offers the closest."""
    known = {str(each): each for each in words}

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise refuse(path, "text", value)
        if value not in known:
            raise unknown(path, value, known, rule)
        return known[value]

    return Rule(read)


def texts_of(item: Rule = anything) -> Rule:
    """A list of texts that keep the rule, each once, as a tuple."""
    items = None if item is anything else each(item)

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list) or {*map(type, value)} - {str}:
            raise refuse(path, "a list of texts", value)
        if len(set(value)) != len(value):
            raise wrong(path, "names something twice", "duplicate")
        return tuple(value if items is None else items.read(value, path))

    return Rule(read)


def unknown(path: str, word: str, known: Iterable[str], rule: str) -> DocumentError:
    """The error of a word that is not among ``known``, which offers the closest."""
    return wrong(path, f"{word!r} is not known; {hint(word, known)}", rule)


def load_toml(text: str) -> dict[str, Any]:
    """The document in ``text``. Raises DocumentError that names the place."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # an integer of thousands of digits raises a plain ValueError, any other slip a subclass
        raise wrong("malformed TOML", str(error), "toml-syntax") from error


def load_head(text: str) -> dict[str, Any]:
    """The document in ``text`` at least up to its first table, where keys without a table stand.

    Text that is a document up to the end of a line means the same with more lines after it.
    """
    with contextlib.suppress(DocumentError):
        return load_toml(text[: text.find("\n[") + 1] or text)
    return load_toml(text)


def load_table(text: str, name: str) -> object:
    """The value of the key ``name`` of the document in ``text``; the rest may stay unread."""
    part = (split_tables(text) or {}).get(name)
    with contextlib.suppress(DocumentError):
        if part is not None:
            return load_toml(part)[name]
    return load_toml(text).get(name, {})


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
        limit = MAX_BYTES + 1
        # a file in a zipped package is not the system's
        data = read_bounded(path, limit) if isinstance(path, Path) else path.read_bytes()
        if len(data) > MAX_BYTES:
            raise TargetError(
                escaped(f"{name}: is larger than {MAX_BYTES >> 10} KiB (rule readable)")
            )
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "not UTF-8"
        raise TargetError(escaped(f"{name}: cannot be read: {reason} (rule readable)")) from error
