"""What a checkout states of each target: recordings that were read, machine code, bundles.

An installed wheel has none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import DocumentError, read_toml, rule_of, values_of
from portagpu.base.errors import BundleError
from portagpu.reports.bundles.files import read_files
from portagpu.suites.compile.record import built, read_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from portagpu.reports.bundles.files import Document

SCHEMA: Final = "portagpu.recorded/1"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A target whose published outputs were read: of which tools, and which library agreed."""

    read: tuple[str, ...]
    loaded: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """By target what was ``recorded``; by architecture how many kernels were built; the bundles."""

    recorded: Mapping[str, Recorded]
    compiled: Mapping[str, int]
    bundles: tuple[Document, ...]


NOTHING: Final = Committed({}, {}, ())
NOT_IN_WHEEL: Final = (
    "the project's own results are in its source, in the folder matrix, and not in an installed "
    "wheel: run `portagpu matrix show` in a checkout (pip install -e .), see docs/matrix.md there, "
    "or name result files of your own"
)


def read_committed(matrix: Path) -> Committed:
    """What the folder ``matrix`` holds; raises BundleError and ResultError for a wrong file."""
    record, results = matrix / "compiled.json", matrix / "results"
    has_bundles = results.is_dir() and any(results.glob("*.json"))
    return Committed(
        recorded=_read_recorded(matrix / "recorded.toml"),
        compiled=_read_compiled(record) if record.is_file() else {},
        bundles=tuple(read_files([results])) if has_bundles else (),
    )


def _read_compiled(path: Path) -> dict[str, int]:
    return {name: len(kernels) for name, kernels in built(read_record(path)).items()}


def _read_recorded(path: Path) -> dict[str, Recorded]:
    if not path.is_file():
        return {}
    try:
        found: dict[str, Recorded] = read_toml(path, SCHEMA, values_of(rule_of(Recorded)))
    except DocumentError as error:
        raise BundleError(str(error)) from error
    return found
