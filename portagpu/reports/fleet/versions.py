"""Nodes whose versions are not those of most nodes, and whether they measure otherwise."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.base.stats import mad
from portagpu.reports.fleet.measures import Unlike
from portagpu.runs.judges.peers import MIN_PEERS, NORMAL, majority

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from portagpu.reports.condensed.nodes import NodeRun
    from portagpu.reports.fleet.measures import Limits
    from portagpu.reports.fleet.tables import Table

DEVICES: Final = "number of devices"
_MEDIAN: Final = math.sqrt(math.pi / 2)
"""The standard error of the median of n normal values: 1.253 times that of their mean."""
_RELATIVE: Final = 0.02
"""Groups that differ by less count as equal: medians vary less than single values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A measure in which nodes of a version differ from those of the usual one.

    Medians of nodes in ``unit``. It shows that they differ, and not that the version is why.
    """

    measure: str
    unit: str
    median: float
    usual: float
    relative: float
    worse: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The nodes that have one ``version`` of a component; None where they have none."""

    version: str | None
    nodes: tuple[str, ...]
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """A component whose version is not the same on all nodes of a target.

    ``usual`` is what ``votes`` nodes have. Where it is not ``decided`` by most of them, nobody can
    say which is wrong.
    """

    hardware: str
    component: str
    usual: str | None
    votes: int
    decided: bool
    groups: tuple[Group, ...]


def differing(
    nodes: Mapping[str, Sequence[NodeRun]], tables: Sequence[Table], limits: Limits
) -> list[Differing]:
    """Every component that differs within a target, from the newest run of each node."""
    newest = {node: runs[-1] for node, runs in nodes.items()}
    found = []
    for hardware in dict.fromkeys(run.hardware for run in newest.values()):
        own = {node: run for node, run in newest.items() if run.hardware == hardware}
        names = dict.fromkeys(name for run in own.values() for name in run.versions)
        of_nodes = {
            name: {node: run.versions.get(name) for node, run in own.items()} for name in names
        }
        of_nodes[DEVICES] = _devices({node: nodes[node] for node in own})
        by_node = _by_node([table for table in tables if table.hardware == hardware])
        for name, versions in of_nodes.items():
            if len(set(versions.values())) > 1:
                found.append(_differing(hardware, name, versions, by_node, limits))
    return found


def _devices(nodes: Mapping[str, Sequence[NodeRun]]) -> dict[str, str | None]:
    """How many devices the newest run has that lists all of a node's.

    Nodes without such a run are left out, unless no node has one.
    """
    listings = {
        node: [run for run in runs if run.account.lists_all] for node, runs in nodes.items()
    }
    chosen = {node: runs for node, runs in listings.items() if runs} or nodes
    return {node: str(runs[-1].devices) for node, runs in chosen.items()}


def with_fewer_devices(differing: Iterable[Differing]) -> Iterator[Unlike]:
    """The nodes that have fewer devices than most nodes of their target."""
    for each in differing:
        if each.component != DEVICES or not each.decided or each.usual is None:
            continue
        usual = int(each.usual)
        for group in each.groups:
            own = int(group.version or 0)
            for node in group.nodes if own < usual else ():
                yield Unlike(
                    among=DEVICES,
                    hardware=each.hardware,
                    node=node,
                    device=None,
                    measure=DEVICES,
                    unit="1",
                    value=own,
                    median=usual,
                    mad=None,
                    relative=(own - usual) / usual,
                    worse=True,
                    peers=each.votes,
                )


def _differing(
    hardware: str,
    component: str,
    versions: Mapping[str, str | None],
    by_node: Sequence[tuple[Table, Mapping[str, float]]],
    limits: Limits,
) -> Differing:
    most = majority(list(versions.values()))
    groups: dict[str | None, list[str]] = {}
    for node, version in versions.items():
        groups.setdefault(version, []).append(node)
    usual = groups.pop(most.usual)
    return Differing(
        hardware=hardware,
        component=component,
        usual=most.usual,
        votes=most.votes,
        decided=most.decided,
        groups=tuple(
            Group(
                version=version,
                nodes=tuple(nodes),
                effects=tuple(
                    effect
                    for table, values in by_node
                    if (effect := _effect(table, values, nodes, usual, limits)) is not None
                ),
            )
            for version, nodes in sorted(groups.items(), key=lambda entry: -len(entry[1]))
        ),
    )


def _by_node(tables: Sequence[Table]) -> list[tuple[Table, dict[str, float]]]:
    """The median of each node's devices, because those of one node are not independent."""
    found = []
    for table in tables:
        values: defaultdict[str, list[float]] = defaultdict(list)
        for peer, value in table.values.items():
            if math.isfinite(value):
                values[table.whose[peer][0]].append(value)
        found.append((table, {node: median(own) for node, own in values.items()}))
    return found


def _effect(
    table: Table,
    values: Mapping[str, float],
    nodes: Sequence[str],
    usual: Sequence[str],
    limits: Limits,
) -> Effect | None:
    """The difference of two medians, where it is beyond what the spread of the nodes explains."""
    own = [values[node] for node in nodes if node in values]
    others = [values[node] for node in usual if node in values]
    if min(len(own), len(others)) < MIN_PEERS:
        return None
    middle, usually = median(own), median(others)
    spread = max(mad(own), mad(others))
    error = _MEDIAN * NORMAL * spread * math.sqrt(1 / len(own) + 1 / len(others))
    far = abs(middle - usually)
    if not usually or far <= limits.deviations * error or far <= _RELATIVE * abs(usually):
        return None
    side = units.worse_side(table.unit or "")
    return Effect(
        measure=table.name,
        unit=table.unit or "1",
        median=middle,
        usual=usually,
        relative=(middle - usually) / abs(usually),
        worse=side * (middle - usually) > 0 if side else None,
    )
