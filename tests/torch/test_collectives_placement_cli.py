"""``portagpu collectives placement``: published topologies, no GPU at all, wrong requests."""

from __future__ import annotations

import json
import re
import sys

import pytest

from portagpu.cli import main
from tests.conftest import ROOT
from tests.support.gpu_trees import amd_gpu, nvidia_gpu
from tests.support.host_trees import build
from tests.support.placement_graphs import RCCL

# networkx comes with torch
pytestmark = pytest.mark.torch

FOLDER = ROOT / "tests/vendor_texts/placement"
ROME = FOLDER / "rccl-topo_8p_rome_n4.xml"
H100 = FOLDER / "oci-H100-topology.xml"
P4D = FOLDER / "aws-p4d-24xl-topo.xml"
COMMAND = ["collectives", "placement"]


def answer(capfd, *words, code=0):
    """The JSON document, or the one line of an error."""
    assert main([*COMMAND, *map(str, words), *(["--json", "-"] if code == 0 else [])]) == code
    out, err = capfd.readouterr()
    if code == 0:
        return json.loads(out)
    assert out == ""
    (line,) = err.strip().splitlines()
    return line


def test_the_text_says_where_ranks_belong(capfd):
    assert main([*COMMAND, "--replay", str(ROME), "--tp", "4"]) == 0
    lines = capfd.readouterr().out.splitlines()
    rows = [line.split() for line in lines]
    assert ["GPU7", "0000:c6:00.0", "3", "5", "80-95", "mlx5_0", "(SYS)"] in rows
    assert any(line.startswith("domain: GPU 0,2-3,7, joined, some through") for line in lines)
    assert "ranks, tensor parallel: 0 1 2 3 | 4 5 6 7" in lines
    assert "local rank:GPU: 0:0 1:3 2:2 3:7 4:1 5:4 6:5 7:6" in lines
    visible = "in this order: HIP_VISIBLE_DEVICES=0,3,2,7,1,4,5,6 (numbers in the order of PCI"
    assert any(line.startswith(visible) for line in lines)
    assert "start: torchrun --nproc-per-node=8 train.py" in lines
    first = "bind local rank 0: numactl --cpunodebind=3 --membind=3, or taskset -c 48-63"
    assert first in lines
    mesh = "DeviceMesh(device_type, [[[0, 3, 2, 7], [1, 4, 5, 6]]]"
    assert any(mesh in line for line in lines)


def test_a_recorded_ring_is_as_good_as_those_of_the_library(capfd):
    """RCCL's rings for this machine (rome_model_22) name GPUs in an order of their own."""
    found = answer(capfd, "--replay", ROME)
    level = {frozenset((edge["a"], edge["b"])): edge["level"] for edge in found["edges"]}
    # gpuIds of rome_model_22, as bus numbers
    buses = [0x03, 0x43, 0x26, 0xC3, 0x83, 0x23, 0xC6, 0xA3]
    position = {int(place["key"].split(":")[1], 16): at for at, place in enumerate(found["places"])}

    def ways(order):
        return sorted(level[frozenset(p)] for p in zip(order, [*order[1:], order[0]], strict=True))

    ours = ways(found["ring"]["order"])
    for words in RCCL["model_22"]["rings"]:
        theirs = ways([position[buses[int(word)]] for word in words.split()])
        assert ours > theirs, words
    assert found["ring"]["slowest"]["path"] == "NODE"
    assert found["ring"]["identity_slowest"]["path"] == "SYS"


def test_the_bandwidth_of_counted_links_is_a_fact_of_the_product(capfd):
    found = answer(capfd, "--replay", H100, "--tp", 8)
    slowest = found["ring"]["slowest"]
    assert slowest["path"] == "NV18"
    # 18 NVLinks of 25 GB/s in one direction
    assert (slowest["bandwidth_bytes_s"], slowest["source"]) == (
        450e9,
        "nvidia-h100-sxm: 18 x 25 GB/s",
    )
    first = found["places"][0]
    assert (first["cpus"], first["nics"]) == ("0-55,112-167", [{"name": "mlx5_0", "path": "PIX"}])
    assert found["groups"]["findings"] == []
    # the order of the PCI addresses needs no variable
    assert (found["order"], found["environment"]) == (list(range(8)), None)


def test_the_rings_of_logs_are_ours_the_other_way_round(capfd):
    """NCCL 2.27.7 on 8 B200 and RCCL 2.22.3 on 8 MI300X log "Channel 00 : 0 7 6 5 4 3 2 1" within
    a node (mlcommons/training_results_v5.1, the logs of Dell and MangoBoost)."""
    ours = answer(capfd, "--replay", H100)["ring"]["order"]
    assert [0, *reversed(ours[1:])] == [0, 7, 6, 5, 4, 3, 2, 1]


def test_links_that_no_source_states_are_assumed_where_asked_alone(capfd):
    plain = answer(capfd, "--replay", P4D, "--tp", 8)
    assert plain["ring"]["slowest"]["path"] == "SYS"
    assert plain["places"][4]["cpus"] == "24-47,72-95"
    (remark,) = plain["remarks"]
    assert "with --target nvidia-a100-sxm-40gb they are assumed" in remark
    (finding,) = plain["groups"]["findings"]
    assert "tp 8 is larger than the fastest domain of 2 (PIX)" in finding
    reported = answer(capfd, "--replay", P4D, "--tp", 8, "--target", "nvidia-a100-sxm-40gb")
    assert reported["ring"]["slowest"]["path"] == "NV12"
    assert reported["ring"]["slowest"]["bandwidth_bytes_s"] == 300e9
    assert "assumed" in reported["ring"]["slowest"]["source"]
    assert reported["groups"]["findings"] == []
    assert "are assumed" in reported["remarks"][0]
    same = answer(capfd, "--replay", H100, "--target", "nvidia-a100-sxm-40gb")
    assert "nothing of nvidia-a100-sxm-40gb is assumed" in same["remarks"][0]


def test_a_matrix_of_nvidia_smi_is_read(capfd):
    """The tool's own words: NIC0 and NIC1 are PIX to GPU0, and CPUs 56-111 near GPU4."""
    found = answer(capfd, "--replay", FOLDER / "topo-m-8xH200-8nic-gke.txt", "--tp", 2)
    assert [each["path"] for each in found["places"][0]["nics"]] == ["PIX", "PIX"]
    assert found["places"][4]["cpus"] == "56-111,168-223"
    assert {each["path"] for each in found["edges"]} == {"NV18"}
    assert found["edges"][0]["bandwidth_bytes_s"] is None


def test_a_target_gives_counted_links_their_bandwidth(capfd):
    matrix = FOLDER / "topo-m-8xH200-8nic-gke.txt"
    found = answer(capfd, "--replay", matrix, "--target", "nvidia-h200-sxm")
    assert found["ring"]["slowest"]["bandwidth_bytes_s"] == 450e9
    assert found["ring"]["slowest"]["source"] == "nvidia-h200-sxm: 18 x 25 GB/s"
    assert found["remarks"] == []


def test_a_machine_without_gpus_has_numa_nodes(capfd, tmp_path):
    nodes = "sys/devices/system/node"
    build(
        tmp_path / "tree",
        {
            f"{nodes}/node{n}/{name}": text
            for n, cpus, far in ((0, "0-3", "10 21"), (1, "4-7", "21 10"))
            for name, text in (("cpulist", cpus), ("distance", far))
        }
        | {"sys/devices/system/cpu/online": "0-7", "proc/cpuinfo": "processor\t: 0\n"},
    )
    found = answer(capfd, "--replay", tmp_path, "--tp", 2)
    assert [each["cpus"] for each in found["places"]] == ["0-3", "4-7"]
    assert found["edges"][0]["path"] == "distance 21"
    assert found["remarks"] == ["there is no GPU: the places are NUMA nodes"]
    assert found["environment"] is None


def test_one_gpu_without_links_is_placed(capfd, tmp_path):
    files, links = nvidia_gpu(0)
    build(tmp_path / "tree", files, links)
    assert main([*COMMAND, "--replay", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "one place: there is no ring and no tree" in out
    assert "--nproc-per-node=1" in out


def test_partitions_are_places_and_slices_are_not(capfd, tmp_path):
    files, links = {}, {}
    for number in range(2):
        more, pointers = amd_gpu(number, parts=8)
        files |= more
        links |= pointers
    build(tmp_path / "amd" / "tree", files, links)
    found = answer(capfd, "--replay", tmp_path / "amd")
    assert any("divided into parts" in remark for remark in found["remarks"])
    assert found["separate_rings"] == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--tp", 3), "tp 3 x pp 1 = 3 does not divide 8 ranks (1 machine of 8)"),
        (("--tp", 4, "--dp", 4), "tp 4 x pp 1 x dp 4 = 16, not 8 ranks"),
        (("--tp", 0), "0 is not in the range x>=1"),
        (("--target", "nvidia-h100-sxn"), "did you mean 'nvidia-h100-sxm'"),
    ],
)
def test_wrong_requests_are_one_line(capfd, words, problem):
    assert problem in answer(capfd, "--replay", H100, *words, code=2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "its format is not known"),
        ("nothing that any reader knows\n", "its format is not known"),
        ("<system version='1'></system>", "no PCI device in it"),
        ('<!DOCTYPE system [<!ENTITY a "aa">]><system>&a;</system>', ""),
        ('<!DOCTYPE s SYSTEM "file:///etc/passwd"><system><cpu numaid="0"/></system>', ""),
        ("<system>" * 200, ""),
    ],
)
def test_a_wrong_recording_is_one_line(capfd, tmp_path, text, problem):
    (tmp_path / "topo.xml").write_text(text, encoding="utf-8")
    assert problem in answer(capfd, "--replay", tmp_path / "topo.xml", code=2)


def test_a_recording_that_is_not_there_is_one_line(capfd, tmp_path):
    assert "nowhere" in answer(capfd, "--replay", tmp_path / "nowhere", code=2)


def test_a_topology_that_breaks_off_is_one_line_or_says_so(capfd, tmp_path):
    whole = H100.read_text("utf-8")
    file = tmp_path / "topo.xml"
    outcomes = set()
    for at in range(0, len(whole) - 20, 487):
        file.write_text(whole[:at], encoding="utf-8")
        code = main([*COMMAND, "--replay", str(file), "--json", "-"])
        out, err = capfd.readouterr()
        outcomes.add(code)
        if code == 0:
            assert json.loads(out)["remarks"][0].startswith("a source breaks off"), at
        else:
            assert (code, len(err.strip().splitlines())) == (2, 1), at
            assert json.loads(out)["schema"] == "portagpu.error/1", at
    assert outcomes == {0, 2}


def test_without_networkx_one_line_says_what_to_install(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert main([*COMMAND, "--replay", str(H100)]) != 0
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert "placement needs networkx, which comes with torch" in line


def test_words_of_a_recording_reach_the_terminal_printable(capfd, tmp_path):
    text = H100.read_text("utf-8").replace('name="mlx5_0"', 'name="&#x9b;31m\u202emlx"')
    (tmp_path / "topo.xml").write_text(text, encoding="utf-8")
    assert main([*COMMAND, "--replay", str(tmp_path / "topo.xml")]) in (0, 2)
    out = capfd.readouterr().out
    assert "31m" in out
    assert not re.search("[\x80-\x9f\u202e]", out)


def xml(count, links):
    """A topology file of ``count`` GPUs, with the links of each: (other GPU, attributes)."""
    address = "0000:{:02x}:00.0".format
    devices = "".join(
        f'<pci busid="{address(at)}" class="0x030200" vendor="0x10de" link_speed="16 GT/s" '
        f'link_width="16"><gpu dev="{at}" sm="80">'
        + "".join(
            f'<xgmi target="{address(to)}" tclass="0x030200" {more}/>' for to, more in links(at)
        )
        + "</gpu></pci>\n"
        for at in range(count)
    )
    return f'<system version="1">\n<cpu numaid="0">\n{devices}</cpu></system>\n'


def test_a_file_that_claims_many_links_has_no_more_rings_than_channels(capfd, tmp_path):
    path = tmp_path / "topo.xml"
    path.write_text(
        xml(5, lambda at: [(to, 'count="1000"') for to in range(5) if to != at]), "utf-8"
    )
    found = answer(capfd, "--replay", path)
    assert len(found["separate_rings"]) == 64


def test_a_file_with_another_speed_for_every_pair_is_answered(capfd, tmp_path):
    path = tmp_path / "topo.xml"
    path.write_text(
        xml(
            40,
            lambda at: [
                (to, f'count="1" bw="{100 + 40 * min(at, to) + max(at, to)}"')
                for to in range(40)
                if to != at
            ],
        ),
        "utf-8",
    )
    found = answer(capfd, "--replay", path)
    assert sorted(found["ring"]["order"]) == list(range(40))
    assert len({each["bandwidth_bytes_s"] for each in found["edges"]}) > 700
    # neighbouring speeds share a level, in their order
    by_speed = sorted((each["bandwidth_bytes_s"], each["level"]) for each in found["edges"])
    levels = [level for _, level in by_speed]
    assert levels == sorted(levels)
    assert max(levels) == 63


def test_more_gpus_than_a_machine_has_are_refused(capfd, tmp_path):
    path = tmp_path / "topo.xml"
    path.write_text(xml(256, lambda _: []).replace("</cpu>", xml_more), "utf-8")
    line = answer(capfd, "--replay", path, code=2)
    assert "there are 257 GPUs: at most 256 of one machine are placed" in line


xml_more = (
    '<pci busid="0001:00:00.0" class="0x030200" vendor="0x10de" link_speed="16 GT/s" '
    'link_width="16"><gpu dev="256" sm="80"/></pci></cpu>'
)


def test_what_no_link_has_is_left_out_with_a_note(capfd, tmp_path):
    path = tmp_path / "topo.xml"

    def found(more):
        path.write_text(xml(2, lambda at: [(1 - at, more)]), "utf-8")
        return answer(capfd, "--replay", path)

    for count in ("-4", "9" * 30, "many"):
        document = found(f'count="{count}"')
        assert document["edges"][0]["path"] != "XGMI"
        assert any(
            f"0000:00:00.0 has {count!r} links of xgmi: they are left out" in each
            for each in document["remarks"]
        )
    for rate in ("-5", "0"):
        (edge,) = found(f'count="1" bw="{rate}"')["edges"]
        assert edge["path"] == "XGMI"
        assert edge["bandwidth_bytes_s"] is None
    path.write_text(xml(2, lambda _: []).replace('width="16"', 'width="-16"'), "utf-8")
    (edge,) = answer(capfd, "--replay", path)["edges"]
    assert edge["bandwidth_bytes_s"] is None


def test_gpus_of_an_unknown_product_without_links_have_a_note(capfd, tmp_path):
    path = tmp_path / "topo.xml"
    path.write_text(
        xml(8, lambda _: []).replace(' vendor="0x10de"', "").replace(' sm="80"', ""), "utf-8"
    )
    found = answer(capfd, "--replay", path)
    assert [each for each in found["remarks"] if "if they have links, --target assumes" in each]
    given = answer(capfd, "--replay", path, "--target", "nvidia-h100-sxm")
    assert {each["path"] for each in given["edges"]} == {"NV18"}
    assert not [each for each in given["remarks"] if "if they have links" in each]
