"""Speeds of links between GPUs against the target's; a slow link is named with both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.runs.results.expectations import exactly
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.topology import LinkGroup

_SHORT: Final = 0.1
"""Sources round, and count a line code or not: an H100's 25 GB/s are 26.6 in nvidia-smi. A link
that was trained down has half its lanes, or the rate of a generation before."""
_ENOUGH: Final = {"lower": -_SHORT, "upper": None}


def judge_speeds(fabric: Sequence[LinkGroup], target: Target | None) -> Iterator[Judgement]:
    """Judge the bandwidth of one link in one direction, where source and target state it."""
    per_link = target.value("link.per_link_per_direction") if target is not None else None
    if target is None or per_link is None:
        return
    mesh = target.value("link.topology") == "mesh"
    known = 0
    slow = []
    for link_group in fabric:
        # a mesh has one link between two GPUs
        count = link_group.count if link_group.count is not None or not mesh else 1
        if not link_group.bandwidth_bytes_s or not count:
            continue
        known += 1
        found = link_group.bandwidth_bytes_s / count / 1e9
        if found < (1 - _SHORT) * per_link:
            slow.append((link_group, found))
    for link_group, found in slow:
        ends = f"{link_group.a} and {link_group.b}"
        reason = f"the {link_group.kind} link between {ends} runs at {found:g} GB/s"
        yield Judgement(
            Verdict.FAIL,
            f"{reason}, and {target.id} has {per_link:g}",
            found,
            "GB/s",
            {**exactly(per_link, f"{target.id}: one link in one direction", "GB/s"), **_ENOUGH},
            name="link-speed",
            device=link_group.a,
        )
    if known and not slow:
        reason = f"{known} links of the fabric are as fast as {target.id} has them"
        yield Judgement(Verdict.PASS, reason, name="link-speed")
