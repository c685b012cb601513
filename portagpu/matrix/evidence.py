"""What result files show of each area of each target: its verdict, and the evidence for it."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.bundle.badges import earned
from portagpu.bundle.check import read_bundle
from portagpu.bundle.document import SCHEMA as BUNDLE
from portagpu.bundle.result_ids import area_of, suite_of
from portagpu.errors import ResultError
from portagpu.files import read_bounded
from portagpu.results.run import Run, read_json, verdict_of
from portagpu.results.verdicts import Evidence, Verdict
from portagpu.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from portagpu.results.run import Result

_HEAD_BYTES: Final = 64
"""A bundle names its schema first."""
_STRENGTH: Final = tuple(Evidence).index


@dataclass(frozen=True, slots=True)
class Source:
    """A result file: its name, its run, and whether it is a bundle, whose evidence was checked."""

    name: str
    run: Run
    bundle: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """The newest run of one area of one target.

    ``badge`` is the strongest evidence of its results, or None where nothing ran. ``started`` is
    when the run began (RFC 3339), ``source`` the file that has it.
    """

    target: str
    suite: str
    area: str
    verdict: Verdict
    badge: Evidence | None
    counts: Mapping[Verdict, int]
    started: str
    source: str


def read_source(path: Path) -> Source:
    """The run in a result file or a bundle; raises ResultError or BundleError with the reason."""
    try:
        head = read_bounded(path, _HEAD_BYTES)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror or error}") from error
    if f'"{BUNDLE}"'.encode() in head:
        return Source(path.name, Run.from_json(read_bundle(path)["result"]), bundle=True)
    return Source(path.name, read_json(path), bundle=False)


def read_sources(places: Sequence[Path]) -> list[Source]:
    """The runs of files, and of all ``*.json`` in folders, in the order of their names.

    In a folder, JSON that is neither a result nor a bundle is passed over. Raises ResultError and
    BundleError for a file that is wrong, and ResultError for a folder without results.
    """
    found: list[Source] = []
    for place in places:
        if not place.is_dir():
            found.append(read_source(place))
            continue
        inside = [read_source(path) for path in sorted(place.glob("*.json")) if _is_ours(path)]
        if not inside:
            raise ResultError(f"{one_line(str(place))}: holds no result files")
        found += inside
    return found


def cells(sources: Iterable[Source]) -> list[Cell]:
    """The newest run of each area of each target, by target, suite and area.

    Runs of hardware that is no known target have no cell.
    """
    newest: dict[tuple[str, str, str], Cell] = {}
    for source in sorted(sources, key=lambda each: each.run.info.started):
        target = source.run.info.target
        if target is None:
            continue
        areas: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in source.run.results:
            areas[suite_of(result), area_of(result)].append(result)
        for (suite, area), results in areas.items():
            newest[target, suite, area] = _cell(source, target, suite, area, results)
    return [newest[key] for key in sorted(newest)]


def _cell(source: Source, target: str, suite: str, area: str, results: Sequence[Result]) -> Cell:
    counts = dict.fromkeys(Verdict, 0)
    for result in results:
        counts[result.verdict] += 1
    run = source.run
    badges = [badge for each in results if (badge := earned(each)) is not None]
    if run.info.replay:
        # a recording was judged, and no device
        badges = [min(each, Evidence.RECORDED, key=_STRENGTH) for each in badges]
    return Cell(
        target=target,
        suite=suite,
        area=area,
        verdict=verdict_of(results),
        badge=max(badges, key=_STRENGTH, default=None),
        counts={verdict: count for verdict, count in counts.items() if count},
        started=run.info.started,
        source=source.name,
    )


def _is_ours(path: Path) -> bool:
    """Whether the file states one of this project's schemas of results."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return True  # reading it tells what is wrong
    schema = document.get("schema") if isinstance(document, dict) else None
    return isinstance(schema, str) and schema.startswith(("portagpu.result/", "portagpu.bundle/"))
