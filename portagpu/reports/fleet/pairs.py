"""The slow link or the slow node, from collectives of pairs and groups in rounds.

A pair that is slow alone has a slow link, or one of its nodes is slow. Rounds separate them: a
node is slow in most of its pairs, a link in one pair of each node. Groups are judged in the same
way, and a group in which a node or a pair is slow is not reported again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import ResultError
from portagpu.reports.fleet.measures import Limits, Table, outliers_of
from portagpu.reports.fleet.result_files import gather

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from portagpu.reports.fleet.measures import Unlike
    from portagpu.reports.fleet.nodes import MeasureId
    from portagpu.reports.fleet.result_files import Joint


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


def tables_of(joint: Iterable[Joint]) -> list[Table]:
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
    tables = tables_of(joint)
    return judge(joint, tables, Limits.of(tables))
