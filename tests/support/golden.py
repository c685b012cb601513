"""What the product prints of saved inputs, in ``tests/golden``: ``python -m tests.support.golden``.

A file has the answers of several calls of the command line, and of functions over a grid of
arguments. Of a large document, a part has a line with the number of its values and a digest, so
that a change names the part. Nothing depends on the machine, the time, the terminal or the locale.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

import portagpu
from portagpu import cli
from portagpu.base.files import write_atomic
from portagpu.checks.health import engine, watchdog
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FOLDER: Final = ROOT / "tests/golden"
MENDED: Final = "run python -m tests.support.golden, and read the difference"
_WIDTH: Final = 100
_ENVIRONMENT: Final = {
    "COLUMNS": str(_WIDTH),
    "LINES": "40",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
_LINE: Final = 110
"""A part of a document that is longer than this is divided, or counted and digested."""
_VALUES: Final = 16
"""Lists with more values are not divided, and neither are objects that deep are."""
_DEPTH: Final = 3
_OF_THE_RUN: Final = frozenset(
    {"started", "duration_s", "host", "command", "time", "written", "created", "made"}
)
"""Keys of documents with a value of this machine or moment."""
_VERSIONS: Final = frozenset({"portagpu", "python", "torch"})
_TIMES: Final = re.compile(r"\b[\d.]+ (?:µs|ms|s)\b")
_FRACTION: Final = re.compile(r"\d+\.\d{6,}(?:e[+-]?\d+)?")
_RUN_ID: Final = re.compile(r"\b\d{8}T\d{6}Z-[0-9a-f]{8}\b")


@dataclass(frozen=True, slots=True)
class Golden:
    """One file: the folder of its tests, what makes it in an empty folder, modules it needs."""

    tier: str
    make: Callable[[Path], Iterator[str]]
    needs: tuple[str, ...] = ()


def document_lines(document: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """A line for each part of a document: its value where it is short, else count and digest."""
    short = json.dumps(document, ensure_ascii=False, separators=(", ", ": "))
    values = _values(document)
    if len(path) + len(short) <= _LINE or not isinstance(document, dict | list):
        yield f"{path} = {short}"
    elif values <= _VALUES or (isinstance(document, dict) and depth < _DEPTH):
        parts = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in parts:
            if value not in (None, [], {}, ""):
                yield from document_lines(value, f"{path}.{key}".lstrip("."), depth + 1)
    else:
        yield f"{path} = {values} values, {digest_of(json.dumps(document, sort_keys=True))}"


def _values(document: Any) -> int:
    """How many values there are that are known."""
    if isinstance(document, dict | list):
        parts = document.values() if isinstance(document, dict) else document
        return sum(map(_values, parts))
    return document is not None


def _nine_digits(text: str) -> str:
    """``text`` with nine digits of each fraction: the last ones are the CPU's and Python's."""
    return _FRACTION.sub(lambda found: f"{float(found[0]):.9g}", text)


def digest_of(text: str) -> str:
    """The begin of a text's SHA-256, with nine digits of each fraction: the last are the CPU's."""
    return hashlib.sha256(_nine_digits(text).encode()).hexdigest()[:16]


def some_of(paths: Iterable[Path], one_in: int) -> list[Path]:
    """A file in every ``one_in``, chosen by its name alone: a new one changes nothing of others."""
    return [path for path in paths if int(digest_of(path.name), 16) % one_in == 0]


def plain(document: Any) -> Any:
    """A document without what is of this machine or moment, and floats to nine digits."""
    if isinstance(document, dict):
        return {key: _plain_value(key, value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [plain(each) for each in document]
    if isinstance(document, float):
        # the last digits are of the CPU that added
        return float(f"{document:.9g}")
    return _RUN_ID.sub("RUN", document) if isinstance(document, str) else document


def _plain_value(key: str, value: Any) -> Any:
    if key in _OF_THE_RUN and isinstance(value, str | float | list):
        return "..."
    if key == "versions" and isinstance(value, dict):
        value = {name: each for name, each in value.items() if name not in _VERSIONS}
    return {} if key == "area_duration_s" else plain(value)


class Calls:
    """Calls of the command line in a folder, whose path is not printed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, *words: str | Path, document: bool = False, digest: bool = False, timed: bool = False
    ) -> Iterator[str]:
        """The call, its exit code and its lines; with ``document``, of its JSON too.

        With ``digest``, what is printed is counted and digested; ``timed`` has times of the call.
        """
        given = list(map(str, words))
        file = self._folder / "document.json"
        if document:
            given += ["--json", str(file)]
        out, errors = _Written(), _Written()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
            mock.patch.dict(os.environ, _ENVIRONMENT),
            contextlib.chdir(self._folder),
            # the child that a hanging driver may be left with changes nothing of a recording
            mock.patch.object(watchdog, "health_within", engine.health),
        ):
            for name in ("PORTAGPU_BACKEND", "PYTHONPATH"):
                os.environ.pop(name, None)
            code = cli.main(given)
        yield self.neutral(f"$ portagpu {' '.join(map(str, words))}  [{code}]")
        for prefix, text in (("", out.text()), ("! ", errors.text())):
            text = _TIMES.sub("TIME", text) if timed else text
            lines = self.neutral(text).splitlines()
            if digest and lines:
                lines = [f"{len(lines)} lines, {digest_of(self.neutral(text))}"]
            for line in lines:
                yield f"{prefix}{line.rstrip()}".rstrip()
        if document and file.exists():
            found = json.loads(self.neutral(file.read_text(encoding="utf-8")))
            for line in document_lines(plain(found)):
                yield f"  {line}"
            file.unlink()

    def neutral(self, text: str) -> str:
        """Without this machine's paths and this moment."""
        text = text.replace(f"{self._folder}/", "").replace(str(self._folder), ".")
        # an installed package may stand below the checkout
        for place in (Path(portagpu.__file__).parents[1], ROOT):
            text = text.replace(f"{place}/", "").replace(str(place), "CHECKOUT")
        return _RUN_ID.sub("RUN", text)


class _Written(io.TextIOWrapper):
    """A file of text in memory that has bytes underneath, as standard output has."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


def function_lines(title: str, rows: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """``title``, and a line for each pair of arguments and answer."""
    yield f"# {title}"
    for arguments, answer in rows:
        yield f"{_one(arguments)} -> {_one(answer)}"


def _one(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(_one, value))
    text = _nine_digits(str(value))
    return text if text.isprintable() else ascii(text)


def answer_of(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a function returns, or the class and text of what it raises."""
    try:
        return function(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - which one is part of the answer
        return f"{type(error).__name__}: {error}"


def goldens() -> Mapping[str, Golden]:
    """Every file by its name."""
    from tests.support.golden_checks import CHECKS
    from tests.support.golden_grids import GRIDS
    from tests.support.golden_models import MODELS
    from tests.support.golden_mutated import MUTATED
    from tests.support.golden_numbers import NUMBERS
    from tests.support.golden_results import RESULTS
    from tests.support.golden_searches import SEARCHES
    from tests.support.golden_verbs import VERBS
    from tests.support.golden_views import VIEWS

    return VERBS | VIEWS | RESULTS | MUTATED | GRIDS | SEARCHES | CHECKS | NUMBERS | MODELS


def golden_text(name: str, folder: Path) -> str:
    """What the file ``name`` has to hold; ``folder`` is empty."""
    logging.disable(logging.WARNING)
    try:
        return "".join(f"{_nine_digits(line)}\n" for line in goldens()[name].make(folder))
    finally:
        logging.disable(logging.NOTSET)


def assert_golden(name: str, folder: Path) -> None:
    """Fail with the first lines that differ from the file, or skip without what it needs."""
    for module in goldens()[name].needs:
        pytest.importorskip(module)
    expected = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    found = golden_text(name, folder).splitlines()
    if found == expected:
        return
    of = Counter(expected)
    of.subtract(Counter(found))
    gone = [f"- {line}" for line in expected if of[line] > 0]
    new = [f"+ {line}" for line in found if of[line] < 0]
    shown = [*gone[:20], *new[:20]] or ["the same lines in another order"]
    raise AssertionError(f"tests/golden/{name} differs; {MENDED}:\n" + "\n".join(shown))


def main(names: Sequence[str]) -> None:
    """Write each file that is not current, or those named, and name it."""
    for name in names or goldens():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / "here"
            folder.mkdir()
            text = golden_text(name, folder)
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"wrote {write_atomic(path, text).relative_to(ROOT)}, {len(text)} characters")


if __name__ == "__main__":
    main(sys.argv[1:])
