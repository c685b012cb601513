"""The badges that committed bundles earn, and their table in ``docs/targets.md``."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import BundleError, PortagpuError
from portagpu.base.text import one_line
from portagpu.devices.registry import plugin
from portagpu.reports.bundles.check import area_of, most_earned, read_bundle, suite_of
from portagpu.runs.ledger import OF_SEVERAL, instant
from portagpu.runs.results.run import Run
from portagpu.runs.results.verdicts import FAILING, Evidence, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from portagpu.runs.results.run import Result

_RAN: Final = frozenset({Verdict.PASS, Verdict.UNVERIFIED}) | FAILING
_SUITES: Final = ("conformance", "performance", "screen", "bringup")
_MARKUP: Final = re.compile(r"[\\`*_\[\]<>|~&@:$]|(?<=www)\.")


@dataclass(frozen=True, slots=True)
class Badge:
    """The evidence of one area of one target, with the number of results by verdict.

    ``executed`` means that it ran on that hardware with that software, ``loaded`` that the vendor's
    library answered there. Whether it passed is in ``counts``.
    """

    evidence: Evidence
    target: str
    suite: str
    area: str
    counts: Mapping[Verdict, int]


def earned_badges(bundle: Mapping[str, Any]) -> list[Badge]:
    """The badges of a validated bundle, in the order of its results."""
    run = Run.from_json(bundle["result"])
    areas: dict[tuple[Evidence, str, str], Counter[Verdict]] = {}
    for result, badge in earned_in(run):
        if badge is not None:
            place = badge, suite_of(result), area_of(result)
            areas.setdefault(place, Counter())[result.verdict] += 1
    target = run.info.target or ""
    return [
        Badge(evidence, target, suite, area, dict(counts))
        for (evidence, suite, area), counts in areas.items()
    ]


def unearned_ids(bundle: Mapping[str, Any]) -> list[str]:
    """The ids of results that state evidence of what ran and whose cases, or gates, earn none."""
    ran = (each for each in Run.from_json(bundle["result"]).results if each.verdict in _RAN)
    return [each.id for each in ran if each.evidence and earned(each) is None]


def earned(result: Result) -> Evidence | None:
    """The stated evidence, but no more than its case can earn today: the file may be older.

    None where nothing ran.
    """
    most = most_earned(result)
    if result.verdict not in _RAN or most is None or not result.evidence:
        return None
    strength = tuple(Evidence).index
    return min(most, max(result.evidence, key=strength), key=strength)


def earned_in(run: Run) -> Iterator[tuple[Result, Evidence | None]]:
    """Each result with what it earned in its run.

    A recording that was judged earns ``recorded`` at most, because no device was. A world of one
    device, which ranks do not share, executes nothing of several.
    """
    alone = len(run.info.devices) < 2 and not _is_shared(run.info.backend)
    for result in run.results:
        badge = earned(result)
        if badge is not None and run.info.replay:
            badge = min(badge, Evidence.RECORDED, key=tuple(Evidence).index)
        of_several = badge is Evidence.EXECUTED and area_of(result) in OF_SEVERAL
        yield result, None if alone and of_several else badge


def _is_shared(backend: str | None) -> bool:
    """Whether ranks share a device of that backend; False for one that is not installed here."""
    try:
        return plugin(backend or "").shared
    except PortagpuError:
        return False


def table(folder: Path) -> str:
    """The bundles of ``folder`` as a Markdown table, the newest of a target first.

    Raises BundleError for a bundle that is not valid, and for what is not a folder.
    """
    if not folder.is_dir():
        raise BundleError(
            f"{one_line(str(folder))} is not a folder: name that of the bundles, matrix/results"
        )
    bundles = [(path.name, read_bundle(path)) for path in sorted(folder.glob("*.json"))]
    if not bundles:
        return "No result of real hardware is committed yet."
    bundles.sort(key=lambda entry: instant(entry[1]["result"]["run"]["started"]), reverse=True)
    bundles.sort(key=lambda entry: str(entry[1]["result"]["run"]["target"]))
    ran = ("conformance", "performance", "screen", "bring-up")
    head = ["target", "devices", "software", *ran, "loaded", "result"]
    rows = [head, ["---"] * len(head), *(_row(name, bundle) for name, bundle in bundles)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _row(name: str, bundle: Mapping[str, Any]) -> list[str]:
    run = bundle["result"]["run"]
    badges = earned_badges(bundle)
    versions = {**run["versions"], "python": bundle["provenance"]["python"]}
    products = Counter(str(device["name"]) for device in run["devices"])
    link = f"[{run['started'][:10]}](../matrix/results/{name})"
    return [
        f"`{run['target']}`",  # an id of this package's own targets
        _cell(f"{count} x {product}" for product, count in products.items()),
        _cell(f"{key} {value}" for key, value in sorted(versions.items()) if value),
        *(_cell(map(_area, _executed_badges(badges, suite))) for suite in _SUITES),
        _cell(map(_loaded_text, (badge for badge in badges if badge.evidence is Evidence.LOADED))),
        f"{bundle['result']['verdict']}, {link}",
    ]


def _executed_badges(badges: Iterable[Badge], suite: str) -> list[Badge]:
    executed = (badge for badge in badges if badge.evidence is Evidence.EXECUTED)
    return [badge for badge in executed if badge.suite == suite]


def _loaded_text(badge: Badge) -> str:
    return f"bring-up {_area(badge)}" if badge.suite == "bringup" else _area(badge)


def _area(badge: Badge) -> str:
    """``precision 181``, with the number of failures."""
    failed = sum(badge.counts.get(verdict, 0) for verdict in FAILING)
    total = sum(badge.counts.values())
    return f"{badge.area} {total}" + (f" ({failed} failed)" if failed else "")


def _cell(parts: Iterable[str]) -> str:
    return _escape_markdown(", ".join(parts)) or "nothing"


def _escape_markdown(text: str) -> str:
    """Untrusted ``text`` for Markdown: one line, without markup or links."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text))
