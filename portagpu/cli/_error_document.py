"""The document of an error that ends a call.

A verb whose document is a run writes a run whose ``error`` says why. Any other verb writes
``portagpu.error/1``. Standard output gets it if nothing of a document was written there.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.files import is_special, read_bounded, write_atomic
from portagpu.base.text import one_line
from portagpu.cli._process import (
    STDOUT,
    USAGE,
    call,
    document_written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import click

    from portagpu.runs.results.run import Run

SCHEMA: Final = "portagpu.error/1"
_ERROR_BYTES: Final = 64 << 10
"""Of a file: the document of an error is shorter, unless its command line is long."""
_BEGINS: Final = re.compile(rb'\{\s*"schema": "portagpu\.')


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a command line asks for: by which verb, where, and whether its document is a run."""

    verb: str
    json_to: str | None
    ocp_to: str | None = None
    is_run: bool = False
    is_series: bool = False
    """Whether the file gets lines, with those of other calls."""
    takes_files: bool = False
    """Whether the verb has arguments, for one of which FILE may have been meant."""
    folder: Path | None = None


def write_error(code: int, message: str, *, files: bool = True) -> str | None:
    """Write the document of an error where the call asks for one; returns why it is not there.

    ``files`` is False if the error is that a file must not be written. A file that is read too is
    left as it is, and so is a file of lines.
    """
    words = call.words
    asked = None if call.whole else _asked_for(words)
    problem = _end_ocp(asked, words, code, message, files=files)
    return _write_json(asked, words, code, message, files=files) or problem


def _write_json(
    asked: _Asked | None, words: Sequence[str], code: int, message: str, *, files: bool
) -> str | None:
    if asked is None:
        return None
    document_written()
    with contextlib.suppress(Exception):
        _replace_stale(asked, words, code, message)
    place = asked.json_to
    if place is None:
        return None
    if place != STDOUT and not (files and _may_replace(asked, place, words, code)):
        return None
    text = _document(asked, words, code, message)
    try:
        if place == STDOUT:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            write_atomic(place, text)
    except OSError as error:
        return str(error)
    return None


def _end_ocp(
    asked: _Asked | None, words: Sequence[str], code: int, message: str, *, files: bool
) -> str | None:
    """End the lines of ``--ocp`` with the error; returns why that is not possible.

    A call that did not get as far as a run has lines only where its words were right.
    """
    output = call.ocp
    if output is None:
        place = asked.ocp_to if asked is not None else None
        if place is None or call.ocp_begun or code == USAGE or not files:
            return None
        if place != STDOUT and _is_read(place, words):
            return None
        from portagpu.cli._run_output import OcpOutput

        output = OcpOutput(place)
    try:
        output.end(_run(words, code, message))
    except OSError as error:
        return str(error)
    return None


def _document(asked: _Asked, words: Sequence[str], code: int, message: str) -> str:
    # every encoding of a terminal has ASCII
    ascii_only = asked.json_to == STDOUT
    if asked.is_run:
        return _run(words, code, message).to_text(ascii_only=ascii_only)
    from portagpu.runs.results.plain import json_text

    document = {
        "schema": SCHEMA,
        "verb": asked.verb,
        "exit_code": code,
        "error": one_line(message),
    }
    indent = None if asked.is_series else 2
    return json_text(document, indent=indent, ascii_only=ascii_only) + "\n"


def _run(words: Sequence[str], code: int, message: str) -> Run:
    from portagpu.runs.results.run import Run, new_run

    so_far = call.run
    run = new_run(["portagpu", *words]) if so_far is None else Run(so_far.info, so_far.results)
    return run.end_with(code, one_line(message))


def _replace_stale(asked: _Asked, words: Sequence[str], code: int, message: str) -> None:
    """Replace the files of an older run in ``--out``, which nobody must take for this one's.

    A command line that is wrong replaces nothing: it did not get as far as a run.
    """
    folder = asked.folder
    if folder is None or code == USAGE or call.run is not None:
        return
    if asked.is_run and (folder / "result.json").exists():
        from portagpu.cli._run_output import Files

        Files(folder=folder).write(_run(words, code, message))


def _asked_for(words: Sequence[str]) -> _Asked | None:
    """What ``words`` ask for, read as click reads them but without its complaints."""
    import click

    command = call.command
    names: list[str] = []
    left = list(words)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), left[0]) if left else None
        if found is None:
            # an unknown verb: its options are unknown too
            return _Asked(" ".join(words[:1]), STDOUT) if _wants_stdout(words) else None
        names.append(left.pop(0))
        command = found
    if command is None:
        return None
    options = _options(command, left)
    json_to = options.get("json_to") or (STDOUT if options.get("form") == "json" else None)
    folder = options.get("out")
    return _Asked(
        " ".join(names),
        json_to,
        options.get("ocp_to"),
        is_run=getattr(command.callback, "writes_run", False),
        is_series=getattr(command.callback, "writes_series", False),
        takes_files=any(isinstance(each, click.Argument) for each in command.params),
        folder=folder if isinstance(folder, Path) else None,
    )


def _options(command: click.Command, words: list[str]) -> dict[str, Any]:
    with contextlib.suppress(Exception):
        context = command.make_context(
            command.name, words, resilient_parsing=True, ignore_unknown_options=True
        )
        return dict(context.params)
    return {}


def _wants_stdout(words: Sequence[str]) -> bool:
    return "--json=-" in words or ("--json", STDOUT) in pairwise(words)


def _may_replace(asked: _Asked, place: str, words: Sequence[str], code: int) -> bool:
    """Whether an error's document may take the place of what is there."""
    if asked.is_series:
        return False
    if not Path(place).exists() or is_special(place):
        return True
    if _is_read(place, words):
        return False
    if code != USAGE:
        return True
    # "--json trace.json" may be meant as "--json - trace.json"
    try:
        head = read_bounded(place, _ERROR_BYTES)
    except OSError:
        return False
    return not head or (_states_an_error(head) if asked.takes_files else _is_document(head))


def _is_document(head: bytes) -> bool:
    return _BEGINS.match(head) is not None


def _states_an_error(data: bytes) -> bool:
    """Whether ``data`` is the document of an error, without a result that would be lost."""
    try:
        document = json.loads(data)
        run = document["run"] if document["schema"] != SCHEMA else {"error": True}
        return _is_document(data) and "error" in run and not document.get("results")
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _is_read(json_to: str, words: Sequence[str]) -> bool:
    """Whether another word of the command line names the file, or a folder that holds it."""
    file = Path(json_to).resolve()
    for named in _other_paths(words):
        with contextlib.suppress(OSError, ValueError):
            place = Path(named).resolve()
            if place == file or (place.is_dir() and place in file.parents):
                return True
    return False


def _other_paths(words: Sequence[str]) -> Iterator[str]:
    """Every word that may be a path but the values of ``--json``, ``--ocp`` and ``--out``."""
    before = ""
    for word in words:
        option, _, value = word.partition("=")
        if before not in _OUTPUTS | {"-o"} and option not in _OUTPUTS:
            yield from filter(None, (word, value))
        before = word


_OUTPUTS: Final = frozenset({"--json", "--ocp", "--out"})
