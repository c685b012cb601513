"""Result files: what one of them holds, and which of them a folder has.

``docs/results.md`` states the rule. Every verb that takes results reads them here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.bundle import check
from portagpu.bundle.document import SCHEMA as BUNDLE
from portagpu.bundle.document import sha256
from portagpu.bundle.times import check_times
from portagpu.errors import ResultError
from portagpu.files import read_bounded
from portagpu.results.run import LARGEST_BYTES, Run, parse_json
from portagpu.results.schema import SCHEMA as RESULT
from portagpu.results.schema import check_version
from portagpu.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

_WHOLE: Final = "result.json"
"""What ``--out`` writes: it stands for its folder, whose bundle is of the same run."""


@dataclass(frozen=True)
class Document:
    """A run as it stood in its file.

    ``data`` is the file byte for byte, and ``schema`` says whether it is a result or a bundle.
    """

    run: Run
    data: bytes
    schema: str
    path: Path

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its canonical form, which does not depend on line breaks."""
        return sha256(json.loads(self.data))

    @property
    def is_bundle(self) -> bool:
        """Whether it was validated as a bundle, and names of machines were removed from it."""
        return self.schema == BUNDLE


class OtherDocument(ResultError):
    """JSON that is neither a result nor a bundle: it is passed over in a folder."""


def read_files(places: Iterable[Path], now: datetime | None = None) -> list[Document]:
    """The documents of files and folders in their order; a file that is named twice counts once.

    Raises ResultError in one line that begins with the path: for the first file that is wrong, for
    a folder without results, and for two files with one run. With ``now`` also for a run whose
    times contradict each other or that moment: whoever puts runs in order believes their clocks.
    """
    documents: dict[Path, Document] = {}
    for place in places:
        inside = dict(_inside(place, documents))
        if not inside:
            raise ResultError(f"{one_line(str(place))}: no file in this folder is a result")
        documents |= inside
    files: dict[str, Path] = {}
    for path, document in documents.items():
        if now is not None:
            _check_times(document, now)
        id_ = document.run.info.id
        if (other := files.setdefault(id_, path)) != path:
            raise ResultError(
                f"{one_line(str(other))} and {one_line(str(path))} both hold the run "
                f"{one_line(id_)}{_of_two_machines(documents[other], document)}: name one of them"
            )
    return list(documents.values())


def find_files(places: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file that may be a result, and whether it was named itself.

    Of a folder these are the files ``*.json`` in it and below it, in the order of their names, or
    ``result.json`` alone where there is one. Links to folders are not followed. A folder that
    cannot be read stands for itself, so that reading it says why.
    """
    for place in places:
        if not os.path.isdir(place):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
            yield place, True
            continue
        unreadable: list[OSError] = []
        for folder, folders, names in os.walk(place, onerror=unreadable.append):
            folders.sort()
            own = sorted(name for name in names if name.endswith(".json"))
            for name in [_WHOLE] if _WHOLE in own else own:
                yield Path(folder, name), False
        for error in unreadable:
            yield Path(error.filename), True


def read_file(path: Path) -> Document:
    """The document in a file; raises ResultError that begins with the path, and OtherDocument."""
    try:
        return parse(read_bounded(path, LARGEST_BYTES + 1), path)
    except OSError as error:
        why = error.strerror or error
        raise ResultError(f"{one_line(str(path))}: cannot be read: {why}") from error
    except ResultError as error:
        raise type(error)(f"{one_line(str(path))}: {one_line(str(error))}") from error


def parse(data: bytes, path: Path) -> Document:
    """The document that ``data`` holds, validated.

    Raises ResultError, BundleError for a bundle that is not valid, and OtherDocument.
    """
    raw, fresh = parse_json(data)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    for own in (RESULT, BUNDLE):
        if isinstance(schema, str) and schema.startswith(f"{own.rpartition('/')[0]}/"):
            check_version(schema, "schema", own)
    if schema == BUNDLE:
        result, fresh = check.parse(data)["result"], False
    elif schema == RESULT:
        result = raw
    else:
        raise OtherDocument("is no result, as --json and --out write it, and no bundle")
    return Document(Run.from_json(result, fresh=fresh), data, schema, path)


def _check_times(document: Document, now: datetime) -> None:
    try:
        check_times(document.run, now)
    except ResultError as error:
        raise ResultError(f"{one_line(str(document.path))}: {one_line(str(error))}") from error


def _of_two_machines(one: Document, other: Document) -> str:
    """What two hosts of one run mean; empty where they may be one. A bundle names no host."""
    hosts = [one_line(each.run.info.host) for each in (one, other)]
    if hosts[0] == hosts[1] or one.is_bundle or other.is_bundle:
        return ""
    return f" for two machines, {hosts[0]!r} and {hosts[1]!r}, so one was edited or copied"


def _inside(place: Path, known: Mapping[Path, Document]) -> Iterator[tuple[Path, Document]]:
    for path, named in find_files([place]):
        try:
            yield path, known.get(path) or read_file(path)
        except OtherDocument:
            if named:
                raise
