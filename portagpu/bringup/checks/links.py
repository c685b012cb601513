"""Are the links up, as the target claims them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.host import read_host
from portagpu.results import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.bringup.context import Context
    from portagpu.results import Result


def check(context: Context) -> Iterator[Result]:
    """The memory nodes of the host; links between devices where the target claims any."""
    yield from _memory_nodes(context)
    kind = context.target.value("link.kind") if context.target is not None else None
    if kind is None or len(context.devices) < 2:
        what = "one device" if len(context.devices) < 2 else "no target that claims links"
        yield context.result("devices", Verdict.SKIP, f"{what}: there is nothing to link")
        return
    yield context.result(
        "devices",
        Verdict.INCONCLUSIVE,
        f"the target claims {kind}, whose state the {context.backend} backend does not read",
    )


def _memory_nodes(context: Context) -> Iterator[Result]:
    """A node without memory makes every access from its CPUs a remote one: a missing DIMM."""
    nodes = read_host().cpu.numa_nodes
    with_cpus = [node for node in nodes if node.cpus]
    if len(with_cpus) < 2:
        yield context.result("numa", Verdict.SKIP, "the host has one memory node")
        return
    empty = [node.index for node in with_cpus if not node.memory_bytes]
    reason = f"{len(with_cpus)} memory nodes with CPUs"
    if empty:
        reason = f"memory node {empty[0]} has CPUs and no memory: check its DIMMs"
    culprit = f"node {empty[0]}" if empty else None
    yield context.judge("numa", not empty, reason, device=culprit)
