"""Files of results into a store, and out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from portagpu.base.errors import ResultError
from portagpu.base.files import read_bounded, write_parts
from portagpu.reports.bundles.document import (
    WHOLE,
    Aside,
    OtherDocument,
    claimed_run,
    find_files,
    same_run,
)
from portagpu.reports.history.store import OtherRun, read_document
from portagpu.runs.results.run import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from portagpu.reports.history.model import StoredRun
    from portagpu.reports.history.store import Store


class Outcome(StrEnum):
    """What became of one file."""

    ADDED = "added"
    THERE = "there already"
    PASSED_OVER = "passed over"
    """A folder that was named holds it, and it is neither a result nor a bundle."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Imported:
    """A file and what became of it; ``why`` says so where it was refused or passed over."""

    path: Path
    outcome: Outcome
    why: str = ""


def import_files(store: Store, paths: Iterable[Path]) -> Iterator[Imported]:
    """Add each file, and the results of each folder, one transaction at a time.

    Only one file is in memory. One that is refused leaves nothing and stops no other. A store that
    can no longer be written raises StoreError.
    """
    aside: list[Aside] = []
    whole: dict[Path, Path] = {}
    for path, named in find_files(paths, aside):
        if path.name == WHOLE:
            whole[path.parent] = path
        elif not named and path.parent in whole and same_run(path, claimed_run(whole[path.parent])):
            continue
        if _is_there(store, path):
            yield Imported(path, Outcome.THERE)
            continue
        try:
            document = read_document(path)
        except OtherDocument as error:
            outcome = Outcome.REFUSED if named else Outcome.PASSED_OVER
            yield Imported(path, outcome, str(error))
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
    for path, reason in aside:
        yield Imported(path, Outcome.PASSED_OVER, f"{path}: {reason}")


def _is_there(store: Store, path: Path) -> bool:
    """Whether the file is in the store already; False where it cannot be read."""
    try:
        return store.has_file(read_bounded(path, MAX_BYTES + 1))
    except OSError:
        return False


def export_files(store: Store, runs: Iterable[StoredRun], folder: Path) -> Iterator[Path]:
    """Write the file of each run into ``folder``, byte for byte as it was imported.

    Raises StoreError where the store's own copy was altered, and OutputError.
    """
    for run in runs:
        data, name = store.file(run)
        yield write_parts(folder / name, [data])
