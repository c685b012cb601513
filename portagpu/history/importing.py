"""Files and folders into a store, and runs of a store into files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from portagpu.bundle.files import OtherDocument, find_files
from portagpu.errors import ResultError
from portagpu.files import write_parts
from portagpu.history.documents import OtherRun, read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from portagpu.history.model import StoredRun
    from portagpu.history.store import Store


class Outcome(StrEnum):
    """What became of one file."""

    ADDED = "added"
    THERE = "there already"
    PASSED_OVER = "passed over"
    """It lies in a folder that was named, and is neither a result nor a bundle."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Imported:
    """A file and what became of it; ``why`` is not empty for one that was refused."""

    path: Path
    outcome: Outcome
    why: str = ""


def import_files(store: Store, paths: Iterable[Path]) -> Iterator[Imported]:
    """Add each file, and the results of each folder, one transaction at a time.

    Only one file is in memory. One that is refused leaves nothing and stops no other. A store that
    can no longer be written raises StoreError.
    """
    for path, named in find_files(paths):
        try:
            document = read_document(path)
        except OtherDocument as error:
            if named:
                yield Imported(path, Outcome.REFUSED, str(error))
            else:
                yield Imported(path, Outcome.PASSED_OVER)
            continue
        except ResultError as error:
            yield Imported(path, Outcome.REFUSED, str(error))
            continue
        try:
            added = store.add(document)
        except OtherRun as error:
            yield Imported(path, Outcome.REFUSED, f"{path}: {error}")
            continue
        yield Imported(path, Outcome.ADDED if added else Outcome.THERE)


def export_files(store: Store, runs: Iterable[StoredRun], folder: Path) -> Iterator[Path]:
    """Write the file of each run into ``folder``, byte for byte as it was imported.

    Raises StoreError where the store's own copy was altered, and OutputError.
    """
    for run in runs:
        data, name = store.file(run)
        yield write_parts(folder / name, [data])
