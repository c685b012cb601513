"""Links that fall short are named with their device; what nobody states is never a PASS."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from portagpu.facts.readings.model import End, Findings, Link, Node, Pcie, Reading
from portagpu.facts.targets import Target, load_target
from portagpu.machine.inventory.topology import Topology, build_topology
from portagpu.runs.judges.links import judge_links
from portagpu.runs.results.verdicts import Verdict, fold

if TYPE_CHECKING:
    from portagpu.runs.results.judgement import Judgement

FULL = Pcie(
    generation=5,
    width=16,
    max_generation=5,
    max_width=16,
    device_generation=5,
    device_width=16,
)


def gpu(number: int) -> End:
    return End(Node.GPU, f"GPU{number}", f"0000:{number:02x}:00.0", number)


def links(ends: tuple[End, End], kind: str, **values: object) -> Link:
    return Link(source="one", a=ends[0], b=ends[1], kind=kind, **values)  # type: ignore[arg-type]


def machine(
    fabric: list[Link], count: int = 8, pcie: dict[int, Pcie] | None = None, hive: str | None = None
) -> Topology:
    readings = tuple(
        Reading(
            source="one",
            vendor="amd",
            index=n,
            pci=gpu(n).pci,
            device_id=0x74A1,
            hive=hive,
            pcie=(pcie or {}).get(n, FULL),
        )
        for n in range(count)
    )
    return build_topology([Findings(kind="one", readings=readings, links=tuple(fabric))])


def switched(counts: dict[int, int] | None = None, up: bool | None = True) -> list[Link]:
    """8 GPUs with 18 links to one fabric, except as ``counts`` has it."""
    fabric = End(Node.SWITCH, "fabric")
    return [
        links((gpu(n), fabric), "nvlink", count=(counts or {}).get(n, 18), up=up) for n in range(8)
    ]


def mesh(missing: tuple[tuple[int, int], ...] = (), count: int = 8) -> list[Link]:
    return [
        links((gpu(a), gpu(b)), "xgmi", count=1)
        for a in range(count)
        for b in range(a + 1, count)
        if (a, b) not in missing
    ]


def verdicts(topology: Topology, target: Target | None = None) -> dict[str, Verdict]:
    judged = list(judge_links(topology, target))
    return {
        name: fold([j.verdict for j in judged if j.name == name])
        for name in dict.fromkeys(j.name for j in judged)
    }


def failures(topology: Topology, target: Target | None = None) -> list[Judgement]:
    return [j for j in judge_links(topology, target) if j.verdict is Verdict.FAIL]


def test_a_switched_machine_that_has_its_links_passes():
    found = verdicts(machine(switched()), load_target("nvidia-h100-sxm"))
    assert found == {
        "links-up": Verdict.PASS,
        "link-count": Verdict.PASS,
        "pcie-width": Verdict.PASS,
        "pcie-generation": Verdict.PASS,
        "peers-alike": Verdict.PASS,
    }


def test_a_mesh_that_has_its_links_passes():
    found = verdicts(machine(mesh(), hive="h"), load_target("amd-mi300x"))
    assert found["hive"] is Verdict.PASS
    assert found["link-count"] is Verdict.PASS
    assert Verdict.FAIL not in found.values()


def test_fewer_links_than_the_target_states_name_the_gpu():
    first, odd = failures(machine(switched({3: 12})), load_target("nvidia-h100-sxm"))
    assert (first.name, first.device) == ("link-count", "0000:03:00.0")
    assert first.reason == "0000:03:00.0 has 12 links, and nvidia-h100-sxm has 18"
    assert (odd.name, odd.device) == ("peers-alike", "0000:03:00.0")


def test_a_link_that_is_down_is_named():
    fabric = End(Node.SWITCH, "fabric")
    broken = [*switched(), links((gpu(2), fabric), "nvlink", count=1, up=False)]
    judged = next(j for j in failures(machine(broken)) if j.name == "links-up")
    assert judged.device == "0000:02:00.0"
    assert judged.reason == "1 of 19 nvlink links between 0000:02:00.0 and fabric are down"


def test_members_of_a_hive_without_a_link_are_named():
    topology = machine(mesh(missing=((2, 5), (2, 6))), hive="h")
    found = [j for j in failures(topology, load_target("amd-mi300x")) if j.name == "hive"]
    assert [j.reason for j in found] == [
        "0000:02:00.0 and 0000:05:00.0 are of one hive without a link",
        "0000:02:00.0 and 0000:06:00.0 are of one hive without a link",
    ]
    assert {j.device for j in found} == {"0000:02:00.0"}


def test_a_hive_that_is_not_a_mesh_may_go_through_other_gpus():
    ring = [links((gpu(n), gpu((n + 1) % 8)), "xgmi", count=1) for n in range(8)]
    assert verdicts(machine(ring, hive="h"))["hive"] is Verdict.PASS
    parted = [link for n, link in enumerate(ring) if n not in (0, 4)]
    (judged,) = [j for j in failures(machine(parted, hive="h")) if j.name == "hive"]
    assert "without a link" in judged.reason


def test_part_of_a_mesh_is_not_judged():
    found = verdicts(machine(mesh(count=5), count=5), load_target("amd-mi300x"))
    assert found["link-count"] is Verdict.INCONCLUSIVE


def test_fewer_lanes_are_a_fault_even_when_idle():
    narrow = Pcie(generation=1, width=8, max_generation=5, max_width=16, device_generation=5)
    first, odd = failures(machine([], pcie={4: narrow}))
    assert (first.name, first.device) == ("pcie-width", "0000:04:00.0")
    assert first.reason == "0000:04:00.0 runs at x8, and slot and GPU can do x16"
    assert odd.reason == "0000:04:00.0: PCIe lanes 8, its peers 16"


def test_fewer_lanes_than_the_target_states_are_a_fault():
    slot = Pcie(generation=5, width=8, max_generation=5, max_width=8, device_generation=5)
    (judged,) = failures(machine([], 1, {0: slot}), load_target("nvidia-h100-sxm"))
    assert judged.reason == "0000:00:00.0 runs at x8, and the target has x16"


def test_an_idle_gpu_may_lower_its_generation():
    idle = Pcie(generation=1, width=16, max_generation=5, max_width=16, device_generation=5)
    judged = next(
        j for j in judge_links(machine([], pcie={0: idle})) if j.name == "pcie-generation"
    )
    assert judged.verdict is Verdict.PASS
    assert "1 run lower now, as idle GPUs do to save power" in judged.reason


def test_a_slot_of_an_older_generation_is_reported_and_may_be_meant():
    slot = Pcie(generation=3, width=16, max_generation=3, max_width=16, device_generation=5)
    judged = next(
        j for j in judge_links(machine([], 2, pcie={1: slot})) if j.name == "pcie-generation"
    )
    reason = "slot and 0000:01:00.0 reach generation 3, and the GPU can do 5"
    assert judged.verdict is Verdict.UNVERIFIED
    assert judged.reason == f"{reason}: the slot may be older by design"


def test_a_narrow_bridge_above_a_gpu_is_named():
    bridge = End(Node.SWITCH, "0000:40:00.0", "0000:40:00.0")
    root = End(Node.CPU, "node 0", index=0)
    path = [
        links((gpu(0), bridge), "pcie", width=16, extra={"max_width": "16"}),
        links((bridge, root), "pcie", width=4, extra={"max_width": "16"}),
    ]
    (judged,) = failures(machine(path, 1))
    assert (judged.device, judged.name) == ("0000:40:00.0", "pcie-width")
    assert judged.reason == "the bridge 0000:40:00.0 above 0000:00:00.0 runs at x4 of x16"


@pytest.mark.parametrize("target", [None, "nvidia-h100-sxm", "amd-mi300x"])
def test_what_nobody_states_is_inconclusive(target: str | None):
    nothing = machine([], pcie=dict.fromkeys(range(8), Pcie()))
    found = verdicts(nothing, load_target(target) if target is not None else None)
    assert set(found.values()) == {Verdict.INCONCLUSIVE}


def test_a_machine_without_gpus_is_not_judged():
    assert list(judge_links(Topology({}), load_target("amd-mi300x"))) == []


def test_a_slow_link_is_named_with_both_ends() -> None:
    fabric = mesh(((2, 5),))
    fast = [replace(link, bandwidth_bytes_s=64e9) for link in fabric]
    slow = links((gpu(2), gpu(5)), "xgmi", count=1, bandwidth_bytes_s=32e9)
    mi300x = load_target("amd-mi300x")
    found = {j.name: j for j in judge_links(machine([*fast, slow]), mi300x)}
    assert found["link-speed"].verdict is Verdict.FAIL
    assert found["link-speed"].device == gpu(2).pci
    assert found["link-speed"].reason == (
        f"the xgmi link between {gpu(2).pci} and {gpu(5).pci} runs at 32 GB/s, "
        "and amd-mi300x has 64"
    )
    well = replace(slow, bandwidth_bytes_s=60e9)
    found = {j.name: j for j in judge_links(machine([*fast, well]), mi300x)}
    assert found["link-speed"].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("bandwidth", "target"),
    [(None, "amd-mi300x"), (32e9, None), (32e9, "nvidia-t4")],
)
def test_a_speed_that_nobody_states_is_not_judged(
    bandwidth: float | None, target: str | None
) -> None:
    fabric = [replace(link, bandwidth_bytes_s=bandwidth) for link in mesh()]
    of = load_target(target) if target is not None else None
    assert "link-speed" not in {j.name for j in judge_links(machine(fabric), of)}


def test_links_that_are_stated_together_are_judged_one_by_one() -> None:
    fabric = End(Node.SWITCH, "fabric")
    several = [
        links((gpu(n), fabric), "nvlink", count=18, up=True, bandwidth_bytes_s=18 * 26.562e9)
        for n in range(8)
    ]
    several[3] = replace(several[3], bandwidth_bytes_s=18 * 13.281e9)
    found = [
        j
        for j in judge_links(machine(several), load_target("nvidia-h200-sxm"))
        if j.name == "link-speed"
    ]
    assert [(j.verdict, "13.281 GB/s" in j.reason) for j in found] == [(Verdict.FAIL, True)]
