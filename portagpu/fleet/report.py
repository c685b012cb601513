"""A whole fleet from its result files: who failed and where, who is unlike the others, and in what.

The document is ``portagpu.fleet-report/1``; docs/fleet-report.md has its keys.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.codec import encode
from portagpu.fleet import measures, pairs, versions
from portagpu.fleet.distributions import Distribution, distributions_of
from portagpu.fleet.gather import Fleet, Joint, Missing, gather
from portagpu.results.actions import Action
from portagpu.results.verdicts import FAILING, Verdict, fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.fleet.measures import Limits, Unlike
    from portagpu.fleet.nodes import NodeRun, Unread
    from portagpu.fleet.pairs import Slow
    from portagpu.fleet.record import FleetRecord
    from portagpu.fleet.versions import Differing

SCHEMA: Final = "portagpu.fleet-report/1"
DONE: Final = "done"
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")

Gate = tuple[str, str]
"""Suite and area of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the fleet.

    ``state`` is "done" with a result, else how far its step of the fleet run is ("lost"), and
    ``verdict`` then None. ``gate`` is the first that failed, ``check`` the gravest failure, and
    ``action`` what to do about the node, by the record or else by its failures. ``gates`` has the
    newest verdict of each gate. ``file`` is the result that says so; the node has so many
    ``earlier`` ones too.
    """

    name: str
    hardware: str
    state: str
    verdict: Verdict | None
    gate: str = ""
    check: str = ""
    device: str | None = None
    reason: str = ""
    action: str = ""
    next_step: str = ""
    gates: Mapping[Gate, Verdict]
    started: str = ""
    file: str = ""
    earlier: int = 0

    @property
    def failed(self) -> bool:
        """Whether its result is FAIL or ERROR."""
        return self.verdict in FAILING


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Nodes that are no PASS for a reason that differs in numbers at most.

    The words are those of the first node.
    """

    state: str
    verdict: Verdict | None
    gate: str
    check: str
    reason: str
    action: str
    next_step: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """What a fleet's results say together.

    ``joint`` and ``missing_joint`` are the numbers of pairs and groups with and without a result.
    """

    records: tuple[FleetRecord, ...]
    nodes: tuple[Node, ...]
    gates: tuple[Gate, ...]
    alike: tuple[Alike, ...]
    unlike: tuple[Unlike, ...]
    slow: tuple[Slow, ...]
    differing: tuple[Differing, ...]
    distributions: tuple[Distribution, ...]
    unread: tuple[Unread, ...]
    joint: int
    missing_joint: int
    limits: Limits

    @property
    def verdict(self) -> Verdict:
        """FAIL where a node failed or is worse than its peers, INCONCLUSIVE where one is not
        known, else the fold of all nodes."""
        if any(node.failed for node in self.nodes) or self.worse or self.slow:
            return Verdict.FAIL
        if self.unread or self.missing_joint or any(node.verdict is None for node in self.nodes):
            return Verdict.INCONCLUSIVE
        return fold(node.verdict for node in self.nodes if node.verdict is not None)

    @property
    def worse(self) -> list[Unlike]:
        """The outliers that speak against a node."""
        return [each for each in self.unlike if each.worse]

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes have each verdict, in their order, and each state without one."""
        order = [*map(str, Verdict)]
        found = Counter(str(node.verdict or node.state) for node in self.nodes)
        known = {verdict: found.pop(verdict) for verdict in order if verdict in found}
        return known | dict(sorted(found.items()))

    def to_json(self) -> dict[str, Any]:
        """The document ``portagpu.fleet-report/1``."""
        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "counts": self.counts,
            "comparisons": self.limits.comparisons,
            "deviations": round(self.limits.deviations, 4),
            "runs": [
                {
                    "id": each.id,
                    "what": each.what,
                    "started": each.started,
                    "nodes": len(each.nodes),
                }
                for each in self.records
            ],
            "gates": [{"suite": suite, "area": area} for suite, area in self.gates],
            "nodes": [self._node(node) for node in self.nodes],
            "alike": encode(self.alike),
            "outliers": encode(self.unlike),
            "slow": encode(self.slow),
            "versions": encode(self.differing),
            "distributions": encode(self.distributions),
            "unread": [{"file": str(each.path), "reason": each.reason} for each in self.unread],
        }

    def _node(self, node: Node) -> dict[str, Any]:
        gates = [node.gates.get(gate) for gate in self.gates]
        names = (each for each in Node.__slots__ if each != "gates")
        return {**{name: getattr(node, name) for name in names}, "gates": gates}


def report(places: Sequence[Path], processes: int = 0) -> FleetReport:
    """The report of what ``places`` hold; raises as :func:`portagpu.fleet.gather.gather`."""
    return judge(gather(places, processes))


def judge(fleet: Fleet) -> FleetReport:
    """The report of a fleet whose files were read."""
    nodes = _nodes(fleet)
    tables = measures.tables_of(fleet.nodes)
    joint = pairs.tables_of(fleet.joint)
    limits = measures.Limits.of(tables, more=sum(len(table.values) for table in joint))
    unlike = measures.compare(tables, limits)
    slow = pairs.judge(fleet.joint, joint, limits)
    different = versions.differing(fleet.nodes, tables, limits)
    unlike += versions.with_fewer_devices(different)
    gates = dict.fromkeys(gate for node in nodes for gate in node.gates)
    return FleetReport(
        records=tuple(fleet.records),
        nodes=tuple(nodes),
        gates=tuple(gates),
        alike=tuple(_alike([*nodes, *_missing_together(fleet)])),
        unlike=tuple(sorted(unlike, key=_gravity)),
        slow=tuple(slow),
        differing=tuple(different),
        distributions=tuple(distributions_of([*tables, *joint])),
        unread=tuple(fleet.unread),
        joint=len(fleet.joint),
        missing_joint=len(fleet.missing_joint),
        limits=limits,
    )


def _gravity(unlike: Unlike) -> tuple[bool, float, str]:
    far = math.inf if unlike.relative is None else abs(unlike.relative)
    return not unlike.worse, -far, unlike.node


def _nodes(fleet: Fleet) -> list[Node]:
    """Every node, in the order of the names, with its numbers counted as such."""
    actions = {
        step.nodes[0]: step.action
        for record in fleet.records
        for step in record.steps
        if len(step.nodes) == 1 and step.action
    }
    found = [_done(name, runs, actions.get(name) or "") for name, runs in fleet.nodes.items()]
    found += _only_together(fleet)
    # a failure of an older run is graver than no result
    missing = {each.node: each for each in fleet.missing}
    found = [
        node if node.failed or node.name not in missing else _without(node, missing[node.name])
        for node in found
    ]
    known = {node.name for node in found}
    found += [
        Node(
            name=each.node,
            hardware="",
            state=each.state,
            verdict=None,
            reason=each.reason,
            action=actions.get(each.node) or "",
            gates={},
        )
        for each in fleet.missing
        if each.node not in known
    ]
    return sorted(found, key=lambda node: natural(node.name))


def _without(node: Node, missing: Missing) -> Node:
    """A node whose newest run gave no result."""
    return replace(
        node, state=missing.state, verdict=None, gate="", check="", device=None,
        reason=missing.reason, next_step="",
    )  # fmt: skip


def _only_together(fleet: Fleet) -> Iterator[Node]:
    """The nodes that have results with others alone: a pair that fails is told of both."""
    own: dict[str, list[Joint]] = {}
    for joint in fleet.joint:
        for node in joint.nodes:
            if node not in fleet.nodes:
                own.setdefault(node, []).append(joint)
    for name, results in own.items():
        gates: dict[Gate, Verdict] = {}
        for joint in results:
            for gate, verdict in joint.run.gates.items():
                both = [each for each in (gates.get(gate), verdict) if each is not None]
                gates[gate] = fold(both) if len(set(both)) > 1 else verdict
        told = next((each for each in results if each.run.verdict in FAILING), results[-1])
        failure = told.run.failure
        others = ", ".join(each for each in told.nodes if each != name)
        yield Node(
            name=name,
            hardware=told.run.hardware,
            state=DONE,
            verdict=fold(each.run.verdict for each in results),
            gate=failure.gate if failure else "",
            check=failure.check if failure else "",
            reason=f"with {others}: {failure.reason}" if failure else "",
            action=failure.action if failure else Action.NONE,
            next_step=failure.next_step if failure else "",
            gates=gates,
            started=told.run.started,
            file=str(told.run.path),
            earlier=0,
        )


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts node-2 before node-10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part) if part.isdecimal() and len(part) < 19 else -1, part) for part in parts]


def _done(name: str, runs: Sequence[NodeRun], action: str) -> Node:
    """A node with the newest verdict of each gate; a run that lacks a gate does not heal it."""
    newest = runs[-1]
    gates: dict[Gate, Verdict] = {}
    for run in runs:
        gates |= run.gates
    told, verdict = newest, newest.verdict
    if len(runs) > 1:
        verdict = fold([newest.verdict, *gates.values()])
        told = next((run for run in reversed(runs) if _still_fails(run, gates)), newest)
    failure = told.failure
    return Node(
        name=name,
        hardware=newest.hardware,
        state=DONE,
        verdict=verdict,
        gate=failure.gate if failure else "",
        check=failure.check if failure else "",
        device=failure.device if failure else None,
        reason=failure.reason if failure else "",
        action=action or (failure.action if failure else Action.NONE),
        next_step=failure.next_step if failure else "",
        gates=gates,
        started=told.started,
        file=str(told.path),
        earlier=len(runs) - 1,
    )


def _still_fails(run: NodeRun, gates: Mapping[Gate, Verdict]) -> bool:
    failure = run.failure
    return failure is not None and gates.get((failure.suite, failure.gate)) in FAILING


def _missing_together(fleet: Fleet) -> Iterator[Node]:
    """Pairs and groups without a result, as if they were nodes."""
    for nodes, missing in fleet.missing_joint:
        yield Node(
            name=pairs.JOINT.join(nodes),
            hardware="",
            state=missing.state,
            verdict=None,
            reason=missing.reason,
            gates={},
        )


def _alike(nodes: Sequence[Node]) -> list[Alike]:
    """Groups of nodes that are no PASS: the failed before the missing, the largest first."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        if node.verdict is not Verdict.PASS:
            check = node.check.partition("[")[0]
            said = _NUMBER.sub("#", node.reason)
            key = node.state, node.verdict, node.gate, check, said, node.action
            groups.setdefault(key, []).append(node)
    found = [
        Alike(
            state=first.state,
            verdict=first.verdict,
            gate=first.gate,
            check=first.check,
            reason=first.reason,
            action=first.action,
            next_step=first.next_step,
            nodes=tuple(node.name for node in own),
        )
        for own in groups.values()
        for first in own[:1]
    ]
    return sorted(found, key=lambda each: (each.verdict not in FAILING, -len(each.nodes)))
