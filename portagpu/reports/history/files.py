"""Files of results into a store, and out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import ResultError
from portagpu.base.files import read_bounded, write_parts
from portagpu.reports.bundles.document import (
    WHOLE,
    Aside,
    Document,
    OtherDocument,
    claimed_run,
    find_files,
    same_run,
)
from portagpu.reports.history.documents import OtherRun, read_document
from portagpu.runs.results.run import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
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


_TOGETHER: Final = 32
"""Documents of one transaction: SQLite waits for the disk at the end of each."""
_TOGETHER_BYTES: Final = 4 << 20


def import_files(store: Store, paths: Iterable[Path]) -> Iterator[Imported]:
    """Add each file, and the results of each folder, up to 32 in a transaction.

    The files of one transaction are in memory. One that is refused leaves nothing and stops no
    other. A store that can no longer be written raises StoreError.
    """
    aside: list[Aside] = []
    waiting: list[Imported | Document] = []
    size = 0
    for each in _read(store, paths, aside):
        waiting.append(each)
        if isinstance(each, Document):
            size += len(each.data)
        if len(waiting) >= _TOGETHER or size >= _TOGETHER_BYTES:
            yield from _added(store, waiting)
            waiting, size = [], 0
    yield from _added(store, waiting)
    for path, reason in aside:
        yield Imported(path, Outcome.PASSED_OVER, f"{path}: {reason}")


def _read(store: Store, paths: Iterable[Path], aside: list[Aside]) -> Iterator[Imported | Document]:
    """The document of each file that may be added, and what became of the others."""
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
            yield read_document(path)
        except OtherDocument as error:
            outcome = Outcome.REFUSED if named else Outcome.PASSED_OVER
            yield Imported(path, outcome, str(error))
        except ResultError as error:
            yield Imported(path, Outcome.REFUSED, str(error))


def _added(store: Store, waiting: Sequence[Imported | Document]) -> Iterator[Imported]:
    """What becomes of each, in their order, after the documents were added together."""
    documents = [each for each in waiting if isinstance(each, Document)]
    outcomes = iter(store.add_all(documents) if documents else [])
    for each in waiting:
        if isinstance(each, Imported):
            yield each
            continue
        added = next(outcomes)
        if isinstance(added, OtherRun):
            yield Imported(each.path, Outcome.REFUSED, f"{each.path}: {added}")
        else:
            yield Imported(each.path, Outcome.ADDED if added else Outcome.THERE)


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
