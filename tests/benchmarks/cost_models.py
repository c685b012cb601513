"""How far the cost models are from published results: ``python -m tests.benchmarks.cost_models``.

Prints every table's errors, with what the model chose. ``python -m tests.support.pages`` writes
the tables of known errors next to the models' constants, which every answer looks up, and the table
of docs/collectives.md. Intervals are measured by leaving out all tables of one machine at a time,
because two tables of a machine have the same network and the same launches; and on the tables that
are set aside, which make no known error and decided no constant. An error is
``max(predicted / measured, measured / predicted)`` of a time.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from portagpu.base.units import size
from portagpu.devices.collectives.choice import Hardware, Question, choose
from portagpu.devices.collectives.cost import Interval, KnownError, interval_of, percentile
from portagpu.devices.discovery import cost_model_for
from portagpu.facts.targets import load_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "tests/vendor_texts/published_tables.toml"
PACKAGES = {"nvidia": "portagpu_cuda", "amd": "portagpu_rocm"}
TABLES = {
    vendor: ROOT / "backends" / package / "tables" / "cost_model_errors.toml"
    for vendor, package in PACKAGES.items()
}
RANGES = ((0, 4 << 10), (4 << 10, 64 << 10), (64 << 10, 1 << 20), (1 << 20, 16 << 20),
          (16 << 20, 256 << 20), (256 << 20, None))  # fmt: skip
"""Bytes: above the first, up to the second."""


@dataclass(frozen=True)
class Point:
    """One measured time and the predicted one, with what the model chose."""

    size_bytes: int
    measured_us: float
    predicted_us: float
    chosen: str

    @property
    def ratio(self) -> float:
        return self.predicted_us / self.measured_us

    @property
    def factor(self) -> float:
        return max(self.ratio, 1 / self.ratio)


def published() -> list[dict[str, Any]]:
    """The tables, in the order of the file."""
    found: list[dict[str, Any]] = tomllib.loads(PUBLISHED.read_text("utf-8"))["table"]
    return found


def machine(table: dict[str, Any]) -> str:
    """What the table was measured on: as it says, or where it was published."""
    source = table["source"]
    of_thread = "/issues/" in source or "/pull/" in source
    return str(table.get("machine") or (source if of_thread else "/".join(source.split("/")[3:5])))


def counts(table: dict[str, Any]) -> bool:
    """Whether the table makes known errors."""
    return "excluded" not in table and not table.get("aside")


def compare(table: dict[str, Any]) -> list[Point]:
    """The points of a table, each with its prediction."""
    target = load_target(table["target"])
    model = cost_model_for(target.vendor)
    found = []
    for size_bytes, measured in table["points"]:
        question = Question(
            operation=table["operation"],
            size_bytes=size_bytes,
            ranks=table["ranks"],
            nodes=table["nodes"],
            hardware=Hardware.of_target(target),
            nics=table.get("nics"),
            nic_gbs=table.get("nic_gbs"),
            algorithms=tuple(table.get("algorithms", ())),
            options={"cpu": table["cpu"]} if "cpu" in table else {},
        )
        best = choose(question, model).best
        found.append(Point(size_bytes, measured, best.time_us, str(best)))
    return found


def by_range(points: Sequence[Point]) -> Iterator[tuple[int, int | None, list[Point]]]:
    """The points of every range that has some."""
    for low, high in RANGES:
        inside = [p for p in points if low < p.size_bytes <= (high or p.size_bytes)]
        if inside:
            yield low, high, inside


def summary(points: Sequence[Point]) -> dict[str, Any]:
    """What a table of known errors states of a range."""
    factors = sorted(point.factor for point in points)
    return {
        "points": len(points),
        "ratio_p50": round(median(point.ratio for point in points), 3),
        "factor_p50": round(median(factors), 3),
        "factor_p95": round(percentile(factors, 0.95), 3),
        "ratio_low": round(min(point.ratio for point in points), 3),
        "ratio_high": round(max(point.ratio for point in points), 3),
    }


def groups(vendor: str) -> list[tuple[tuple[str, str, int], list[Point], list[str]]]:
    """((target, operation, 1, 2 or 3 for more nodes), points, sources) of tables that count."""
    found: dict[tuple[str, str, int], tuple[list[Point], dict[str, None]]] = {}
    for table in published():
        if load_target(table["target"]).vendor != vendor or not counts(table):
            continue
        key = table["target"], table["operation"], min(table["nodes"], 3)
        points, sources = found.setdefault(key, ([], {}))
        points += compare(table)
        sources[table["source"]] = None
    return [(key, points, list(sources)) for key, (points, sources) in sorted(found.items())]


Judged = tuple[dict[str, Any], Point, Interval]
_Tables = list[tuple[dict[str, Any], list[Point]]]


def left_out() -> list[Judged]:
    """(table, point, interval) with the interval that the tables of all other machines give."""
    tables = [(each, compare(each)) for each in published() if counts(each)]
    return [
        found
        for own in dict.fromkeys(machine(each) for each, _ in tables)
        for found in judged(
            [each for each in tables if machine(each[0]) == own],
            [each for each in tables if machine(each[0]) != own],
        )
    ]


def set_aside() -> list[Judged]:
    """The same for the tables that are set aside, with the interval that all others give."""
    tables = [(each, compare(each)) for each in published() if "excluded" not in each]
    return judged(
        [each for each in tables if not counts(each[0])],
        [each for each in tables if counts(each[0])],
    )


def judged(asked: _Tables, known: _Tables) -> list[Judged]:
    """The points of tables with the intervals that the errors of others give."""
    targets = {each["target"]: load_target(each["target"]) for each, _ in (*asked, *known)}
    kinds: dict[tuple[str, str, int], list[Point]] = {}
    for table, points in known:
        key = table["target"], table["operation"], min(table["nodes"], 3)
        kinds.setdefault(key, []).extend(points)
    errors = [
        KnownError(
            target=target,
            arch=targets[target].arch.name,
            operation=operation,
            nodes=nodes,
            low_bytes=low,
            high_bytes=high,
            sources=(),
            **summary(inside),
        )
        for (target, operation, nodes), points in sorted(kinds.items())
        for low, high, inside in by_range(points)
    ]
    found = []
    for table, points in asked:
        vendor = targets[table["target"]].vendor
        of_vendor = [each for each in errors if targets[each.target].vendor == vendor]
        for point in points:
            question = Question(
                operation=table["operation"],
                size_bytes=point.size_bytes,
                ranks=table["ranks"],
                nodes=table["nodes"],
                hardware=Hardware.of_target(targets[table["target"]]),
            )
            found.append((table, point, interval_of(question, point.predicted_us, of_vendor)[0]))
    return found


def in_words(found: Sequence[Judged]) -> str:
    """How many predictions, mended ones and intervals are right, and how wide these are."""
    held = sum(each.low_us <= point.measured_us <= each.high_us for _, point, each in found)
    compared = sum(each.compared for _, _, each in found)
    within = [sum(p.factor < limit for _, p, _ in found) for limit in (1.25, 2.0)]
    likely = [Point(p.size_bytes, p.measured_us, i.likely_us, "") for _, p, i in found]
    mended = [sum(p.factor < limit for p in likely) for limit in (1.25, 2.0)]
    width = median(each.high_us / each.low_us for _, _, each in found)
    return (
        f"{len(found)} sizes: predicted within 25 % {within[0]}, within 2 times {within[1]}; "
        f"mended {mended[0]} and {mended[1]}; intervals hold {held}, median width {width:.2f}, "
        f"{compared} compared"
    )


def rows() -> Iterator[tuple[str, ...]]:
    """The rows of the table in docs/collectives.md: predicted over measured, in the median."""
    for vendor in TABLES:
        for (target, operation, nodes), points, _ in groups(vendor):
            cells = {low: summary(inside) for low, _, inside in by_range(points)}
            reported = []
            for low, _ in RANGES:
                cell = cells.get(low)
                text = "" if cell is None else f"{cell['ratio_p50']:.2f}"
                reported.append(f"**{text}**" if cell and cell["factor_p50"] > 2 else text)
            count = str(nodes) if nodes < 3 else "more"
            yield (target, operation, count, *reported)


def known_errors(vendor: str) -> str:
    """The text of a vendor's table of known errors."""
    model = cost_model_for(vendor)
    assert model is not None
    lines = [
        f"# How far the cost model of {model.library} {model.version} is from published results.",
        "# Written by `python -m tests.support.pages`: do not edit.",
        f'version = "{model.version}"',
    ]
    for (target, operation, nodes), points, sources in groups(vendor):
        for low, high, inside in by_range(points):
            lines += ["", "[[error]]", f'target = "{target}"']
            lines += [f'arch = "{load_target(target).arch.name}"', f'operation = "{operation}"']
            lines += [f"nodes = {nodes}", f"low_bytes = {low}"]
            lines += [f"high_bytes = {high}"] if high is not None else []
            lines += [f"{name} = {value}" for name, value in summary(inside).items()]
            lines += ["sources = [", *(f'  "{source}",' for source in sources), "]"]
    return "\n".join([*lines, ""])


def main() -> None:
    for table in published():
        print(
            f"{table['target']} {table['operation']} {table['ranks']} ranks {table['nodes']} nodes"
            f"{' ' + table.get('library', '')}: {table['source']}"
        )
        if not counts(table):
            print(f"  excluded: {table.get('excluded', 'set aside')}")
        for low, high, inside in by_range(compare(table)):
            found = summary(inside)
            chosen = ", ".join(dict.fromkeys(point.chosen for point in inside))
            upto = "more" if high is None else size(high)
            print(
                f"  {size(low):>8} to {upto:<8} {found['points']:>3} points  predicted/measured "
                f"{found['ratio_p50']:6.2f}  factor p50 {found['factor_p50']:6.2f} "
                f"p95 {found['factor_p95']:6.2f}  {chosen}"
            )
    parts: dict[str, list[Judged]] = {"without the tables of its machine": left_out()}
    parts["of these one node"] = [each for each in left_out() if each[0]["nodes"] == 1]
    parts["of these more nodes"] = [each for each in left_out() if each[0]["nodes"] > 1]
    parts["set aside"] = set_aside()
    for what, found in parts.items():
        print(f"{what}: {in_words(found)}")


if __name__ == "__main__":
    main()
