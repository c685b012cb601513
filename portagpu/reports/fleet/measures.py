"""Nodes that measure unlike their peers, by the one rule of :mod:`portagpu.runs.judges.peers`, and
the slow link or the slow node, from collectives of pairs and groups in rounds.

Nodes of one target are peers, and none of another. Five comparisons use the rule:

- each measure over the devices of all nodes;
- the *level* of a device in a family of measures: the median of its values over the peers' medians.
  A slow device is slow in all of them, so that its level shows what no single measure does;
- the *noise* of a device: the median of the spreads of its own samples over the peers' medians;
- pairs and groups of nodes;
- the nodes with one version against all (:mod:`portagpu.reports.fleet.versions`).

Where so much is compared, normal noise alone exceeds 3.5 deviations, so the limit grows with the
number of comparisons, and a little more with few peers (``deviations_for``).

A pair that is slow alone has a slow link, or one of its nodes is slow. Rounds separate them: a
node is slow in most of its pairs, a link in one pair of each node. Groups are judged in the same
way, and a group in which a node or a pair is slow is not reported again.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.base.errors import ResultError
from portagpu.reports.condensed.nodes import MeasureId
from portagpu.reports.fleet.result_files import gather
from portagpu.reports.fleet.tables import Table, by_peer
from portagpu.runs.judges.peers import RELATIVE, compare_peers, deviations_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.reports.fleet.result_files import Joint
    from portagpu.reports.fleet.tables import Peer
    from portagpu.runs.judges.peers import Peers


MEASURE: Final = "measure"
LEVEL: Final = "level"
NOISE: Final = "noise"
_MIN_MEASURES: Final = 3
"""Fewer measures have no level: one of them would decide it."""
_NOISIER: Final = 1.0
"""A device with less than twice the spread of its peers is not noisy."""
NOISE_UNIT: Final = "1"
"""More is worse, and less is not better: it says nothing of speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """A value of a node that is unlike its peers.

    ``among`` is MEASURE, LEVEL, NOISE, "pair" or "number of devices". ``relative`` is its signed
    distance from ``median`` as a fraction, None where no number holds that; ``value`` is None where
    it failed without a number. ``worse`` is None where the unit does not say which side is.
    """

    among: str
    hardware: str
    node: str
    device: str | None
    measure: str
    unit: str | None
    value: float | None
    median: float | None
    mad: float | None
    relative: float | None
    worse: bool | None
    peers: int

    @property
    def sentence(self) -> str:
        """ "gemm/bf16 on gpu:0 is 96 TFLOPS, its peers 120 TFLOPS (-20%)", without the node."""
        device = f" on {self.device}" if self.device else ""
        if self.value is None or self.median is None:
            return f"{self.measure}{device} gave no number"
        if self.among in (LEVEL, NOISE):
            far = "far" if self.relative is None else f"{self.relative:+.0%}"
            return f"{self.measure}{device} is {far} from its peers"
        value = units.quantity(self.value, self.unit, like=self.median)
        peers = units.quantity(self.median, self.unit)
        counted = self.relative is None or self.unit == "1"
        far = "" if counted else f" ({self.relative:+.0%})"
        return f"{self.measure}{device} is {value}, its peers {peers}{far}"

    @property
    def short(self) -> str:
        """ "gemm/bf16 on gpu:0 -20%"."""
        device = f" on {self.device}" if self.device else ""
        if self.value is None:
            return f"{self.measure}{device} without a number"
        return f"{self.measure}{device}{'' if self.relative is None else f' {self.relative:+.0%}'}"


def by_node(unlike: Iterable[Unlike]) -> dict[str, list[Unlike]]:
    """Node -> what is unlike there, in the order that is given."""
    found: dict[str, list[Unlike]] = {}
    for each in unlike:
        found.setdefault(each.node, []).append(each)
    return found


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a value may be from its peers, which follows from the number of comparisons."""

    comparisons: int

    @classmethod
    def of(cls, tables: Iterable[Table], more: int = 0) -> Limits:
        """For every value of ``tables``, their levels and noise, and ``further`` ones."""
        tables = list(tables)
        peers: dict[str, set[Peer]] = {}
        for table in tables:
            peers.setdefault(table.hardware, set()).update(table.values)
        families = {table.what.family for table in tables}
        values = sum(len(table.values) for table in tables)
        compared = sum(map(len, peers.values()))
        return cls(values + compared * (len(families) + 1) + more)

    @property
    def deviations(self) -> float:
        """The limit for enough peers that their MAD is certain."""
        return deviations_for(self.comparisons)

    def compare(self, values: Mapping[str, float], relative: float = RELATIVE) -> Peers:
        """The one rule (``compare_peers``) with the deviations for these peers."""
        limit = deviations_for(self.comparisons, len(values))
        return compare_peers(values, deviations=limit, relative=relative)


def compare(tables: Iterable[Table], limits: Limits) -> list[Unlike]:
    """What is unlike its peers, target by target; each table keeps its comparison."""
    found: list[Unlike] = []
    by_hardware: dict[str, list[Table]] = {}
    for table in tables:
        table.compared = limits.compare(table.values)
        found += outliers_of(table, table.compared, MEASURE)
        by_hardware.setdefault(table.hardware, []).append(table)
    for hardware, own in by_hardware.items():
        for level in _levels(hardware, own):
            compared = limits.compare(level.values)
            found += outliers_of(level, compared, LEVEL)
        noise = _noise(hardware, own)
        compared = limits.compare(noise.values, _NOISIER)
        found += (
            each
            for each in outliers_of(noise, compared, NOISE)
            if each.relative and each.relative > 0
        )
    return found


def outliers_of(table: Table, compared: Peers, among: str) -> Iterator[Unlike]:
    for each in compared.outliers:
        node, device = table.whose[each.name]
        number = math.isfinite(each.value)
        side = units.worse_side(table.unit or "")
        worse: bool | None = None
        if among == NOISE or not number:
            worse = True
        elif side:
            worse = side * each.relative > 0
        yield Unlike(
            among=among,
            hardware=table.hardware,
            node=node,
            device=device,
            measure=table.name,
            unit=table.unit,
            value=each.value if number else None,
            median=compared.median,
            mad=compared.mad,
            relative=each.relative if math.isfinite(each.relative) else None,
            worse=worse,
            peers=len(table.values) - 1,
        )


def _levels(hardware: str, tables: Iterable[Table]) -> Iterator[Table]:
    """The level of each device in each family: what is faster than the median is above 1."""
    families: dict[str, list[Table]] = {}
    for table in tables:
        middle = table.compared.median if table.compared is not None else None
        if middle is not None and middle > 0 and units.worse_side(table.unit or ""):
            families.setdefault(table.what.family, []).append(table)
    for family, own in families.items():
        if len(own) < _MIN_MEASURES:
            continue
        columns = []
        for table in own:
            middle = table.compared.median  # type: ignore[union-attr]
            slower_above = units.worse_side(table.unit or "") > 0
            column = [
                (middle / value if slower_above else value / middle)  # type: ignore[operator]
                if 0 < value < math.inf
                else None
                for value in table.values.values()
            ]
            columns.append((list(table.values), column))
        ratios = by_peer(columns)
        values = {peer: median(each) for peer, each in ratios.items() if len(each) >= _MIN_MEASURES}
        name = f"{family} (the level of {len(own)} measures)"
        yield Table(hardware, MeasureId(family, ""), name, "ratio", own[0].whose, values)


def _noise(hardware: str, tables: Iterable[Table]) -> Table:
    """How many times the spread of its peers each device has."""
    columns = []
    whose: dict[Peer, tuple[str, str | None]] = {}
    for table in tables:
        whose = table.whose
        if not table.spreads or not (middle := median(table.spreads.values())):
            continue
        column = [spread / middle for spread in table.spreads.values()]
        columns.append((list(table.spreads), column))
    ratios = by_peer(columns)
    values = {peer: median(each) for peer, each in ratios.items() if len(each) >= _MIN_MEASURES}
    name = "noise (the spread of its own samples)"
    return Table(hardware, MeasureId("noise", ""), name, NOISE_UNIT, whose, values)


BINS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A measure of one target: ``n`` values in ``unit`` from ``low`` to ``high``.

    ``counts`` are those of equally wide bins between the two. ``outliers`` names what is unlike its
    peers, the farthest first, and ``far`` has those of their values that are numbers; ``lost`` of
    the values are none.
    """

    hardware: str
    measure: str
    unit: str
    n: int
    lost: int
    median: float
    mad: float
    low: float
    high: float
    counts: tuple[int, ...]
    outliers: tuple[str, ...]
    far: tuple[float, ...]


def distributions_of(tables: Iterable[Table]) -> Iterator[Distribution]:
    """The distribution of each measure whose peers were judged."""
    for table in tables:
        compared = table.compared
        numbers = [value for value in table.values.values() if math.isfinite(value)]
        if compared is None or compared.median is None or compared.mad is None:
            continue
        low, high = min(numbers), max(numbers)
        counts = [0] * BINS
        step = (high - low) / BINS
        for value in numbers:
            counts[min(int((value - low) / step), BINS - 1) if step else 0] += 1
        yield Distribution(
            hardware=table.hardware,
            measure=table.name,
            unit=table.unit or "1",
            n=len(numbers),
            lost=len(table.values) - len(numbers),
            median=compared.median,
            mad=compared.mad,
            low=low,
            high=high,
            counts=tuple(counts),
            outliers=tuple(each.name for each in compared.outliers),
            far=tuple(each.value for each in compared.outliers if math.isfinite(each.value)),
        )


PAIR: Final = "pair"
LINK: Final = "link"
NODE: Final = "node"
UNKNOWN: Final = "link or node"
JOINT: Final = " + "
"""Between the names of nodes that ran together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """What is slow: a LINK between nodes, a NODE, or UNKNOWN, which another round would settle.

    ``evidence`` are the measures that say so; ``slow`` of ``pairs`` of the nodes were slow.
    """

    what: str
    nodes: tuple[str, ...]
    slow: int
    pairs: int
    evidence: tuple[Unlike, ...]

    @property
    def sentence(self) -> str:
        """One line: "the link of a and b: ..."."""
        named = " and ".join(self.nodes)
        worst = max(self.evidence, key=lambda each: abs(each.relative or 1.0))
        far = f"{abs(worst.relative):.0%}" if worst.relative is not None else "far"
        much = f"{worst.measure} {far} from the median of all pairs"
        if self.what == NODE:
            return f"{named} is slow in {self.slow} of its {self.pairs} pairs: {much}"
        if len(self.nodes) > 2:
            return f"{named} are slow together, and none of their own pairs is: {much}"
        if self.what == LINK:
            return f"the link of {named} is slow, and they are not slow with others: {much}"
        return f"{named}: their link or one of them is slow, which another round would show: {much}"


def tables_of_pairs(joint: Iterable[Joint]) -> list[Table]:
    """Every measure of the results of several nodes, with a value for each pair or group."""
    tables: dict[tuple[str, MeasureId], Table] = {}
    for each in sorted(joint, key=lambda each: (each.round, each.run.account.at_s)):
        pair = JOINT.join(each.nodes)
        for own in each.run.measures:
            place = f"{each.run.hardware}, {len(each.nodes)} nodes", own.what
            if (table := tables.get(place)) is None:
                table = tables[place] = Table(place[0], own.what, own.what.id, own.unit, {})
            table.unit = table.unit or own.unit
            # a rank of a group is not a device of a node
            table.whose[pair] = pair, None
            table.values[pair] = min(own.value, table.values.get(pair, own.value))
    return list(tables.values())


def judge(joint: Sequence[Joint], tables: Iterable[Table], limits: Limits) -> list[Slow]:
    """The links and nodes that are slow, the farthest first."""
    evidence: dict[str, list[Unlike]] = {}
    for table in tables:
        table.compared = limits.compare(table.values)
        for found in outliers_of(table, table.compared, PAIR):
            if found.worse:
                evidence.setdefault(found.node, []).append(found)
    members = {JOINT.join(each.nodes): each.nodes for each in joint}
    pairs = Counter(node for nodes in members.values() for node in nodes)
    slow = Counter(node for pair in evidence for node in members[pair])
    # a node's own slow pairs may be those with a slower node, so the one with most goes first
    guilty: set[str] = set()
    for node, count in slow.most_common():
        own = [pair for pair in evidence if node in members[pair]]
        alone = [pair for pair in own if not guilty.intersection(members[pair])]
        others = pairs[node] - (len(own) - len(alone))
        if count > 1 and 2 * len(alone) > others:
            guilty.add(node)
    named = [
        Slow(
            what=NODE,
            nodes=(node,),
            slow=slow[node],
            pairs=pairs[node],
            evidence=tuple(
                each for pair, all_ in evidence.items() if node in members[pair] for each in all_
            ),
        )
        for node in sorted(guilty)
    ]
    for pair, unlike in sorted(evidence.items(), key=lambda entry: len(members[entry[0]])):
        nodes = members[pair]
        # a group is slow for a pair in it that is
        explained = any(set(other.nodes) <= set(nodes) for other in named)
        if not explained and guilty.isdisjoint(nodes):
            known = all(pairs[node] > 1 for node in nodes)
            least = min(pairs[node] for node in nodes)
            named.append(
                Slow(
                    what=LINK if known else UNKNOWN,
                    nodes=nodes,
                    slow=1,
                    pairs=least,
                    evidence=tuple(unlike),
                )
            )
    return sorted(named, key=lambda each: -max(abs(own.relative or 1.0) for own in each.evidence))


def slow_of(folder: Path) -> list[Slow]:
    """What is slow among the pairs and groups in ``folder``, the farthest first.

    Pairs are compared with pairs, and groups with groups of their size; fewer than four values of a
    kind are not judged (``portagpu.runs.judges.peers``). Empty where there is no result.
    """
    try:
        joint = gather([folder]).joint
    except ResultError:
        return []
    tables = tables_of_pairs(joint)
    return judge(joint, tables, Limits.of(tables))
