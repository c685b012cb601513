"""A whole fleet from its result files: who failed and where, who is unlike the others, and in what.

The document is ``portagpu.fleet-report/1``; docs/fleet.md has its keys.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import encode
from portagpu.base.text import one_line
from portagpu.reports.condensed.nodes import Failure
from portagpu.reports.fleet import measures, versions
from portagpu.reports.fleet.measures import Distribution, distributions_of
from portagpu.reports.fleet.result_files import Fleet, Missing, gather
from portagpu.reports.fleet.tables import tables_of
from portagpu.runs.ledger import IDENTITY, balance
from portagpu.runs.results.advice import Action, severities
from portagpu.runs.results.verdicts import FAILING, Verdict, fold, fold_area

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.reports.bundles.document import Aside
    from portagpu.reports.condensed.nodes import NodeRun, Unread
    from portagpu.reports.fleet.measures import Limits, Slow, Unlike
    from portagpu.reports.fleet.record import FleetRecord
    from portagpu.reports.fleet.versions import Differing
    from portagpu.runs.ledger import Absent, Balance

SCHEMA: Final = "portagpu.fleet-report/1"
DONE: Final = "done"
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")

_NOT_GREEN: Final = frozenset({*FAILING, Verdict.INCONCLUSIVE})

Gate = tuple[str, str]
"""Suite and area of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the fleet.

    ``state`` is "done" with a result, else how far its step of the fleet run is ("lost"), and
    ``verdict`` then None. ``gate`` is the first that failed, ``check`` the gravest failure, and
    ``action`` what to do about the node, by the record or else by its failures. ``gates`` has the
    newest verdict of each gate. ``file`` is the result that says so; the node has this many
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
class SharedReason:
    """Nodes that are not a PASS for a reason that differs in numbers at most.

    The words are those of the first node. ``devices`` has what each node blames, or None.
    """

    state: str
    verdict: Verdict | None
    gate: str
    check: str
    reason: str
    action: str
    next_step: str
    nodes: tuple[str, ...]
    devices: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """What a fleet's results say together.

    ``several_machines`` says of a name why two machines may have it, ``aside`` what the places hold
    that does not count. ``joint`` and ``missing_joint`` count pairs and groups with and without a
    result.
    """

    records: tuple[FleetRecord, ...]
    nodes: tuple[Node, ...]
    gates: tuple[Gate, ...]
    reasons: tuple[SharedReason, ...]
    unlike: tuple[Unlike, ...]
    slow: tuple[Slow, ...]
    differing: tuple[Differing, ...]
    distributions: tuple[Distribution, ...]
    unread: tuple[Unread, ...]
    aside: tuple[Aside, ...]
    several_machines: Mapping[str, str]
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
            "alike": encode(self.reasons),
            "outliers": encode(self.unlike),
            "slow": encode(self.slow),
            "versions": encode(self.differing),
            "distributions": encode(self.distributions),
            "unread": [{"file": str(each.path), "reason": each.reason} for each in self.unread],
            "aside": [{"file": str(each.path), "reason": each.reason} for each in self.aside],
            "several_machines": dict(self.several_machines),
        }

    def _node(self, node: Node) -> dict[str, Any]:
        gates = [node.gates.get(gate) for gate in self.gates]
        names = (each for each in Node.__slots__ if each != "gates")
        return {**{name: getattr(node, name) for name in names}, "gates": gates}


def report(places: Sequence[Path], processes: int = 0) -> FleetReport:
    """The report of what ``places`` hold; raises as :func:`gather`."""
    return judge(gather(places, processes))


def judge(fleet: Fleet) -> FleetReport:
    """The report of a fleet whose files were read."""
    nodes = _nodes(fleet)
    tables = tables_of(fleet.nodes)
    joint = measures.tables_of_pairs(fleet.joint)
    limits = measures.Limits.of(tables, more=sum(len(table.values) for table in joint))
    unlike = measures.compare(tables, limits)
    slow = measures.judge(fleet.joint, joint, limits)
    different = versions.differing(fleet.nodes, tables, limits)
    unlike += versions.with_fewer_devices(different)
    gates = dict.fromkeys(gate for node in nodes for gate in node.gates)
    several = {
        name: why
        for name, runs in fleet.nodes.items()
        if len(runs) > 1 and (why := fleet.balance(name).several_machines)
    }
    return FleetReport(
        records=tuple(fleet.records),
        nodes=tuple(nodes),
        gates=tuple(gates),
        reasons=tuple(_shared_reasons([*nodes, *_missing_together(fleet)])),
        unlike=tuple(sorted(unlike, key=_gravity)),
        slow=tuple(slow),
        differing=tuple(different),
        distributions=tuple(distributions_of([*tables, *joint])),
        unread=tuple(fleet.unread),
        aside=tuple(fleet.aside),
        several_machines=several,
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
    found = [_done(name, runs, fleet.balance(name)) for name, runs in fleet.nodes.items()]
    alone = {each.name: each for each in found}
    together = _together(fleet)
    found = [each for each in found if each.name not in together]
    found += (
        _with_together(alone.get(name), [each.node(name) for each in joint])
        for name, joint in together.items()
    )
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


def _together(fleet: Fleet) -> dict[str, list[_Together]]:
    """What stands of the pairs and groups of each node, by the same rules as of a node."""
    runs: dict[tuple[str, ...], list[NodeRun]] = {}
    for joint in fleet.joint:
        runs.setdefault(joint.nodes, []).append(joint.run)
    found: dict[str, list[_Together]] = {}
    for nodes, own in runs.items():
        own.sort(key=lambda each: (each.account.at_s, each.account.run))
        stands = balance([each.account for each in own])
        together = _Together(nodes, _done("", own, stands))
        for node in nodes:
            found.setdefault(node, []).append(together)
    return found


@dataclass(frozen=True, slots=True)
class _Together:
    """A pair or group of nodes, and what stands of all its runs, as if it were one node."""

    nodes: tuple[str, ...]
    found: Node

    def node(self, name: str) -> Node:
        """It as one of its nodes has it."""
        others = ", ".join(each for each in self.nodes if each != name)
        reason = f"with {others}: {self.found.reason}" if self.found.reason else ""
        return replace(self.found, name=name, reason=reason, device=None, earlier=0)


def _with_together(own: Node | None, together: Sequence[Node]) -> Node:
    """A node with the results that it has with others: what is graver says why."""
    nodes = [*([own] if own is not None else []), *together]
    gates: dict[Gate, set[Verdict]] = {}
    for each in nodes:
        for gate, verdict in each.gates.items():
            gates.setdefault(gate, set()).add(verdict)
    verdict = fold(each.verdict for each in nodes if each.verdict is not None)
    why = next((each for each in nodes if each.verdict is verdict), nodes[0])
    return replace(
        why,
        hardware=nodes[0].hardware,
        verdict=verdict,
        gates={gate: fold_area(found) for gate, found in gates.items()},
        earlier=nodes[0].earlier,
    )


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts node-2 before node-10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part) if part.isdecimal() and len(part) < 19 else -1, part) for part in parts]


def _done(name: str, runs: Sequence[NodeRun], own: Balance) -> Node:
    """A node with what stands of all its runs."""
    newest = runs[-1]
    by_run = {run.account.run: run for run in runs}
    source, failure = _why(own, by_run)
    verdict = own.verdict
    if failure is None and verdict is not Verdict.PASS:
        # nothing was judged, or a run did not end by itself
        source = by_run[own.unfinished.run] if own.unfinished is not None else newest
        failure = source.failure or _not_ended(source)
    gates = own.gates()
    if own.absent:
        gates[IDENTITY] = Verdict.FAIL
    action = Action(failure.action) if failure is not None else Action.NONE
    if not own.replaced and own.cleared is None:
        # a result that is not judged may ask for something too
        action = max(action, Action(newest.action))
    return Node(
        name=name,
        hardware=newest.hardware,
        state=DONE,
        verdict=verdict,
        gate=failure.gate if failure else "",
        check=failure.check if failure else "",
        device=failure.device if failure else None,
        reason=failure.reason if failure else "",
        action=action,
        next_step=failure.next_step if failure else "",
        gates=gates,
        started=source.started,
        file=str(source.path),
        earlier=len(runs) - 1,
    )


def _why(own: Balance, by_run: Mapping[str, NodeRun]) -> tuple[NodeRun, Failure | None]:
    """The run and the reason of what is gravest of all that stands and is not a PASS.

    ``gate`` of the reason is the first that failed, and ``action`` the worst of all.
    """
    newest = by_run[own.newest.run]
    # one run has few failures, in the order of its facts
    facts = own.facts if len(by_run) > 1 else newest.failures
    standing = [
        (run, run.failures[fact])
        for fact in facts
        if fact in own.facts
        and (each := own.facts[fact]).cleared is None
        and each.verdict in _NOT_GREEN
        and fact in (run := by_run[each.account.run]).failures
    ]
    failed = [each for each in standing if each[1].rank < len(severities())]
    failed += ((by_run[each.missing.run], _absent(each)) for each in own.absent)
    found = failed or standing
    if not found or ((own.several_machines or own.replaced) and not failed):
        return newest, _doubt(own)
    run, gravest = min(found, key=lambda each: each[1].rank)
    _, first = found[0]
    action = max(Action(each.action) for _, each in found)
    return run, replace(gravest, suite=first.suite, gate=first.gate, action=action)


def _absent(absent: Absent) -> Failure:
    """The failure of a device that the newest listing lacks."""
    device = absent.device
    suite, gate = IDENTITY
    return Failure(
        suite=suite,
        gate=gate,
        check=absent.fact.id,
        action=Action.ISOLATE,
        device=device.id,
        reason=(
            f"the device {one_line(device.title)} of the run {absent.seen.run} is missing from "
            f"{absent.missing.run}, which lists all devices"
        ),
        next_step="look for the device on its bus and in dmesg; if it was replaced, record that "
        "with portagpu fleet clear",
        rank=severities()["gone"].rank,
    )


def _not_ended(run: NodeRun) -> Failure:
    return Failure(
        suite="", gate="", check="", action=Action.NONE, device=None, next_step="",
        reason=f"the run {run.account.run} did not end by itself", rank=len(severities()),
    )  # fmt: skip


def _doubt(own: Balance) -> Failure | None:
    """Why a node is not a PASS although nothing of it failed; None where nothing speaks of it."""
    cleared = own.cleared
    if own.several_machines:
        reason = f"two machines may have this name: {own.several_machines}"
    elif own.replaced is not None:
        day = datetime.fromtimestamp(own.replaced.at_s, UTC)
        reason = f"replaced on {day:%F} ({one_line(own.replaced.reason)}), and nothing ran since"
    elif cleared is not None:
        day = datetime.fromtimestamp(cleared.at_s, UTC)
        reason = f"cleared on {day:%F} ({one_line(cleared.reason)}), and not judged since"
    else:
        return None
    return Failure(
        suite="", gate="", check="", action=Action.NONE, device=None, reason=reason, next_step="",
        rank=len(severities()),
    )  # fmt: skip


def _missing_together(fleet: Fleet) -> Iterator[Node]:
    """Pairs and groups without a result, as if they were nodes."""
    for nodes, missing in fleet.missing_joint:
        yield Node(
            name=measures.JOINT.join(nodes),
            hardware="",
            state=missing.state,
            verdict=None,
            reason=missing.reason,
            gates={},
        )


def _shared_reasons(nodes: Sequence[Node]) -> list[SharedReason]:
    """Groups of nodes that are not a PASS: the failed before the missing, the largest first."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        if node.verdict is not Verdict.PASS:
            check = node.check.partition("[")[0]
            reason = _NUMBER.sub("#", node.reason)
            key = node.state, node.verdict, node.gate, check, reason, node.action
            groups.setdefault(key, []).append(node)
    found = [
        SharedReason(
            state=first.state,
            verdict=first.verdict,
            gate=first.gate,
            check=first.check,
            reason=first.reason,
            action=first.action,
            next_step=first.next_step,
            nodes=tuple(node.name for node in own),
            devices=tuple(node.device for node in own),
        )
        for own in groups.values()
        for first in own[:1]
    ]
    return sorted(found, key=lambda each: (each.verdict not in FAILING, -len(each.nodes)))
