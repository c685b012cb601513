"""The gate links: are the links up that the target claims?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import pci_address
from portagpu.facts.host import read_host
from portagpu.machine.inventory.topology import only_gpus
from portagpu.runs.judges.links import judge_links
from portagpu.runs.results.judgement import combine
from portagpu.runs.results.run import Verdict
from portagpu.runs.results.wording import exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.run import Context
    from portagpu.machine.inventory.topology import Topology
    from portagpu.runs.results.run import Result


_OF_ALL_LINKS: Final = frozenset({"link-count", "peers-alike"})
"""Judgements about missing links: the links may be in the part that a cut text lost."""


def check(context: Context) -> Iterator[Result]:
    """The memory nodes of the host; the GPUs' links, as far as the kernel's files show them."""
    yield from _memory_nodes(context)
    yield from _devices(context, context.tested.machine.topology())


def _devices(context: Context, topology: Topology) -> Iterator[Result]:
    """Judgements of the devices under test only: a neighbour's bad link is not theirs.

    If no device is opened, every GPU is judged: not all tools state addresses.
    """
    stated = (pci_address(each.facts.get("pci")) for each in context.tested.devices)
    addresses = {address for address in stated if address is not None}
    if not context.tested.from_files:
        topology = only_gpus(topology, addresses)
    known = [gpu for gpu in topology.gpus if context.tested.from_files or gpu.key in addresses]
    cut = bool(context.tested.origins) and context.tested.machine.inventory().breaks_off
    asked = context.tested.wanted is not None
    for judged in combine(judge_links(topology, context.tested.target, asked=asked)):
        if cut and judged.verdict is Verdict.FAIL and judged.name in _OF_ALL_LINKS:
            reason = f"{judged.reason}; the recording breaks off"
            yield context.result(judged.name, Verdict.INCONCLUSIVE, reason, device=judged.device)
        else:
            yield context.result(judged.name, **judged.fields)
    if known:
        return
    kind = context.tested.target.value("link.kind") if context.tested.target is not None else None
    if kind is None or len(context.tested.devices) < 2:
        what = "one device" if len(context.tested.devices) < 2 else "no target that claims links"
        yield context.result("devices", Verdict.SKIP, f"{what}: there is nothing to link")
        return
    yield context.result(
        "devices",
        Verdict.INCONCLUSIVE,
        f"the target claims {kind}, and no source shows the devices",
    )


def _memory_nodes(context: Context) -> Iterator[Result]:
    """Find NUMA nodes without memory, on which every access is remote: a DIMM is missing."""
    nodes = read_host(context.tested.machine.tree).cpu.numa_nodes
    if context.tested.origins and not nodes:
        yield context.result("numa", Verdict.INCONCLUSIVE, "no memory node was recorded")
        return
    with_cpus = [node for node in nodes if node.cpus]
    if len(with_cpus) < 2:
        yield context.result("numa", Verdict.SKIP, "the host has one memory node")
        return
    empty = [node.index for node in with_cpus if not node.memory_bytes]
    reason = f"{len(with_cpus)} memory nodes with CPUs"
    if empty:
        reason = f"memory node {empty[0]} has CPUs and no memory: check its DIMMs"
    culprit = f"node {empty[0]}" if empty else None
    yield context.judge(
        "numa",
        not empty,
        reason,
        device=culprit,
        value=len(empty),
        unit="1",
        expected=exactly(0, "memory nodes with CPUs and without memory"),
    )
