"""One graph from many sources: who is joined to whom, by what, and who contradicts whom."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from portagpu.facts.readings.model import End, Findings, Link, Node, Pcie, Reading
from portagpu.machine.inventory.routes import (
    Route,
    domains,
    hives,
    nearest_nics,
    routes,
    topology_document,
)
from portagpu.machine.inventory.sources import Live
from portagpu.machine.inventory.topology import Topology, build_topology
from tests.support.host_trees import PCI
from tests.support.host_trees import build as write_tree

if TYPE_CHECKING:
    from pathlib import Path


def gpu(number: int) -> End:
    return End(Node.GPU, f"GPU{number}", f"0000:{number:02x}:00.0", number)


def switch(name: str) -> End:
    return End(Node.SWITCH, name)


def bridge(number: int) -> End:
    address = f"ffff:{number:02x}:00.0"
    return End(Node.SWITCH, address, address)


def numa(number: int) -> End:
    return End(Node.CPU, f"node {number}", index=number)


def link(a: End, b: End, kind: str, source: str = "one", **values: object) -> Link:
    return Link(source=source, a=a, b=b, kind=kind, **values)  # type: ignore[arg-type]


def reading(number: int, source: str = "one", **values: object) -> Reading:
    end = gpu(number)
    values = {"pci": end.pci, "index": number} | values
    return Reading(source=source, vendor="amd", **values)  # type: ignore[arg-type]


def topology(*links: Link, readings: tuple[Reading, ...] = ()) -> Topology:
    return build_topology([Findings(kind="one", readings=readings, links=links)])


def route(found: Topology, a: int = 0, b: int = 1) -> Route:
    return routes(found)[f"0000:{a:02x}:00.0", f"0000:{b:02x}:00.0"]


def test_links_through_switches_add_up():
    found = topology(
        *(link(gpu(n), switch(f"sw{s}"), "nvlink", count=c) for n in (0, 1)
          for s, c in enumerate((5, 5, 4, 4)))
    )  # fmt: skip
    assert route(found) == Route("nvlink", "NV18", 18, 4)


def test_the_weaker_side_of_a_switch_counts():
    found = topology(
        link(gpu(0), switch("sw"), "nvlink", count=6, bandwidth_bytes_s=150e9),
        link(gpu(1), switch("sw"), "nvlink", count=4, bandwidth_bytes_s=100e9),
    )
    assert route(found) == Route("nvlink", "NV4", 4, 1, 100e9)


def test_links_between_switches_join_two_boards():
    found = topology(
        link(gpu(0), switch("left"), "nvlink", count=6),
        link(gpu(1), switch("right"), "nvlink", count=6),
        link(switch("left"), switch("right"), "nvlink", count=48),
    )
    assert route(found) == Route("nvlink", "NVLINK", None, 2)
    assert domains(found) == ((gpu(0).pci, gpu(1).pci),)


def test_parallel_links_that_are_listed_one_by_one_are_counted():
    found = topology(
        link(gpu(0), gpu(1), "nvlink", up=True),
        link(gpu(0), gpu(1), "nvlink", up=True),
        link(gpu(0), gpu(1), "nvlink", up=False),
    )
    (link_group,) = found.link_groups
    assert (link_group.count, link_group.down) == (2, 1)
    assert route(found).path == "NV2"


def test_links_that_are_all_down_join_nothing():
    found = topology(
        link(gpu(0), gpu(1), "xgmi", up=False),
        link(gpu(0), bridge(0), "pcie", width=16, speed_gbit_s=16.0),
        link(gpu(1), bridge(0), "pcie", width=8, speed_gbit_s=16.0),
    )
    assert domains(found) == ()
    # x8 of 16 GT/s with 128b/130b
    assert route(found) == Route("pcie", "PIX", None, 0, pytest.approx(15.754e9, rel=1e-4))


@pytest.mark.parametrize(
    ("links", "path"),
    [
        ([(gpu(0), bridge(0)), (gpu(1), bridge(0))], "PIX"),
        ([(gpu(0), bridge(0)), (gpu(1), bridge(1)), (bridge(0), bridge(2)), (bridge(1), bridge(2))],
         "PIX"),
        ([(gpu(0), bridge(0)), (bridge(0), bridge(1)), (bridge(1), bridge(2)),
          (bridge(2), bridge(3)), (gpu(1), bridge(3))], "PXB"),
        ([(gpu(0), switch("root complex pci0000:00")), (gpu(1), switch("root complex pci0000:00"))],
         "PHB"),
        ([(gpu(0), numa(0)), (gpu(1), numa(0))], "NODE"),
        ([(gpu(0), numa(0)), (gpu(1), numa(1))], "SYS"),
    ],
)  # fmt: skip
def test_ways_over_pci_express_have_the_tools_words(links: list[tuple[End, End]], path: str):
    found = topology(*(link(a, b, "pcie") for a, b in links))
    assert route(found).path == path


def test_the_tools_own_word_for_a_way_counts():
    found = topology(
        link(gpu(0), gpu(1), "pcie", path="PHB", peer_access=True),
        link(gpu(0), bridge(0), "pcie"),
        link(gpu(1), bridge(0), "pcie"),
    )
    assert (route(found).path, route(found).peer_access) == ("PHB", True)


def test_unknown_ways_are_unknown():
    found = topology(readings=(reading(0), reading(1)))
    assert route(found) == Route()


def test_domains_go_through_other_gpus():
    pairs = [(0, 1), (1, 2), (3, 4)]
    found = topology(*(link(gpu(a), gpu(b), "xgmi") for a, b in pairs), readings=(reading(5),))
    assert domains(found) == (
        (gpu(0).pci, gpu(1).pci, gpu(2).pci),
        (gpu(3).pci, gpu(4).pci),
        (gpu(5).pci,),
    )


def test_hives_are_what_readings_state():
    found = topology(readings=tuple(reading(n, hive="ab"[n // 2]) for n in range(4)))
    assert hives(found) == {"a": (gpu(0).pci, gpu(1).pci), "b": (gpu(2).pci, gpu(3).pci)}


def test_the_nearest_nic_is_below_the_same_switch():
    nics = [End(Node.NIC, f"mlx5_{n}", f"0002:{n:02x}:00.0") for n in range(3)]
    found = topology(
        link(gpu(0), bridge(0), "pcie"),
        link(nics[0], bridge(0), "pcie"),
        link(bridge(0), numa(0), "pcie"),
        link(gpu(1), numa(1), "pcie"),
        link(nics[1], numa(1), "pcie"),
        link(nics[2], numa(1), "pcie"),
    )
    near = {key: [nic.name for nic in found] for key, found in nearest_nics(found).items()}
    assert near == {gpu(0).pci: ["mlx5_0"], gpu(1).pci: ["mlx5_1", "mlx5_2"]}
    assert [device.numa_node for device in found.gpus] == [0, 1]


def test_sources_are_joined_by_address_uuid_and_index():
    found = build_topology(
        [
            Findings(kind="a", readings=(reading(0, "a", uuid="GPU-x"),)),
            Findings(kind="b", readings=(Reading(source="b", vendor="amd", uuid="GPU-x"),)),
            Findings(
                kind="c",
                links=(
                    link(End(Node.GPU, "GPU0", None, 0), switch("fabric"), "nvlink", "c", count=4),
                ),
            ),
        ]
    )
    (only,) = found.gpus
    assert [each.source for each in only.readings] == ["a", "b"]
    assert {found.link_groups[0].a, found.link_groups[0].b} == {only.key, "fabric"}


def test_an_index_that_sources_count_differently_joins_nothing():
    found = build_topology(
        [
            Findings(kind="a", readings=(reading(0, "a"), reading(1, "a"))),
            Findings(kind="b", readings=(reading(0, "b", index=1), reading(1, "b", index=0))),
            Findings(
                kind="c",
                links=(link(End(Node.GPU, "GPU0", None, 0), numa(0), "pcie", "c"),),
            ),
        ]
    )
    assert "GPU0 of c is 0000:00:00.0 or 0000:01:00.0" in found.problems[0]
    assert len(found.gpus) == 3


def test_a_reading_of_nobody_in_particular_hides_none_after_it():
    nobody = reading(0, pci=None, index=None)
    found = topology(readings=(nobody, reading(1), nobody, reading(2)))
    assert [each.key for each in found.gpus] == [gpu(1).pci, gpu(2).pci]


def test_contradictions_are_stated_and_the_first_counts():
    found = build_topology(
        [
            Findings(
                kind="a",
                readings=(reading(0, "a", numa_node=0, pcie=Pcie(width=16)),),
                links=(link(gpu(0), gpu(1), "nvlink", "a", count=18, peer_access=True),),
            ),
            Findings(
                kind="b",
                readings=(reading(0, "b", numa_node=1, pcie=Pcie(width=8)),),
                links=(link(gpu(1), gpu(0), "nvlink", "b", count=12, peer_access=False),),
            ),
        ]
    )
    assert found.link_groups[0].count == 18
    assert found.link_groups[0].peer_access is None
    text = "\n".join(found.problems)
    assert "18 by a, 12 by b" in text
    assert "NUMA node of 0000:00:00.0: 0 by a, 1 by b" in text
    assert "PCIe width of 0000:00:00.0: 16 by a, 8 by b" in text
    assert "peer access" in text


def test_the_tree_of_one_source_is_kept():
    found = build_topology(
        [
            Findings(kind="short", links=(link(gpu(0), numa(0), "pcie", "short"),)),
            Findings(
                kind="whole",
                links=(
                    link(gpu(0), bridge(0), "pcie", "whole"),
                    link(bridge(0), numa(0), "pcie", "whole"),
                ),
            ),
        ]
    )
    assert found.parents == {gpu(0).pci: bridge(0).pci, bridge(0).pci: "node 0"}


def test_loops_and_links_to_oneself_end():
    found = topology(
        link(gpu(0), bridge(0), "pcie"),
        link(bridge(0), bridge(1), "pcie"),
        link(bridge(1), bridge(0), "pcie"),
        link(gpu(1), gpu(1), "xgmi"),
    )
    assert routes(found)
    assert "to itself" in found.problems[0]


def pci_files(address: str, code: str, vendor: str, **values: str) -> dict[str, str]:
    values = {"class": code, "vendor": vendor, "device": "0x74a1"} | values
    return {f"sys/devices/pci0000:00/{address}/{name}": text for name, text in values.items()}


@pytest.fixture(params=["links", "copies"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A GPU and a NIC below one bridge, as the kernel links them or as a recording copies them."""
    up = {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": "8"}
    able = {"max_link_speed": "16.0 GT/s PCIe", "max_link_width": "16"}
    bridge_files = pci_files(
        "0000:00:01.0", "0x060400", "0x1022", numa_node="1", secondary_bus_number="1", **up, **able
    )
    below = {
        "0000:01:00.0": ("0x120000", "0x1002", "2.5 GT/s PCIe", "32.0 GT/s PCIe"),
        "0000:01:00.1": ("0x020700", "0x15b3", "16.0 GT/s PCIe", "16.0 GT/s PCIe"),
        "0000:01:00.2": ("0x010802", "0x144d", "16.0 GT/s PCIe", "16.0 GT/s PCIe"),
    }
    files = dict(bridge_files)
    links = {f"{PCI}/0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0"}
    for address, (code, vendor, now, most) in below.items():
        path = f"0000:00:01.0/{address}"
        files |= pci_files(
            path, code, vendor, numa_node="1", current_link_speed=now, current_link_width="8",
            max_link_speed=most, max_link_width="16",
        )  # fmt: skip
        links[f"{PCI}/{address}"] = f"../../../devices/pci0000:00/{path}"
    if request.param == "links":
        return write_tree(tmp_path, files, links)
    copied = {}
    for path, text in files.items():
        address, name = path.split("/")[-2:]
        copied[f"{PCI}/{address}/{name}"] = text
    return write_tree(tmp_path, copied)


def test_the_kernels_tree_is_read(machine: Path):
    found = Live(machine).topology()
    (only,) = found.gpus
    assert only.numa_node == 1
    pcie = only.readings[0].pcie
    assert (pcie.generation, pcie.width, pcie.max_generation, pcie.max_width) == (1, 8, 4, 16)
    assert pcie.device_generation == 5
    assert found.parents["0000:01:00.0"] == "0000:00:01.0"
    assert [nic.key for nic in nearest_nics(found)[only.key]] == ["0000:01:00.1"]
    assert "0000:01:00.2" not in found.devices
    assert found.problems == ()


def test_a_machine_without_pci_has_no_devices(tmp_path: Path):
    assert Live(tmp_path).topology() == Topology({})


def large(gpus: int) -> Topology:
    links = []
    for n in range(gpus):
        end = End(Node.GPU, f"GPU{n}", f"{n >> 5:04x}:{n & 31:02x}:00.0", n)
        links += [
            link(end, bridge(n // 4 % 250), "pcie", width=16, speed_gbit_s=32.0),
            *(link(end, switch(f"{n // 8}-{s}"), "nvlink", count=3) for s in range(6)),
        ]
    return topology(*links)


def test_the_document_has_every_pair():
    found = large(64)
    document = json.loads(json.dumps(topology_document(found)))
    matrix, ways = document["matrix"], document["ways"]
    assert [len(row) for row in matrix] == [64] * 64
    assert all(matrix[n][n] is None for n in range(64))
    assert ways[matrix[0][7]]["path"] == ways[matrix[7][0]]["path"] == "NV18"
    assert ways[matrix[0][8]]["kind"] is None  # nothing says what the bridges are plugged into
    assert [len(group) for group in document["domains"]] == [8] * 8


def test_five_hundred_gpus_are_compared():
    found = large(500)
    between = routes(found)
    assert len(between) == 500 * 499 // 2
    assert sum(each.path == "NV18" for each in between.values()) == 62 * 28 + 6


def show(found: Topology, width: int) -> str:
    from rich.console import Console

    from portagpu.cli._info_view import show_topology

    out = StringIO()
    show_topology(Console(file=out, width=width, highlight=False), found)
    return out.getvalue()


def test_eight_gpus_are_a_matrix():
    text = show(large(8), 100)
    assert "GPU7  NV18  NV18  NV18  NV18  NV18  NV18  NV18  X" in text
    assert "NV#: # NVLinks" in text
    assert "Fastest domain: GPU 0-7" in text


def test_sixty_four_gpus_are_ranges_that_fit_the_terminal():
    text = show(large(64), 100)
    assert "GPU9" in text
    assert "NV18: 8,10-15" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_names_do_not_reach_the_terminal_raw():
    evil = topology(readings=(reading(0, name="\x1b[31mred [bold]x[/bold]"),))
    text = show(evil, 100)
    assert "\x1b" not in text
    assert "[bold]" in text


def test_nothing_to_show_says_so():
    assert show(Topology({}), 80) == "No source shows a GPU.\n"


def test_the_verb_shows_the_machine_and_writes_the_document(machine: Path, tmp_path):
    from click.testing import CliRunner

    from portagpu.cli.info import info

    out = tmp_path / "topology.json"
    result = CliRunner().invoke(info, ["--replay", str(machine), "--topology", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "GPU0  0000:01:00.0  1     0000:01:00.1" in result.output
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["schema"] == "portagpu.topology/1"
    assert document["gpus"][0]["nearest_nics"] == ["0000:01:00.1"]
