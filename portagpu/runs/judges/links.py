"""Links against what the machine and its target can do, judged from a topology alone.

Each judgement names the device and the link that falls short. A value that no source states is
INCONCLUSIVE, never a PASS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from portagpu.facts.readings.model import Node, Pcie
from portagpu.machine.inventory.routes import components, hives
from portagpu.machine.inventory.topology import FABRICS, ancestors
from portagpu.runs.judges.gpu_health import health_terms
from portagpu.runs.judges.peers import majority
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import at_least, exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.facts.readings.model import Reading
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.topology import LinkGroup, Topology, TopologyNode

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


_NONE_DOWN: Final = exactly(0, "links that are down")
_ALL_JOINED: Final = exactly(0, "pairs of one hive without a link")


def judge_links(
    topology: Topology, target: Target | None = None, *, asked: bool = True
) -> Iterator[Judgement]:
    """Judge all links between GPUs, and those of GPUs to their host.

    :param topology: What the sources say of GPUs and their links; without GPUs nothing is judged.
    :param target: States how many links a GPU has. Without one, only the machine's own values are
        compared.
    :param asked: Whether the user asked for the target. Only then its PCIe slot is required: a
        product that was recognised may be in a slot that is narrower by design.
    :returns: Judgements, each with its device and the link that falls short.
    """
    gpus = topology.gpus
    if not gpus:
        return
    fabric = [link_group for link_group in topology.link_groups if link_group.kind in FABRICS]
    claimed = target.value("link.kind") if target is not None else None
    if fabric or (len(gpus) > 1 and claimed is not None):
        yield from _links_up(fabric, target)
        yield from _link_errors(topology, fabric)
    if len(gpus) > 1 and (fabric or claimed is not None):
        yield from _link_counts(topology, fabric, target)
        yield from judge_speeds(fabric, target)
        yield from _hives(topology, fabric, target)
    yield from _pcie_widths(topology, target, asked=asked)
    yield from _pcie_generations(gpus, target, asked=asked)
    if len(gpus) > 1:
        yield from _peers_alike(topology, fabric)


def _links_up(fabric: Sequence[LinkGroup], target: Target | None) -> Iterator[Judgement]:
    """Judge links that are down; cards without their optional bridge have all links down."""
    known = [link_group for link_group in fabric if link_group.down is not None]
    broken = [link_group for link_group in known if link_group.down]
    joined = target is not None and target.value("link.topology") is not None
    # a source may state that a link is up and not how many there are
    up = any(group.count or any(link.up for link in group.statements) for group in fabric)
    if known and not joined and not up:
        reason = f"no {known[0].kind} link is up: as designed of cards without a bridge"
        yield Judgement(Verdict.UNVERIFIED, reason, name="links-up", device=known[0].a)
        return
    for link_group in broken:
        total = link_group.down + (link_group.count or 0) if link_group.down is not None else 0
        ends = f"{link_group.a} and {link_group.b}"
        yield Judgement(
            Verdict.FAIL,
            f"{link_group.down} of {total} {link_group.kind} links between {ends} are down",
            link_group.down,
            "1",
            _NONE_DOWN,
            name="links-up",
            device=link_group.a,
        )
    if not broken and known:
        total = sum(link_group.count or 1 for link_group in known)
        reason = f"all {total} links are up"
        yield Judgement(Verdict.PASS, reason, 0, "1", _NONE_DOWN, name="links-up")
    elif not broken:
        yield Judgement(
            Verdict.INCONCLUSIVE, "no source states whether links are up", name="links-up"
        )


def _link_errors(topology: Topology, fabric: Sequence[LinkGroup]) -> Iterator[Judgement]:
    """Judge error counters of links by the rules of the vendor's own health check."""
    counted = False
    bad = False
    for link_group in fabric:
        for link in link_group.statements:
            vendor = next((r.vendor for r in _readings(topology, link_group)), "")
            rules = health_terms()["link_errors"].get(vendor, {})
            stated: dict[str, str | int] = {**link.extra, **link.errors}
            counts = {name: int(stated[name]) for name in rules if name in stated}
            counted = counted or bool(counts)
            for name, count in counts.items():
                if not count:
                    continue
                bad = True
                key = next(
                    (k for k in (link_group.a, link_group.b) if _is_gpu(topology, k)), link_group.a
                )
                where = f" link {link.extra['link']}" if "link" in link.extra else ""
                reason = f"{key}{where}: {count} {name} since the counter began"
                reason += f": {rules[name]['action']}"
                verdict = Verdict.FAIL if rules[name]["fault"] else Verdict.UNVERIFIED
                yield Judgement(verdict, reason, count, "1", name="link-errors", device=key)
    if counted and not bad:
        yield Judgement(Verdict.PASS, "no link has counted an error", name="link-errors")


def _is_gpu(topology: Topology, key: str) -> bool:
    device = topology.devices.get(key)
    return device is not None and device.node is Node.GPU


def _readings(topology: Topology, link_group: LinkGroup) -> Iterator[Reading]:
    for key in (link_group.a, link_group.b):
        device = topology.devices.get(key)
        yield from device.readings if device is not None else ()


_Fabric = Mapping[str, Sequence["LinkGroup"]]
"""The links of a fabric by each of their ends."""


def _links_by_end(fabric: Sequence[LinkGroup]) -> _Fabric:
    found: dict[str, list[LinkGroup]] = {}
    for link_group in fabric:
        for end in {link_group.a, link_group.b}:
            found.setdefault(end, []).append(link_group)
    return found


def _link_count(gpu: str, fabric: _Fabric) -> int | None:
    """How many links of the fabric a GPU has; None where a count is missing."""
    own = fabric.get(gpu, ())
    counts = [link_group.count for link_group in own if link_group.count is not None]
    return sum(counts) if own and len(counts) == len(own) else None


def _peer_count(gpu: str, fabric: _Fabric) -> int | None:
    """How many GPUs have a working link to this one; None without any link."""
    own = fabric.get(gpu, ())
    reached = {
        key for link_group in own if link_group.count != 0 for key in (link_group.a, link_group.b)
    }
    return len(reached - {gpu}) if own else None


def _link_counts(
    topology: Topology, fabric: Sequence[LinkGroup], target: Target | None
) -> Iterator[Judgement]:
    """The number of links of each GPU to switches, or of each GPU's peers in a mesh.

    A mesh is judged only where all its groups are complete: a GPU whose peers are hidden from the
    machine has fewer, and is not faulty.
    """
    wanted = target.value("link.count") if target is not None else None
    if target is None or wanted is None:
        return
    mesh = target.value("link.topology") == "mesh"
    if mesh and len(topology.gpus) % (wanted + 1):
        what = f"{len(topology.gpus)} GPUs are not a multiple of {wanted + 1}"
        yield Judgement(Verdict.INCONCLUSIVE, what, name="link-count")
        return
    short, unknown, alone = [], [], []
    # without a topology that the target states, a bridge between two cards joins them, or none
    bridged = target.value("link.topology") is None
    links = _links_by_end(fabric)
    for gpu in topology.gpus:
        count = _peer_count(gpu.key, links) if mesh else _link_count(gpu.key, links)
        if count is None:
            unknown.append(gpu)
        elif count == 0 and bridged:
            alone.append(gpu)
        elif count < wanted:
            short.append((gpu, count))
    noun = "peers over links" if mesh else "links"
    for gpu, count in short:
        yield Judgement(
            Verdict.FAIL,
            f"{gpu.key} has {count} {noun}, and {target.id} has {wanted}",
            count,
            "1",
            at_least(wanted, f"{target.id}: link.count"),
            name="link-count",
            device=gpu.key,
        )
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        what = f"no source states the links of {unknown[0].key}{more}"
        yield Judgement(Verdict.INCONCLUSIVE, what, name="link-count", device=unknown[0].key)
    elif alone:
        what = f"no link of {alone[0].key} is up, as of a card without a bridge"
        yield Judgement(Verdict.INCONCLUSIVE, what, name="link-count", device=alone[0].key)
    elif not short:
        reason, least = f"each GPU has {wanted} {noun}", at_least(wanted, target.id)
        yield Judgement(Verdict.PASS, reason, wanted, "1", least, name="link-count")


def _hives(
    topology: Topology, fabric: Sequence[LinkGroup], target: Target | None
) -> Iterator[Judgement]:
    """Check that members of a hive reach each other; in a mesh, each pair over its own link."""
    groups = [group for group in hives(topology).values() if len(group) > 1]
    if not groups:
        return
    mesh = target is not None and target.value("link.topology") == "mesh"
    pairs = [(link_group.a, link_group.b) for link_group in fabric if link_group.count != 0]
    direct = {frozenset(pair) for pair in pairs}
    if not pairs:
        yield Judgement(
            Verdict.INCONCLUSIVE, "no source states the links of the hives", name="hive"
        )
        return
    missing = []
    members = dict.fromkeys([*(k for g in groups for k in g), *(k for p in pairs for k in p)])
    part_of = {key: part for part in components(members, pairs) for key in part}
    for group in groups:
        if mesh:
            missing += [
                (a, b)
                for position, a in enumerate(group)
                for b in group[position + 1 :]
                if frozenset((a, b)) not in direct
            ]
        else:
            # the first member in each part, that in the largest part first
            firsts: dict[tuple[str, ...], str] = {}
            for key in group:
                firsts.setdefault(part_of[key], key)
            first, *others = sorted(firsts, key=lambda part: -len(part))
            missing += [(firsts[first], firsts[other]) for other in others]
    often = Counter(key for pair in missing for key in pair)
    for a, b in missing:
        culprit = max((a, b), key=lambda key: often[key])
        reason = f"{a} and {b} are of one hive without a link"
        yield Judgement(Verdict.FAIL, reason, 1, "1", _ALL_JOINED, name="hive", device=culprit)
    if not missing:
        size = ", ".join(str(len(group)) for group in groups)
        reason = f"hives of {size} GPUs are joined"
        yield Judgement(Verdict.PASS, reason, 0, "1", _ALL_JOINED, name="hive")


def _pcie(gpu: TopologyNode) -> Pcie:
    """The GPU's PCIe link; of each value the first that a reading states."""

    def first(name: str) -> int | None:
        values = [getattr(reading.pcie, name) for reading in gpu.readings]
        return next((value for value in values if value is not None), None)

    return Pcie(
        generation=first("generation"),
        width=first("width"),
        max_generation=first("max_generation"),
        max_width=first("max_width"),
        device_generation=first("device_generation"),
        device_width=first("device_width"),
    )


def _pcie_widths(topology: Topology, target: Target | None, *, asked: bool) -> Iterator[Judgement]:
    """Compare the present lanes with what slot and device can do, and with a requested target.

    An idle GPU lowers its generation to save power, but never its width. So fewer lanes are a fault
    if a source says that the slot has more.
    """
    wanted = target.value("host_link.pcie_lanes") if target is not None else None
    short, doubtful, unknown = [], [], []
    for gpu in topology.gpus:
        link = _pcie(gpu)
        able = max((w for w in (link.max_width, wanted if asked else None) if w), default=None)
        own = max((w for w in (link.device_width, wanted, able) if w), default=None)
        if link.width is not None and able is not None and link.width < able:
            by = "slot and GPU can do" if able == link.max_width else "the target has"
            reason = f"{gpu.key} runs at x{link.width}, and {by} x{able}"
            short.append((gpu.key, (reason, link.width, able)))
        elif link.width is None or own is None:
            unknown.append(gpu)
        elif link.width < own:
            doubtful.append(
                f"{gpu.key} runs at x{link.width} and can do x{own}; no source states that its "
                "slot can"
            )
        short += _narrow_bridges(topology, gpu)
    for key, (reason, width, able) in dict(short).items():
        lanes = at_least(able, "lanes that both ends can do")
        yield Judgement(Verdict.FAIL, reason, width, "1", lanes, name="pcie-width", device=key)
    if unknown:
        what = f"no source states lanes and what they can be of {unknown[0].key}"
        if len(unknown) > 1:
            what += f" and {len(unknown) - 1} more"
        yield Judgement(Verdict.INCONCLUSIVE, what, name="pcie-width", device=unknown[0].key)
    elif doubtful:
        yield Judgement(Verdict.UNVERIFIED, _first_reason(doubtful), name="pcie-width")
    elif not short:
        yield Judgement(Verdict.PASS, "each GPU has all its lanes", name="pcie-width")


def _first_reason(reasons: Sequence[str]) -> str:
    more = f" (and {len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
    return f"{reasons[0]}{more}"


def _narrow_bridges(
    topology: Topology, gpu: TopologyNode
) -> Iterator[tuple[str, tuple[str, int, int]]]:
    """Bridges between a GPU and its CPU that run with fewer lanes than both their ends can do.

    Yields (bridge, (reason, lanes, possible lanes)).
    """
    for key in ancestors(gpu.key, topology.parents)[1:]:
        link = topology.edges.get(key)
        able = link.extra.get("max_width", "") if link is not None else ""
        now = link.width if link is not None and able.isdecimal() else None
        if now is not None and now < int(able):
            reason = f"the bridge {key} above {gpu.key} runs at x{now} of x{able}"
            yield key, (reason, now, int(able))


def _pcie_generations(
    gpus: Sequence[TopologyNode], target: Target | None, *, asked: bool
) -> Iterator[Judgement]:
    """The generation that slot and GPU can reach; idle GPUs lower the present one.

    An older slot is taken as designed, unless a target was requested.
    """
    wanted = target.value("host_link.pcie_generation") if target is not None else None
    short, unknown, lowered = [], [], 0
    for gpu in gpus:
        link = _pcie(gpu)
        # a newer GPU in the slot that its target states loses nothing that is claimed
        needed = wanted if wanted is not None else link.device_generation
        able = link.max_generation
        if able is None and needed is not None and (link.generation or 0) >= needed:
            able = link.generation
        if able is None or needed is None:
            unknown.append(gpu)
            continue
        lowered += link.generation is not None and link.generation < min(able, needed)
        if able < needed:
            owner = "the target has" if wanted is not None else "the GPU can do"
            reason = f"slot and {gpu.key} reach generation {able}, and {owner} {needed}"
            short.append((gpu.key, reason, able, at_least(needed, owner)))
    if asked and wanted is not None:
        for key, reason, found, expected in short:
            yield Judgement(
                Verdict.FAIL, reason, found, "1", expected, name="pcie-generation", device=key
            )
    if unknown:
        yield Judgement(
            Verdict.INCONCLUSIVE,
            f"no source states the generation that slot and {unknown[0].key} can do",
            name="pcie-generation",
            device=unknown[0].key,
        )
    elif short and not (asked and wanted is not None):
        reasons = [f"{reason}: the slot may be older by design" for _, reason, _, _ in short]
        yield Judgement(Verdict.UNVERIFIED, _first_reason(reasons), name="pcie-generation")
    elif not short:
        reason = "each GPU reaches its generation"
        if lowered:
            reason += f"; {lowered} run lower now, as idle GPUs do to save power"
        yield Judgement(Verdict.PASS, reason, name="pcie-generation")


def _peers_alike(topology: Topology, fabric: Sequence[LinkGroup]) -> Iterator[Judgement]:
    """Check that GPUs of one product have the same links, and name the outlier."""
    groups: dict[object, list[TopologyNode]] = {}
    for gpu in topology.gpus:
        kinds = [r.device_id or r.name or r.arch for r in gpu.readings]
        groups.setdefault(next((kind for kind in kinds if kind is not None), None), []).append(gpu)
    odd = 0
    compared = False
    links = _links_by_end(fabric)
    for kind, group in groups.items():
        if kind is None or len(group) < 2:
            continue
        for what, values in (
            ("PCIe lanes", [(gpu, _pcie(gpu).width) for gpu in group]),
            ("PCIe generation at most", [(gpu, _pcie(gpu).max_generation) for gpu in group]),
            ("links of the fabric", [(gpu, _link_count(gpu.key, links)) for gpu in group]),
        ):
            known = [(gpu, value) for gpu, value in values if value is not None]
            if len(known) < 2:
                continue
            compared = True
            usual, _, decided = majority([value for _, value in known])
            for gpu, value in known:
                if value != usual and decided:
                    odd += 1
                    reason = f"{gpu.key}: {what} {value}, its peers {usual}"
                    peers = exactly(f"{what} {usual}", "what most peers have")
                    value_in_words = f"{what} {value}"
                    yield Judgement(
                        Verdict.FAIL,
                        reason,
                        value_in_words,
                        expected=peers,
                        name="peers-alike",
                        device=gpu.key,
                    )
                elif value != usual:
                    odd += 1
                    reason = (
                        f"{gpu.key} has {what} {value} and a peer {usual}; without a majority "
                        "nobody can say which is wrong"
                    )
                    yield Judgement(Verdict.UNVERIFIED, reason, name="peers-alike")
                    break
    if compared and not odd:
        reason, none = "GPUs of one product have the same links", exactly(0, "unlike peers")
        yield Judgement(Verdict.PASS, reason, 0, "1", none, name="peers-alike")
    elif not compared:
        reason = "no source states links of two GPUs of one product"
        yield Judgement(Verdict.INCONCLUSIVE, reason, name="peers-alike")
