"""The matrix as rows of targets: as JSON, as Markdown, and in short for each vendor.

The rows are made of the results that are committed, and of those that are given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import DocumentError, read_toml, rule_of, values_of
from portagpu.base.errors import BundleError
from portagpu.reports.bundles.check import stated_areas, stated_names
from portagpu.reports.bundles.document import read_files
from portagpu.reports.proofs.evidence import Shown, cells
from portagpu.runs.results.verdicts import Evidence, Verdict, fold_area
from portagpu.suites.compile.record import built, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from portagpu.facts.targets import Target
    from portagpu.reports.bundles.document import Document
    from portagpu.reports.proofs.evidence import Cell
    from portagpu.runs.ledger import Clearance


RECORDED: Final = "portagpu.recorded/1"


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
        found: dict[str, Recorded] = read_toml(path, RECORDED, values_of(rule_of(Recorded)))
    except DocumentError as error:
        raise BundleError(str(error)) from error
    return found


SCHEMA: Final = "portagpu.matrix/1"
SUITES: Final = ("bringup", "conformance", "performance", "screen", "compile")
"""The suites with a column, in its order."""
NOTHING_RAN: Final = "-"
_STRENGTH: Final = tuple(Evidence).index


@dataclass(frozen=True, slots=True)
class Row:
    """One target, and what there is of it. ``kernels`` counts those whose machine code passed."""

    target: Target
    recorded: Recorded | None
    kernels: int | None
    cells: tuple[Cell, ...]

    @property
    def badges(self) -> list[Evidence]:
        """The evidence that there is of this target, the weakest first."""
        there = {Evidence.DECLARED, *(cell.badge for cell in self.cells)}
        if self.recorded is not None:
            there |= {Evidence.RECORDED, Evidence.LOADED if self.recorded.loaded else None}
        if self.kernels:
            there.add(Evidence.COMPILED)
        return [badge for badge in Evidence if badge in there]

    def suite(self, name: str) -> Shown | None:
        """All areas of a suite together; None without results.

        What ran counts, and recordings where nothing did. A PASS of fewer cases or metrics
        than the suite has is INCONCLUSIVE.
        """
        of_suite = [cell for cell in self.cells if cell.suite == name]
        found = [cell for cell in of_suite if not cell.recorded] or of_suite
        if not found:
            return None
        counts: Counter[Verdict] = Counter()
        for cell in found:
            counts.update(cell.counts)
        badges = [cell.badge for cell in found if cell.badge is not None]
        judged = sum(cell.judged for cell in found if cell.stated)
        stated = 0 if found[0].recorded else _stated(name)
        verdict = fold_area(cell.verdict for cell in found)
        if verdict is Verdict.PASS and judged < stated:
            verdict = Verdict.INCONCLUSIVE
        return Shown(
            verdict=verdict,
            badge=max(badges, key=_STRENGTH, default=None),
            counts={verdict: counts[verdict] for verdict in Verdict if counts[verdict]},
            judged=judged,
            stated=stated,
        )


@cache
def _stated(suite: str) -> int:
    """How many cases or metrics a suite has in all areas."""
    return sum(len(stated_names(suite, area)) for area in stated_areas(suite))


def rows(
    targets: Iterable[Target],
    documents: Sequence[Document] = (),
    committed: Committed = NOTHING,
    clearances: Sequence[Clearance] = (),
) -> list[Row]:
    """A row for each target, by id: what stands of result files and what is committed."""
    found: dict[str, list[Cell]] = {}
    named = ((each.path.name, each.run) for each in (*committed.bundles, *documents))
    for cell in cells(named, clearances=clearances):
        found.setdefault(cell.target, []).append(cell)
    return [
        Row(
            target=target,
            recorded=committed.recorded.get(target.id),
            kernels=committed.compiled.get(target.arch.name),
            cells=tuple(found.get(target.id, ())),
        )
        for target in sorted(targets, key=lambda each: each.id)
    ]


def document(matrix: Sequence[Row]) -> dict[str, Any]:
    """The document ``portagpu.matrix/1``, ready for JSON."""
    return {
        "schema": SCHEMA,
        "targets": [
            {
                "id": row.target.id,
                "product": row.target.product,
                "vendor": row.target.vendor,
                "arch": row.target.arch.name,
                "badges": list(map(str, row.badges)),
                "recorded": asdict(row.recorded) if row.recorded is not None else None,
                "compiled_kernels": row.kernels,
                "areas": [
                    {
                        **asdict(cell),
                        "verdict": str(cell.verdict),
                        "badge": str(cell.badge) if cell.badge is not None else None,
                        "counts": {str(verdict): count for verdict, count in cell.counts.items()},
                    }
                    for cell in row.cells
                ],
            }
            for row in matrix
        ],
    }


def line(row: Row) -> list[str]:
    """The cells of a line: id, recordings, kernels with machine code, and each suite that ran."""
    suites = (row.suite(name) for name in SUITES)
    built = str(row.kernels) if row.kernels else NOTHING_RAN
    return [
        row.target.id,
        _recorded_text(row.recorded),
        built,
        *(each.text if each is not None else NOTHING_RAN for each in suites),
    ]


HEAD: Final = ("target", "recordings", "kernels built", *SUITES)


def markdown(matrix: Sequence[Row]) -> str:
    """The table of all targets in Markdown."""
    return _markdown_table(HEAD, [[f"`{row.target.id}`", *line(row)[1:]] for row in matrix])


def summary(matrix: Sequence[Row]) -> str:
    """How many targets of each vendor have each badge, in Markdown; CPUs by architecture."""
    groups: dict[str, list[Row]] = {}
    for row in matrix:
        target = row.target
        cpu = target.vendor == "cpu"
        name = f"{target.arch.name} CPU" if cpu else f"{target.vendor.upper()} GPUs"
        groups.setdefault(name, []).append(row)
    badges = [badge for badge in Evidence if any(badge in row.badges for row in matrix)]
    lines = []
    for name, group in groups.items():
        counts = (sum(badge in row.badges for row in group) for badge in badges)
        lines.append([name, str(len(group)), *(str(each) if each else "none" for each in counts)])
    return _markdown_table(("hardware", "targets", *(f"`{badge}`" for badge in badges)), lines)


def _recorded_text(recorded: Recorded | None) -> str:
    if recorded is None:
        return NOTHING_RAN
    return "recorded, loaded" if recorded.loaded else "recorded"


def _markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))
