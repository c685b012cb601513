"""The vendors' cost models against numbers that the libraries printed, and worked by hand."""

from __future__ import annotations

import sys

import pytest

from portagpu.base.errors import Unsupported
from portagpu.devices.collectives.choice import Graph, Hardware, Question, choose
from portagpu.devices.discovery import cost_model_for
from portagpu.facts.targets import load_target
from portagpu.facts.vendors import tables
from portagpu_cuda.cost_model import MODEL as NCCL
from portagpu_rocm.cost_model import MODEL as RCCL
from portagpu_torch_gpu import collective_costs

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def question(target, size_bytes, ranks=8, nodes=1, operation="all_reduce", **fields):
    hardware = Hardware.of_target(load_target(target))
    if nodes > 1:
        fields = {"nic_gbs": 50.0, **fields}
    return Question(
        operation=operation,
        size_bytes=size_bytes,
        ranks=ranks,
        nodes=nodes,
        hardware=hardware,
        **fields,
    )


def times(model, asked):
    """Microseconds by (algorithm, protocol)."""
    found = model.predict(asked).candidates
    return {(each.algorithm, each.protocol): each.time_us for each in found}


# what the library itself printed


@pytest.mark.parametrize(
    ("size_bytes", "way", "printed"),
    [
        (4096, "Tree LL", 25.874907),
        (8192, "Tree LL", 26.549810),
        (65536, "Tree LL", 37.798233),
        (131072, "Tree LL128", 51.603912),
    ],
)
def test_times_are_those_that_a_real_cluster_logged(size_bytes, way, printed):
    # NVIDIA/nccl#1453: 3 nodes of 8 H100, 8 ports of 200 Gb/s; "65536 Bytes -> Algo 0 proto 0 time"
    asked = question("nvidia-h100-sxm", size_bytes, 24, 3, nics=8, nic_gbs=25.0)
    best = choose(asked, NCCL).best
    assert str(best) == way
    # printed as a C float
    assert best.time_us == pytest.approx(printed, rel=2e-7)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("broadcast", {"LL": (9.3, 1.2), "Simple": (22.4, 2.4)}),
        ("all_gather", {"LL": (11.6, 2.4), "Simple": (22.4, 4.8)}),
        ("reduce_scatter", {"LL": (11.6, 2.4), "Simple": (22.4, 4.8)}),
    ],
)
def test_a_slow_network_has_the_row_that_the_library_printed(operation, expected):
    # nccl-eBPF, NCCL 2.29.7: 2 nodes of one RTX 5090, sockets; "latency/bandwidth" of a ring
    ring = {"Ring": Graph(1, 2.4, 2.4)}
    small, large = (
        times(NCCL, question("nvidia-rtx5090", size, 2, 2, operation, graphs=ring))
        for size in (1, 1 << 40)
    )
    for protocol, (latency, bandwidth) in expected.items():
        assert round(small["Ring", protocol], 1) == latency
        moved = (1 << 40) / (large["Ring", protocol] - latency) / 1000
        assert round(moved, 1) == bandwidth


def test_one_node_changes_from_ring_to_nvls_where_a_log_shows_it():
    # stas00/ml-engineering, network/README.md, 8 H200, NCCL 2.27.7: "it reports Algo RING proto LL
    # up to a 1MiB payload and Algo NVLS proto SIMPLE from 2MiB up", from 32 KiB to 16 GiB
    for power in range(15, 35):
        best = choose(question("nvidia-h200-sxm", 1 << power), NCCL).best
        assert str(best) == ("Ring LL" if power <= 20 else "NVLS Simple"), f"2**{power} bytes"


@pytest.mark.parametrize(
    ("target", "graph"),
    [
        # NVIDIA/nccl#1197 and the log of an A100: "Pattern 4 ... nChannels 12, bw 30.0/30.0"
        ("nvidia-h100-sxm", "12 x 30 GB/s"),
        ("nvidia-a100-sxm-80gb", "12 x 20 GB/s"),
    ],
)
def test_the_channels_of_a_node_are_those_that_logs_show(target, graph):
    inputs = {each.name: each for each in NCCL.predict(question(target, MIB)).inputs}
    assert inputs["channels of Ring"].value == graph
    assert inputs["channels of Ring"].estimated


# worked by hand from the source


@pytest.mark.parametrize(
    ("ranks", "nodes", "ring", "tree"),
    [
        # Ring LL, 8 ranks: 6.6 + 14 * 0.6; 16 on 2 nodes: 6.6 + (30 - 2) * 1.0 + 2 * 2.7
        (2, 1, (7.8, 17.8, 15.2), (8.0, 16.5, 16.4)),
        (8, 1, (15.0, 40.6, 56.0), (15.2, 31.5, 64.4)),
        (16, 2, (40.0, 75.2, 131.6), (25.2, 48.5, 92.4)),
        (32, 4, (78.8, 144.4, 282.8), (35.2, 65.5, 120.4)),
        (64, 8, (156.4, 282.8, 585.2), (45.2, 82.5, 148.4)),
        (256, 32, (622.0, 1113.2, 2399.6), (65.2, 116.5, 204.4)),
    ],
)
def test_latencies_of_an_all_reduce_over_nvlink(ranks, nodes, ring, tree):
    found = times(NCCL, question("nvidia-h100-sxm", 1, ranks, nodes))
    for name, expected in (("Ring", ring), ("Tree", tree)):
        of = tuple(round(found[name, each], 1) for each in ("LL", "LL128", "Simple"))
        assert of == expected


def test_bandwidths_of_eight_gpus_below_a_switch():
    # 12 channels of 30; nsteps 14; NVLS: 8 heads of 40, 0.85 * 7 / 8 * 2 = 59.5 of at most 60
    found = times(NCCL, question("nvidia-h100-sxm", GIB))
    assert found["Ring", "Simple"] == pytest.approx(56.0 + GIB / (1000 * 360 * 8 / 14))
    assert found["Ring", "LL"] == pytest.approx(15.0 + GIB / (1000 * 141.0 * 8 / 14))
    assert found["Ring", "LL128"] == pytest.approx(40.6 + GIB / (1000 * 360 * 0.92 * 8 / 14))
    assert found["NVLS", "Simple"] == pytest.approx(25.0 + GIB / (1000 * 8 * 59.5 * 8 / 14))
    # from 2**29 bytes on a tree has no correction
    assert found["Tree", "Simple"] == pytest.approx(64.4 + GIB / (1000 * 360 * 0.92 * 0.5))
    # 64 MiB is 2**20 times 64 B: 0.8
    half = times(NCCL, question("nvidia-h100-sxm", 64 * MIB))["Tree", "Simple"]
    assert half == pytest.approx(64.4 + 64 * MIB / (1000 * 360 * 0.92 * 0.5 * 0.8))


@pytest.mark.parametrize(
    ("ranks", "channels", "latency"),
    [
        # 8 searched channels of 48 are 16, which are not doubled again
        (16, 16, 131.6),
        # 4 are 8, and faster than 45: 16. 8.4 + (14 - 2) * 3.4 + 2 * 14, with 3 us a step
        (8, 16, 77.2),
    ],
)
def test_the_plateau_of_a_ring_over_nodes_begins_at_64_bytes_a_channel_and_rank(
    ranks, channels, latency
):
    begins = 64 * channels * ranks
    below, at = (
        times(NCCL, question("nvidia-h100-sxm", size, ranks, 2))["Ring", "Simple"]
        for size in (begins - 1, begins)
    )
    assert at - below == pytest.approx(0.4 * latency, abs=0.01)


def test_protocols_of_trees():
    # one node: 360 * 0.92 = 331.2 of 12 * 38.7; LL a part of 3.8, LL128 7 of 9, both by two
    one = times(NCCL, question("nvidia-h100-sxm", GIB))
    assert one["Tree", "LL"] == pytest.approx(15.2 + GIB / (1000 * 331.2 / 3.8 / 2))
    assert one["Tree", "LL128"] == pytest.approx(31.5 + GIB / (1000 * 331.2 * 7 / 9 / 2))
    # two nodes: 8 channels of at most 41.4 and, for LL128, of 36.7; a plain tree has 0.85
    two = times(NCCL, question("nvidia-h100-sxm", GIB, 16, 2))
    assert two["Tree", "Simple"] == pytest.approx(92.4 + GIB / (1000 * 8 * 41.4 * 0.85 / 2))
    assert two["Tree", "LL128"] == pytest.approx(48.5 + GIB / (1000 * 8 * 36.7 * 0.85 / 2))
    # 4 ports for 8 GPUs leave a balanced tree, and 96 GB/s: 96 * 0.92 * 120 / 128
    shared = times(NCCL, question("nvidia-h100-sxm", GIB, 32, 4, nics=4, nic_gbs=25.0))
    assert shared["Tree", "LL128"] == pytest.approx(65.5 + GIB / (1000 * 96 * 0.8625 / 2))


def test_corrections_of_trees_end_at_256_mib():
    # 2**29 bytes are 2**23 times 64 B: the tree uses 23 factors, a tree of switches all 24
    half = 512 * MIB
    tree = times(NCCL, question("nvidia-h100-sxm", half))["Tree", "Simple"]
    assert tree == pytest.approx(64.4 + half / (1000 * 331.2 / 2))
    # 4 nodes of B200: 8 channels of 48 between them; 25 + 2 * 2 * 20.9
    for cpu, factor in (("intel", 0.9), ("other", 1.0)):
        asked = question("nvidia-b200-sxm", half, 32, 4, options={"cpu": cpu})
        expected = 108.6 + half / (1000 * 8 * 48 * factor * 32 / 62)
        assert times(NCCL, asked)["NVLSTree", "Simple"] == pytest.approx(expected)


def test_switches_that_reduce():
    # all-gather on one node: 8 * 40 * 0.85 * 7 / 8, and 7 / 8 of it
    gather = times(NCCL, question("nvidia-h100-sxm", GIB, operation="all_gather"))
    assert gather["NVLS", "Simple"] == pytest.approx(25 + GIB / (1000 * 238 * 7 / 8))
    # two nodes count the bandwidth between them twice: 24 of 25 GB/s, 24 * 0.85 * 2 * 7 / 8
    two = times(NCCL, question("nvidia-h100-sxm", GIB, 16, 2, nic_gbs=25.0))
    assert two["NVLSTree", "Simple"] == pytest.approx(66.8 + GIB / (1000 * 8 * 35.7 * 16 / 30))
    four = times(NCCL, question("nvidia-h100-sxm", GIB, 32, 4, nic_gbs=25.0))
    assert four["NVLSTree", "Simple"] == pytest.approx(108.6 + GIB / (1000 * 8 * 24 * 32 / 62))
    # six GPUs: each sends 7 times what a channel has, and 7 * 50 fit into 370.8
    six = {each.name: each.value for each in NCCL.predict(question("nvidia-h100-sxm", 8, 6)).inputs}
    assert six["channels of NVLS"] == "6 x 50/60 GB/s"


def test_pat_of_four_single_gpus():
    # 8 + 2 * 14 / 3.5 + 4 * 2.8; 2 channels of 24 GB/s, three quarters of it
    found = times(NCCL, question("nvidia-h100-sxm", GIB, 4, 4, "all_gather"))
    assert found["PAT", "Simple"] == pytest.approx(27.2 + GIB / (1000 * 48 * 0.75))


def test_the_network_s_direct_collectives():
    # two GPUs for each of 4 channels: 2 - (2 - 1) / 2; from Hopper on 0.85; half of the bus
    given = {"CollNetDirect": Graph(4, 20.0, 20.0)}
    on = {"collnet": "on"}
    asked = question("nvidia-h100-sxm", GIB, 16, 2, graphs=given, options=on)
    moved = 1000 * 80 / 1.5 * 0.85 / 2
    assert times(NCCL, asked)["CollNetDirect", "Simple"] == pytest.approx(44.0 + GIB / moved)
    # an all-gather: 8 GPUs of 20, or of 0.9 of 20 between nodes; 2 * (3.7 + 7 * 0.4) + 31
    asked = question("nvidia-h100-sxm", GIB, 8, 1, "all_gather", graphs=given, options=on)
    found = times(NCCL, asked)["CollNetDirect", "Simple"]
    assert found == pytest.approx(44.0 + GIB / (1000 * 8 * 18))


def test_the_host_s_cpu_counts_between_nodes():
    # AMD: 2 us a step, 6 us with Simple. 6.6 + 28 * 2 + 2 * 2.7; 8.4 + 28 * 6 + 2 * 14
    small, large = (
        times(NCCL, question("nvidia-h100-sxm", size, 16, 2, options={"cpu": "amd"}))
        for size in (1, GIB)
    )
    assert round(small["Ring", "LL"], 1) == 68.0
    assert round(small["Ring", "Simple"], 1) == 204.4
    assert large["Ring", "LL"] == pytest.approx(68.0 + GIB / (1000 * 22.5 * 16 / 30))
    intel = times(NCCL, question("nvidia-h100-sxm", GIB, 16, 2))
    assert intel["Ring", "LL"] == pytest.approx(40.0 + GIB / (1000 * 39.0 * 16 / 30))


def test_the_plateau_is_longer_before_ampere():
    ring = {"Ring": Graph(8, 10.0, 10.0)}
    below, at = (
        times(NCCL, question("nvidia-v100-sxm2", size, 16, 2, graphs=ring))["Ring", "Simple"]
        for size in (16383, 16384)
    )
    assert at - below == pytest.approx(0.9 * 131.6, abs=0.01)


@pytest.mark.parametrize(
    ("target", "ranks", "size_bytes", "kernel", "time_us"),
    [
        # queryModel_lsa and ncclSymkPickKernel, transcribed by themselves and run
        ("nvidia-h100-sxm", 8, 8 * KIB, "AllReduce_AGxLLMC_R", 5.732),
        ("nvidia-h100-sxm", 8, 64 * KIB, "AllReduce_RSxLDMC_AGxSTMC", 8.156),
        ("nvidia-h100-sxm", 8, MIB, "AllReduce_RSxLDMC_AGxSTMC", 9.445),
        ("nvidia-h100-sxm", 8, 64 * MIB, "AllReduce_RSxLDMC_AGxSTMC", 153.288),
        ("nvidia-h100-sxm", 2, 256 * KIB, "AllReduce_RSxLD_AGxST", 8.505),
        ("nvidia-a100-sxm-80gb", 4, 64 * KIB, "AllReduce_RSxLD_AGxST", 8.363),
        ("nvidia-a100-sxm-80gb", 4, MIB, "AllReduce_RSxLD_AGxST", 11.686),
        ("nvidia-b200-sxm", 8, MIB, "AllReduce_RSxLDMC_AGxSTMC", 20.33),
    ],
)
def test_kernels_of_symmetric_buffers(target, ranks, size_bytes, kernel, time_us):
    found = NCCL.predict(question(target, size_bytes, ranks)).shots
    assert (found.kernel, round(found.time_us, 3)) == (kernel, time_us)


def test_what_a_library_disables_is_not_a_candidate():
    one_node = {each for each, _ in times(NCCL, question("nvidia-h100-sxm", MIB))}
    assert one_node == {"Ring", "Tree", "NVLS"}
    assert {each for each, _ in times(NCCL, question("nvidia-h100-sxm", MIB, 16, 2))} == {
        "Ring",
        "Tree",
        "NVLSTree",
    }
    # PAT needs one GPU a node; a broadcast is always a ring
    alone = times(NCCL, question("nvidia-h100-sxm", MIB, 4, 4, "all_gather"))
    assert ("PAT", "Simple") in alone
    assert ("PAT", "Simple") not in times(
        NCCL, question("nvidia-h100-sxm", MIB, 16, 2, "all_gather")
    )
    assert {each for each, _ in times(NCCL, question("nvidia-h100-sxm", MIB, 8, 1, "reduce"))} == {
        "Ring"
    }
    # no NVLink: no LL128. No switch that reduces: no NVLS
    assert set(times(NCCL, question("nvidia-l40s", MIB, 4))) == {
        (algorithm, protocol) for algorithm in ("Ring", "Tree") for protocol in ("LL", "Simple")
    }
    assert "NVLS" not in {each for each, _ in times(NCCL, question("nvidia-a100-sxm-80gb", MIB))}
    # from the first architecture with tensor cores on: "case 70" of minCompCap in tuning.cc
    assert ("Ring", "LL128") in times(NCCL, question("nvidia-v100-sxm2", MIB))


def test_the_network_s_collectives_are_asked_for():
    asked = question("nvidia-h100-sxm", GIB, 16, 2, options={"collnet": "on"})
    found = times(NCCL, asked)
    # CollNetChain: 2 * 7 * 2.8 + 30; NVLS between nodes: 25 + 18
    small = times(NCCL, question("nvidia-h100-sxm", 1, 16, 2, options={"collnet": "on"}))
    assert round(small["CollNetChain", "Simple"], 1) == 69.2
    assert round(small["NVLS", "Simple"], 1) == 43.0
    # CollNetDirect: 2 * (3.7 + 7 * 0.4) + 31
    assert round(small["CollNetDirect", "Simple"], 1) == 44.0
    assert found["NVLS", "Simple"] > 0


def test_given_channels_replace_the_estimate():
    asked = question("nvidia-h100-sxm", GIB, graphs={"Ring": Graph(4, 10.0, 10.0)})
    found = NCCL.predict(asked)
    ring = next(each for each in found.inputs if each.name == "channels of Ring")
    assert (ring.value, ring.how, ring.estimated) == ("4 x 10 GB/s", "given", False)
    assert times(NCCL, asked)["Ring", "Simple"] == pytest.approx(56 + GIB / (1000 * 40 * 8 / 14))


def test_one_shot_for_small_buffers_and_two_shot_for_large_ones():
    # one rank's bytes go to all ranks, 9 times as many on the wire: 4.5 us and next to nothing
    small = NCCL.predict(question("nvidia-h100-sxm", 8)).shots
    assert (small.name, round(small.time_us, 1)) == ("one-shot", 4.8)
    large = NCCL.predict(question("nvidia-h100-sxm", 64 * MIB)).shots
    assert (large.name, large.kernel) == ("two-shot", "AllReduce_RSxLDMC_AGxSTMC")
    # at most 480 GB/s (of 2**30) of the bytes that are reduced and of one rank's share
    assert large.time_us > 7.8 + 64 * MIB * 9 / 8 / (480 * GIB / 1e6) - 1
    for other in (
        question("nvidia-h100-sxm", 8, operation="all_gather"),
        question("nvidia-h100-sxm", 8, 16, 2),
        question("nvidia-l40s", 8, 4),
    ):
        assert NCCL.predict(other).shots is None
    assert RCCL.predict(question("amd-mi300x", 8)).shots is None


# the other library


def test_eight_peers_over_xgmi_take_the_model_of_their_topology():
    found = RCCL.predict(question("amd-mi300x", GIB))
    inputs = {each.name: each.value for each in found.inputs}
    assert inputs["tuning model"] == "5"
    assert inputs["links to the other GPUs"] == "7 x 48 GB/s"
    by_way = times(RCCL, question("amd-mi300x", GIB))
    # model 5: ring Simple 17 + 14 * 2.1, ratio 1.00; LL 12 + 14 * 0.8, ratio 0.08
    assert by_way["Ring", "Simple"] == pytest.approx(46.4 + GIB / (1000 * 336 * 8 / 14))
    assert by_way["Ring", "LL"] == pytest.approx(23.2 + GIB / (1000 * 336 * 0.08 * 8 / 14))
    # gfx94 on one node: no tree with Simple; LL128 is for gfx90a
    assert set(by_way) == {("Ring", "Simple"), ("Ring", "LL"), ("Tree", "LL")}
    # 2**24 times 64 B; the last factors are 0.1
    assert by_way["Tree", "LL"] == pytest.approx(12 + 14 * 0.9 + GIB / (1000 * 336 * 0.06 * 0.05))


def test_what_single_architectures_have_alone():
    # gfx94 on one node: LL of a broadcast 1.65 times; a broadcast is one step of 0.8 us
    rooted = times(RCCL, question("amd-mi300x", GIB, operation="broadcast"))
    assert rooted["Ring", "LL"] == pytest.approx(12.8 + GIB / (1000 * 336 * 0.08 * 1.65))
    assert rooted["Ring", "Simple"] == pytest.approx(19.1 + GIB / (1000 * 336))
    # gfx12 has no LL
    assert {protocol for _, protocol in times(RCCL, question("amd-r9700", GIB, 4))} == {"Simple"}


def test_the_last_correction_holds_for_all_that_is_larger():
    # 2**32 bytes are 2**26 times 64 B: the 27th factor of the tree
    factors = RCCL.table["models"]["5"]["correction"]["Tree"]["Simple"]
    assert factors[25] != factors[26]
    for size in (4 * GIB, 64 * GIB):
        found = times(RCCL, question("amd-mi300x", size, 16, 2, nics=8))["Tree", "Simple"]
        # 17 + 2 * (7 * 2.3 + 25); ratio 0.11
        bandwidth = 336 * 0.11 * 0.5 * factors[26]
        assert found == pytest.approx(99.2 + size / 1000 / bandwidth)


def test_two_nodes_count_four_steps_between_them_and_correct_the_ring():
    # model 5, 16 ranks: 17 + (30 - 4) * max(2.1, 2.0 * 3) + 4 * 320; the factor of 4 GiB is 1.0
    by_way = times(RCCL, question("amd-mi300x", 4 * GIB, 16, 2, nics=8))
    table = RCCL.table["models"]["5"]["correction"]["Ring"]["Simple"]
    assert table[26] == 1.0
    bandwidth = 336 * 16 / 30
    assert by_way["Ring", "Simple"] == pytest.approx(
        17 + 26 * 6.0 + 4 * 320 + 4 * GIB / 1000 / bandwidth
    )


@pytest.mark.parametrize(
    ("target", "ranks", "nodes", "nics", "options", "tuning"),
    [
        ("amd-mi300x", 8, 1, None, {}, "5"),
        ("amd-mi300x", 16, 2, 8, {}, "5"),
        ("amd-mi300x", 16, 2, 4, {}, "0"),
        ("amd-mi300x", 4, 1, None, {}, "0"),
        ("amd-mi250x", 16, 1, None, {}, "1"),
        ("amd-mi250x", 32, 2, 8, {}, "4"),
        ("amd-mi210", 8, 1, None, {}, "2"),
        ("amd-mi210", 8, 1, None, {"numa": "4"}, "0"),
        ("amd-mi210", 16, 2, 8, {}, "3"),
        ("amd-mi300x", 8, 1, None, {"tuning": "2"}, "2"),
    ],
)
def test_the_topology_selects_the_tuning_model(target, ranks, nodes, nics, options, tuning):
    asked = question(target, MIB, ranks, nodes, nics=nics, options=options)
    inputs = {each.name: each.value for each in RCCL.predict(asked).inputs}
    assert inputs["tuning model"] == tuning


def test_ll128_is_for_one_topology_alone():
    assert ("Ring", "LL128") in times(RCCL, question("amd-mi250x", MIB, 32, 2, nics=8))
    # its bandwidth is the base bandwidth, whatever the links: ratio 0.41, correction 0.1 at 2**14
    by_way = times(RCCL, question("amd-mi250x", MIB, 32, 2, nics=8))
    assert RCCL.table["models"]["4"]["correction"]["Ring"]["LL128"][14] == 0.8
    moved = MIB / (by_way["Ring", "LL128"] - (12 + 58 * 2.2 + 4 * 87.8)) / 1000
    assert moved == pytest.approx(161.4 * 0.41 * 0.8 * 32 / 62)
    assert ("Ring", "LL128") not in times(RCCL, question("amd-mi300x", MIB))


def test_two_gpus_have_one_link():
    best = choose(question("amd-mi300x", 4 * GIB, 2), RCCL).best
    # stas00/ml-engineering measured 47.7 GB/s; the library takes a link for 48
    assert best.busbw_gbs == pytest.approx(48, rel=0.01)


# both


@pytest.mark.parametrize(("model", "target"), [(NCCL, "nvidia-h100-sxm"), (RCCL, "amd-mi300x")])
@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"operation": "all_to_all"}, Unsupported, "has no all_to_all: it has all_reduce"),
        ({"algorithms": ("Rnig",)}, ValueError, "has no algorithm 'Rnig': it has Tree, Ring"),
        ({"graphs": {"Star": Graph(1, 1, 1)}}, ValueError, "has no algorithm 'Star'"),
        ({"options": {"moon": "on"}}, ValueError, "has no option 'moon': it has c"),
        ({"options": {"cpu": "z80"}}, ValueError, "the option cpu is "),
        ({"ranks": 16, "nodes": 2, "nic_gbs": None}, ValueError, "need the bandwidth of a network"),
    ],
)
def test_a_wrong_question_is_refused_with_what_there_is(model, target, fields, error, said):
    with pytest.raises(error) as raised:
        model.predict(question(target, MIB, **fields))
    assert said in str(raised.value)


@pytest.mark.parametrize(("model", "target"), [(NCCL, "nvidia-h100-sxm"), (RCCL, "amd-mi300x")])
def test_a_target_is_needed(model, target):
    with pytest.raises(ValueError, match="a cost model needs a target"):
        model.predict(Question(operation="all_reduce", size_bytes=8, ranks=8))


def test_more_bytes_never_take_a_ring_less_time():
    for model, target in ((NCCL, "nvidia-h100-sxm"), (RCCL, "amd-mi300x")):
        last = 0.0
        for power in range(36):
            found = times(model, question(target, 1 << power))["Ring", "Simple"]
            assert found >= last
            last = found


@pytest.mark.parametrize(
    ("model", "target"), [(NCCL, "nvidia-h100-sxm"), (RCCL, "amd-mi300x")], ids=["nccl", "rccl"]
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_nothing_that_a_model_calls_calls_it_back(model, target, nodes):
    asked = question(target, 1 << 20, 8 * nodes, nodes)
    of = sys.modules[type(model).__module__].__file__
    calls = set()

    def called(frame, event, _):
        if event == "call":
            calls.add((frame.f_back.f_code.co_filename, frame.f_code.co_filename))

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        model.predict(asked)
    finally:
        sys.setprofile(before)
    assert {caller for caller, found in calls if found == of} == {of, __file__}
    assert collective_costs.__file__ in {found for caller, found in calls if caller == of}
    assert not [each for each in calls if each[1].endswith("/choice.py")]


def test_a_model_without_its_table_says_so(monkeypatch):
    monkeypatch.setattr("portagpu_torch_gpu.collective_costs.tables", lambda name: {})
    model = type(NCCL)("nvidia")
    with pytest.raises(Unsupported, match="the table of constants of nvidia is missing"):
        model.predict(question("nvidia-h100-sxm", 8))
    assert model.known_errors() == ()


def test_constants_say_their_version_and_source():
    for vendor, model in (("nvidia", NCCL), ("amd", RCCL)):
        table = tables("cost_model")[vendor]
        assert model.version == table["version"]
        assert cost_model_for(vendor) is model
        assert table["source"].startswith("https://github.com/")
        assert tables("cost_model_errors")[vendor]["version"] == model.version
    assert cost_model_for("nobody") is None


# what no network carries, and what is not a number


@pytest.mark.parametrize("nic_gbs", [1.25, 400.0])
@pytest.mark.parametrize(
    ("operation", "through_a_node"),
    [("all_reduce", 2 * 1 / 2), ("all_gather", 1 / 2), ("broadcast", 1)],
)
def test_an_answer_that_the_ports_cannot_carry_says_so(nic_gbs, operation, through_a_node):
    asked = question("amd-mi300x", 1 << 30, ranks=16, nodes=2, operation=operation, nic_gbs=nic_gbs)
    found = choose(asked, RCCL)
    carried_us = through_a_node * (1 << 30) / (8 * nic_gbs * 1e3)
    said = [each for each in found.remarks if each.startswith("too fast: 8 x ")]
    assert bool(said) == (found.best.time_us < carried_us)
    assert bool(said) == (nic_gbs == 1.25)
    if said:
        assert f"need {carried_us:,.0f} µs" in said[0]


def test_no_remark_where_the_model_counts_the_network():
    asked = question("nvidia-h100-sxm", 1 << 30, ranks=16, nodes=2, nic_gbs=1.25)
    found = choose(asked, NCCL)
    assert not [each for each in found.remarks if each.startswith("too fast")]
    assert found.best.time_us > (1 << 30) / (8 * 1.25 * 1e3)


@pytest.mark.parametrize(("ranks", "reported"), [(8, False), (16, False), (64, True)])
def test_many_ranks_on_one_node_are_taken_for_one_machine(ranks, reported):
    found = choose(question("nvidia-h100-sxm", MIB, ranks=ranks), NCCL)
    said = [each for each in found.remarks if "give --nodes" in each]
    assert bool(said) == reported


def test_channels_of_an_algorithm_that_the_library_does_not_run_are_refused():
    with pytest.raises(ValueError, match=r"RCCL runs Tree and Ring: .* not of NVLS"):
        RCCL.predict(question("amd-mi300x", MIB, graphs={"NVLS": Graph(3, 3, 3)}))
