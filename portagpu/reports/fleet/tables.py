"""The values of all nodes as tables: one for each measure of each target."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from portagpu.suites.performance.fleet import peer_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.reports.condensed.nodes import Layout, MeasureId, Measures, NodeRun
    from portagpu.runs.judges.peers import Peers


Peer = str
"""A node, or a node and its device where the value is of one: ``peer_name``."""


@dataclass(slots=True)
class Table:
    """The values of one measure of one target; ``spreads`` are fractions of them.

    ``whose`` has the node and the device of each peer, of all tables together.
    """

    hardware: str
    what: MeasureId
    name: str
    unit: str | None
    whose: dict[Peer, tuple[str, str | None]]
    values: dict[Peer, float] = field(default_factory=dict)
    spreads: dict[Peer, float] = field(default_factory=dict)
    compared: Peers | None = None


def tables_of(nodes: Mapping[str, list[NodeRun]]) -> list[Table]:
    """Every measure of every target; of a node's runs the newest that has a value counts."""
    tables: dict[tuple[str, MeasureId], Table] = {}
    columns: dict[tuple[str, MeasureId], list[_Columns]] = {}
    whose: dict[Peer, tuple[str, str | None]] = {}
    for same in _by_layout(nodes):
        names: dict[tuple[str | None, ...], list[Peer]] = {}
        for what, own in same.columns().items():
            place = same.hardware, what
            if (table := tables.get(place)) is None:
                table = tables[place] = Table(same.hardware, what, what.id, None, whose)
            devices = tuple(device for _, device, _ in own)
            if (peers := names.get(devices)) is None:
                peers = names[devices] = same.peers(devices, whose)
            table.unit = table.unit or next((unit for *_, unit in own if unit), None)
            chosen = tuple(number for number, _, _ in own)
            columns.setdefault(place, []).append(_Columns(same, chosen, peers))
    for place, found in columns.items():
        _fill(tables[place], found)
    shapes: dict[tuple[str, str], int] = {}
    for hardware, what in tables:
        shapes[hardware, what.id] = shapes.get((hardware, what.id), 0) + 1
    for table in tables.values():
        if shapes[table.hardware, table.what.id] > 1:
            table.name = f"{table.what.id} {table.what.shape}"
    return list(tables.values())


@dataclass(frozen=True, slots=True)
class _SameLayout:
    """Runs of one target with one layout, in the order of all runs, of which ``at`` has places."""

    hardware: str
    layout: Layout
    at: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    runs: list[Measures] = field(default_factory=list)

    def columns(self) -> dict[MeasureId, list[tuple[int, str | None, str | None]]]:
        """The places in the layout of each measure, with their devices and units."""
        found: dict[MeasureId, list[tuple[int, str | None, str | None]]] = {}
        for number, (what, device, unit) in enumerate(self.layout):
            found.setdefault(what, []).append((number, device, unit))
        return found

    def peers(
        self, devices: Sequence[str | None], whose: dict[Peer, tuple[str, str | None]]
    ) -> list[Peer]:
        """The peer of each of the devices in each run, one run after the other."""
        found = [(peer_name(node, each), (node, each)) for node in self.nodes for each in devices]
        whose.update(found)
        return [peer for peer, _ in found]


class _Columns(NamedTuple):
    """What runs of one layout have of one measure, and the peers that it is of."""

    same: _SameLayout
    chosen: tuple[int, ...]
    peers: list[Peer]

    def values(self) -> list[float]:
        return self._flat(each.values for each in self.same.runs)

    def spreads(self) -> list[float]:
        return self._flat(each.spreads for each in self.same.runs)

    def places(self) -> list[int]:
        """The place of the run that each value is of."""
        return [at for at in self.same.at for _ in self.chosen]

    def _flat(self, rows: Iterable[Sequence[float]]) -> list[float]:
        picked = map(itemgetter(*self.chosen), rows)
        return list(picked if len(self.chosen) == 1 else chain.from_iterable(picked))


def _by_layout(nodes: Mapping[str, list[NodeRun]]) -> Iterable[_SameLayout]:
    """All runs by target and layout, in the order in which these first appear."""
    found: dict[tuple[str, int], _SameLayout] = {}
    at = 0
    for node, runs in nodes.items():
        # the newest last: it replaces the others
        for run in runs:
            key = run.hardware, id(run.measures.layout)
            if (own := found.get(key)) is None:
                own = found[key] = _SameLayout(run.hardware, run.measures.layout)
            own.at.append(at)
            own.nodes.append(node)
            own.runs.append(run.measures)
            at += 1
    return found.values()


def _fill(table: Table, found: Sequence[_Columns]) -> None:
    """Add the values to the table in the order of the runs; the last of a peer counts."""
    peers = list(chain.from_iterable(each.peers for each in found))
    values = list(chain.from_iterable(each.values() for each in found))
    spreads = list(chain.from_iterable(each.spreads() for each in found))
    if len(found) > 1:
        places = list(chain.from_iterable(each.places() for each in found))
        order = sorted(range(len(places)), key=places.__getitem__)
        peers = [peers[at] for at in order]
        values = [values[at] for at in order]
        spreads = [spreads[at] for at in order]
    table.values = dict(zip(peers, values, strict=True))
    table.spreads = {
        peer: spread / abs(value)
        for peer, value, spread in zip(peers, values, spreads, strict=True)
        # a spread that is unlike itself is not there
        if spread == spread and value
    }


def by_peer(
    columns: Sequence[tuple[list[Peer], Sequence[float | None]]],
) -> dict[Peer, list[float]]:
    """The values of each peer in several columns, each with its peers; None is left out."""
    if columns and all(peers == columns[0][0] for peers, _ in columns[1:]):
        rows = zip(*(values for _, values in columns), strict=True)
        return {
            peer: own
            for peer, row in zip(columns[0][0], rows, strict=True)
            if (own := [value for value in row if value is not None])
        }
    found: dict[Peer, list[float]] = {}
    for peers, values in columns:
        for peer, value in zip(peers, values, strict=True):
            if value is not None:
                found.setdefault(peer, []).append(value)
    return found
