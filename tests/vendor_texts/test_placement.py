"""Rings, trees, domains and groups, against enumerations, graphs by hand and RCCL's own rings."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, permutations

import pytest

from portagpu.facts.readings.model import End, Findings, Link, Node, Reading
from portagpu.machine.inventory.topology import build_topology
from portagpu.machine.placement import domains, groups, place, ring_order, rings, tree_order
from portagpu.machine.placement.graph import gpu_graph, numa_graph
from portagpu.machine.placement.orders import _exchange, best_cycle, ring_edges
from portagpu.machine.placement.parallel_groups import arrange, fastest_domains, mesh_of, sizes
from tests.support.looped import looped
from tests.support.placement_graphs import (
    RCCL,
    at_random,
    edge_levels,
    graph,
    steps,
    topology,
    uniform,
)

# networkx comes with torch
pytestmark = pytest.mark.torch


def every_ring(count):
    for rest in permutations(range(1, count)):
        if count < 3 or rest[0] < rest[-1]:
            yield (0, *rest)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7])
def test_a_ring_is_the_best_of_all(count):
    for seed in range(25):
        found = at_random(count, seed)
        best = max(edge_levels(found, order) for order in every_ring(count))
        ring = ring_order(found)
        assert sorted(ring.order) == list(range(count))
        assert edge_levels(found, ring.order) == best, seed
        assert ring.basis == "every ring was compared"
        assert ring.slowest is not None
        assert ring.slowest.level == best[0]


@looped("seed", range(40))
def test_the_heuristic_for_many_places_is_hardly_worse_than_all_rings(monkeypatch, seed):
    found = at_random(7, seed)
    best = max(edge_levels(found, order) for order in every_ring(7))
    monkeypatch.setattr("portagpu.machine.placement.orders.EXACT", 0)
    ring = ring_order(found)
    assert edge_levels(found, ring.order)[0] == best[0]
    if ring.basis == "no ring can be better":
        assert edge_levels(found, ring.order) == best
    else:
        # one more of the slowest edges at most
        slow = [edge_levels(found, ring.order).count(best[0]), best.count(best[0])]
        assert slow[0] <= slow[1] + 1, (ring, best)


@looped("seed", range(20))
def test_no_exchange_of_two_edges_shortens_what_the_heuristic_leaves(seed):
    """Of a ring without two of its edges, one part is turned around."""
    count, chosen = 9, random.Random(seed)  # noqa: S311 - not for secrets
    costs = [[0] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        costs[a][b] = costs[b][a] = chosen.randrange(100)

    def cost(order):
        return sum(costs[a][b] for a, b in pairwise([*order, order[0]]))

    found, left = _exchange(costs, chosen.sample(range(count), count), 10**6)
    assert left > 0
    for first, last in combinations(range(count + 1), 2):
        turned = [*found[:first], *found[first:last][::-1], *found[last:]]
        assert cost(turned) >= cost(found), (found, turned)


def test_what_is_said_of_a_ring_that_was_not_proven_is_true(monkeypatch):
    monkeypatch.setattr("portagpu.machine.placement.orders.EXACT", 0)
    said = set()
    for seed in range(60):
        found = at_random(6, seed)
        ring, best = ring_order(found), max(edge_levels(found, order) for order in every_ring(6))
        said.add(ring.basis)
        if ring.basis == "no ring can be better":
            assert edge_levels(found, ring.order) == best
        elif ring.basis == "no ring can have a faster slowest edge":
            assert edge_levels(found, ring.order)[0] == best[0]
    assert len(said) > 1


def test_one_bridge_between_domains_makes_no_fast_ring():
    speeds = dict.fromkeys(combinations(range(10), 2), 1.0)
    speeds |= {pair: 3.0 for pair in speeds if (pair[0] < 5) == (pair[1] < 5)}
    found = graph(10, speeds | {(4, 5): 3.0})
    ring = ring_order(found)
    assert (ring.slowest.bandwidth_bytes_s, edge_levels(found, ring.order).count(0)) == (1e9, 1)
    assert ring.basis == "no ring can have a faster slowest edge"


def test_of_equal_rings_the_identity_is_kept():
    assert ring_order(uniform(8)).order == tuple(range(8))
    assert ring_order(uniform(72)).order == tuple(range(72))
    assert ring_order(uniform(72)).basis == "no ring can be better"


def test_a_ring_by_hand():
    # two squares of 100, joined by 50 at 1-6 and 2-5, all other ways at 10
    speeds = dict.fromkeys(combinations(range(8), 2), 10.0)
    speeds |= dict.fromkeys([(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (5, 6), (6, 7), (4, 7)], 100.0)
    speeds |= {(1, 6): 50.0, (2, 5): 50.0}
    found = graph(8, speeds)
    ring = ring_order(found)
    assert ring.order == (0, 1, 6, 7, 4, 5, 2, 3)
    assert (ring.slowest.bandwidth_bytes_s, ring.identity.bandwidth_bytes_s) == (50e9, 10e9)
    sums = [edge.bandwidth_bytes_s for edge in ring_edges(found, ring.order)]
    assert sum(sums) == 6 * 100e9 + 2 * 50e9


@pytest.mark.parametrize("name", RCCL)
def test_no_ring_of_rccl_is_better(name):
    """Each alone. RCCL takes several together, which begin and end at NICs: docs/collectives.md."""
    found = topology(RCCL[name]["numa"], RCCL[name]["links"])
    ring = ring_order(found)
    for words in RCCL[name]["rings"]:
        theirs = list(map(int, words.split()))
        assert edge_levels(found, ring.order) >= edge_levels(found, theirs), words


@pytest.mark.parametrize(
    "name", ["model_25", "model_43", "model_52", "model_56", "model_66", "model_71"]
)
def test_rccl_has_a_ring_as_good(name):
    found = topology(RCCL[name]["numa"], RCCL[name]["links"])
    theirs = [edge_levels(found, list(map(int, words.split()))) for words in RCCL[name]["rings"]]
    assert edge_levels(found, ring_order(found).order) == max(theirs)


@pytest.mark.parametrize(("count", "expected"), [(4, 1), (6, 2), (8, 3)])
def test_rings_over_a_mesh_share_no_link(count, expected):
    """A complete graph of n places has (n - 2) / 2 rings without a common link, for even n."""
    found = rings(graph(count, dict.fromkeys(combinations(range(count), 2), 64.0), own=1))
    used = [frozenset(pair) for each in found for pair in steps(each)]
    assert len(set(used)) == len(used)
    assert all(sorted(each) == list(range(count)) for each in found)
    assert len(found) == expected


def test_rings_on_a_switch_are_one_after_another_on_the_same_links():
    assert rings(uniform(8)) == ()


@looped("seed", range(30))
def test_a_tree_reaches_everything_with_two_children(seed):
    found = at_random(9, seed)
    tree = tree_order(found)
    children = [tree.parents.count(each) for each in range(9)]
    assert max(children) <= 2
    assert tree.parents.count(None) == 1
    for place_ in range(9):
        way = [place_]
        while (above := tree.parents[way[-1]]) is not None:
            way.append(above)
            assert len(way) <= tree.depth + 1
        assert way[-1] == tree.root
    assert edge_levels(found, ring_order(found).order)[0] <= tree.slowest.level <= tree.bound.level


def test_the_bound_of_a_tree_is_the_best_spanning_tree():
    """The slowest edge without which the places would fall apart, by removing edges one by one."""
    for seed in range(20):
        found = at_random(7, seed)
        levels = sorted({each.level for each in found.edges.values()}, reverse=True)

        def reached(least, found=found):
            seen, new = {0}, [0]
            while new:
                at = new.pop()
                more = [p for p in range(7) if p not in seen and found.edge(at, p).level >= least]
                seen.update(more)
                new += more
            return len(seen) == 7

        assert tree_order(found).bound.level == next(level for level in levels if reached(level))


def test_a_tree_on_a_switch_is_flat():
    tree = tree_order(uniform(7))
    assert (tree.depth, tree.parents) == (2, (None, 0, 0, 1, 1, 2, 2))


def test_domains_are_nested_the_fastest_first():
    # two packages of 2 GPUs with 4 links, two packages joined by one link, two such boards
    found = topology([0] * 4 + [1] * 4, "0-1x4 2-3x4 1-2x1 4-5x4 6-7x4 5-6x1")
    listed = [(each.places, each.slowest.word, each.complete) for each in domains(found)]
    assert listed == [
        ((0, 1), "XGMIx4", True),
        ((2, 3), "XGMIx4", True),
        ((4, 5), "XGMIx4", True),
        ((6, 7), "XGMIx4", True),
        ((0, 1, 2, 3), "XGMI", False),
        ((4, 5, 6, 7), "XGMI", False),
        (tuple(range(8)), "SYS", True),
    ]
    assert fastest_domains(found) == ((0, 1, 2, 3), (4, 5, 6, 7))


def best_division(found, size):
    """(slowest edge of all rings, slow pairs) of the best of all divisions, by enumeration."""

    def divide(rest):
        if not rest:
            yield []
            return
        for others in combinations(rest[1:], size - 1):
            left = [each for each in rest[1:] if each not in others]
            for more in divide(left):
                yield [(rest[0], *others), *more]

    def rate(division):
        slowest = []
        for group in division:
            orders = [edge_levels(found, order)[0] for order in permutations(group)]
            slowest.append(max(orders))
        pairs = sorted(
            found.edge(a, b).level for group in division for a, b in combinations(group, 2)
        )
        return min(slowest), pairs

    return max(rate(division) for division in divide(list(range(len(found.places)))))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_groups_are_the_best_of_all_divisions(size):
    for seed in range(6):
        found = at_random(8 if size != 3 else 6, seed)
        order = arrange(found, size)
        blocks = [order[at : at + size] for at in range(0, len(order), size)]
        assert sorted(order) == list(range(len(found.places)))
        slowest = min(edge_levels(found, block)[0] for block in blocks)
        pairs = sorted(found.edge(a, b).level for each in blocks for a, b in combinations(each, 2))
        assert (slowest, pairs) == best_division(found, size), seed


@looped("seed", range(12))
def test_pairs_of_many_places_are_the_best_of_all(seed):
    found = at_random(10, seed)
    order = arrange(found, 2)
    pairs = sorted(found.edge(*order[at : at + 2]).level for at in range(0, 10, 2))
    assert (pairs[0], pairs) == best_division(found, 2)


@looped("seed", range(12))
def test_exchanged_groups_of_nine_places_are_the_best_of_all(seed):
    """No promise for every graph, but these need the exchanges from several starts."""
    found = at_random(9, seed)
    order = arrange(found, 3)
    blocks = [order[at : at + 3] for at in range(0, 9, 3)]
    pairs = sorted(found.edge(a, b).level for each in blocks for a, b in combinations(each, 2))
    assert (min(edge_levels(found, each)[0] for each in blocks), pairs) == best_division(found, 3)


def test_tensor_parallel_groups_stay_in_a_domain():
    # interleaved: even GPUs are one hive, odd ones another
    links = " ".join(f"{a}-{b}x1" for a, b in combinations(range(8), 2) if a % 2 == b % 2)
    found = topology([0] * 8, links)
    for size in (2, 4):
        done = groups(found, tp=size)
        for block in range(0, 8, size):
            assert len({each % 2 for each in done.order[block : block + size]}) == 1
        assert done.slowest.word == "XGMI"
        assert done.findings == ()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_sixteen_gpus_have_groups_over_their_own_links(size):
    found = topology(RCCL["model_56"]["numa"], RCCL["model_56"]["links"])
    done = groups(found, tp=size)
    assert done.slowest.kind == "xgmi"
    if size == 2:
        assert done.slowest.word == "XGMIx4"


def test_a_group_larger_than_the_fastest_domain_is_a_finding():
    links = " ".join(f"{a}-{b}x1" for a, b in combinations(range(8), 2) if a // 4 == b // 4)
    (finding,) = groups(topology([0] * 4 + [1] * 4, links), tp=8).findings
    assert finding.startswith("tp 8 is larger than the fastest domain of 4 (XGMI): GPU ")
    assert "joined by SYS" in finding
    speeds = dict.fromkeys(combinations(range(4), 2), 100.0)
    assert groups(graph(4, speeds), tp=4).findings == ()


def test_the_finding_has_the_loss_where_both_bandwidths_are_known():
    ends = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(4)]
    bridge = End(Node.SWITCH, "bridge", "ffff:00:00.0")
    links = [
        Link(source="one", a=end, b=bridge, kind="pcie", width=16, speed_gbit_s=16.0)
        for end in ends
    ]
    links += [
        Link(source="one", a=ends[a], b=ends[b], kind="nvlink", count=4, bandwidth_bytes_s=100e9)
        for a, b in ((0, 1), (2, 3))
    ]
    found = gpu_graph(build_topology([Findings(kind="one", links=tuple(links))]))
    (finding,) = groups(found, tp=4).findings
    # 16 lanes of 16 GT/s with 128b/130b are 31.5 GB/s
    assert finding.endswith("joined by PIX, 31.5 GB/s instead of 100: 3.2 times less")
    assert groups(found, tp=2).findings == ()


def test_a_group_over_machines_is_a_finding_with_the_network():
    gpus = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(2)]
    bridge = End(Node.SWITCH, "bridge", "ffff:00:00.0")
    nic = End(Node.NIC, "mlx5_0", "0000:20:00.0")
    links = [Link(source="one", a=each, b=bridge, kind="pcie") for each in (*gpus, nic)]
    links.append(
        Link(source="one", a=gpus[0], b=gpus[1], kind="nvlink", count=1, bandwidth_bytes_s=200e9)
    )
    port = End(Node.SWITCH, "mlx5_0 port 1")
    links.append(Link(source="one", a=nic, b=port, kind="infiniband", bandwidth_bytes_s=50e9))
    found = gpu_graph(build_topology([Findings(kind="one", links=tuple(links))]))
    assert [each.nics for each in found.places] == [(("mlx5_0", "PIX"),)] * 2
    (finding,) = groups(found, tp=4, nodes=2).findings
    # two GPUs share the port
    assert finding.endswith("25 GB/s for each GPU instead of 200 (NV1): 8 times less")


@pytest.mark.parametrize(("tp", "pp", "dp", "nodes"), [(2, 2, 4, 2), (8, 1, 2, 2), (4, 4, 1, 2)])
def test_ranks_are_where_torch_puts_them(tp, pp, dp, nodes):
    import torch

    links = " ".join(f"{a}-{b}x1" for a, b in combinations(range(8), 2) if a % 2 == b % 2)
    done = groups(topology([0] * 8, links), tp, pp, dp, nodes)
    # init_device_mesh counts so: torch/distributed/device_mesh.py, torch.arange(...).view(shape)
    mesh = torch.arange(tp * pp * dp).view(pp, dp, tp)
    assert [list(each) for each in done.tensor] == mesh.reshape(-1, tp).tolist()
    assert [list(each) for each in done.pipeline] == mesh.permute(1, 2, 0).reshape(-1, pp).tolist()
    assert [list(each) for each in done.data] == mesh.permute(0, 2, 1).reshape(-1, dp).tolist()
    # with devices as they are, rank node * 8 + g is GPU g, and is where rank r of above was
    kept = torch.tensor(done.mesh).flatten().tolist()
    assert kept == [rank // 8 * 8 + done.order[rank % 8] for rank in range(nodes * 8)]


def test_ranks_of_a_tensor_group_share_a_machine_and_the_pipeline_crosses_first():
    done = groups(uniform(8), tp=4, pp=2, nodes=2)
    assert (done.tp, done.pp, done.dp, done.world) == (4, 2, 2, 16)
    assert all(len({rank // 8 for rank in each}) == 1 for each in done.tensor)
    assert all(len({rank // 8 for rank in each}) == 1 for each in done.data)
    assert all({rank // 8 for rank in each} == {0, 1} for each in done.pipeline)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ((3, None, None, 1), "tp 3 x pp 1 = 3 does not divide 8 ranks (1 machine of 8)"),
        ((4, 2, 2, 1), "tp 4 x pp 2 x dp 2 = 16, not 8 ranks (1 machine of 8)"),
        ((3, 1, 8, 3), "tp 3 neither divides the 8 ranks of a machine nor is a multiple of them"),
        ((12, None, None, 3), "tp 12 neither divides"),
        ((0, 1, 1, 1), "tp, pp, dp and nodes are at least 1"),
        ((8, 1, None, 1 << 20), "8388608 ranks: at most 1048576 are placed"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_line(asked, problem):
    tp, pp, dp, nodes = asked
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        sizes(8, tp, pp, dp, nodes)
    assert problem in str(error.value)


def test_what_is_not_given_follows():
    assert sizes(8, 4, None, None, 2) == (4, 1, 4)
    assert sizes(8, None, 2, 4, 1) == (1, 2, 4)
    assert sizes(8, 2, None, 2, 1) == (2, 2, 2)
    assert mesh_of(range(8), 2, 2, 2) == (((0, 1), (2, 3)), ((4, 5), (6, 7)))


def test_one_gpu_and_gpus_without_a_known_link():
    alone = place(uniform(1), tp=1)
    assert (alone.order, alone.ring.slowest, alone.tree.parents) == ((0,), None, (None,))
    readings = tuple(Reading(source="one", vendor="amd", index=n) for n in range(3))
    found = gpu_graph(build_topology([Findings(kind="one", readings=readings)]))
    ring = ring_order(found)
    assert (ring.order, ring.slowest.word, ring.slowest.bandwidth_bytes_s) == ((0, 1, 2), "?", None)
    assert (domains(found), fastest_domains(found)) == ((), ((0,), (1,), (2,)))
    assert "no source states the way between GPUs" in found.remarks[0]
    assert groups(found, tp=3).findings == ()
    two = place(uniform(2), tp=2)
    assert (two.order, two.ring.slowest.level) == ((0, 1), 0)


def test_the_slower_direction_of_a_link_counts():
    ends = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(2)]
    links = (
        Link(source="one", a=ends[0], b=ends[1], kind="xgmi", bandwidth_bytes_s=64e9),
        Link(source="one", a=ends[1], b=ends[0], kind="xgmi", bandwidth_bytes_s=32e9),
    )
    found = gpu_graph(build_topology([Findings(kind="one", links=links)]))
    assert found.edge(0, 1).bandwidth_bytes_s == 32e9
    assert "6.4e+10 by one, 3.2e+10 by one" in found.remarks[0]


def test_without_every_bandwidth_the_counts_compare():
    ends = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(3)]
    links = (
        Link(source="one", a=ends[0], b=ends[1], kind="nvlink", count=1, bandwidth_bytes_s=50e9),
        Link(source="one", a=ends[1], b=ends[2], kind="nvlink", count=4),
    )
    found = gpu_graph(build_topology([Findings(kind="one", links=links)]))
    assert found.edge(1, 2).level > found.edge(0, 1).level > found.edge(0, 2).level


def test_without_bandwidths_and_counts_the_lower_weight_is_faster():
    ends = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(3)]
    links = tuple(
        Link(source="one", a=ends[a], b=ends[b], kind="xgmi", weight=weight)
        for a, b, weight in ((0, 1, 41), (1, 2, 13), (0, 2, 41))
    )
    found = gpu_graph(build_topology([Findings(kind="one", links=links)]))
    assert [each.level for each in found.edges.values()] == [0, 0, 1]


def test_links_of_a_matrix_are_not_links_of_one_pair():
    """``nvidia-smi topo -m`` shows NV18 between GPUs on switches, which all share 18 links."""
    ends = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(4)]
    pairs = list(combinations(ends, 2))
    shown = [Link(source="one", a=a, b=b, kind="nvlink", path="NV18", count=18) for a, b in pairs]
    assert rings(gpu_graph(build_topology([Findings(kind="one", links=tuple(shown))]))) == ()
    listed = [Link(source="one", a=a, b=b, kind="nvlink", count=2) for a, b in pairs]
    # 12 links: a ring needs 4
    assert len(rings(gpu_graph(build_topology([Findings(kind="one", links=tuple(listed))])))) >= 2


def test_only_lists_of_cpus_reach_a_command_line():
    readings = tuple(
        Reading(source="one", vendor="amd", index=n, extra={"cpu affinity": text})
        for n, text in enumerate(("0-3,8", "0; reboot", "", "7,6,6"))
    )
    found = gpu_graph(build_topology([Findings(kind="one", readings=readings)]))
    assert [each.cpus for each in found.places] == ["0-3,8", None, None, "6-7"]


def test_a_pair_without_peer_access_is_slower_than_any_way():
    ends = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(3)]
    links = (
        Link(source="one", a=ends[0], b=ends[1], kind="pcie", path="PIX", peer_access=False),
        Link(source="one", a=ends[1], b=ends[2], kind="pcie", path="SYS", peer_access=True),
    )
    found = gpu_graph(build_topology([Findings(kind="one", links=links)]))
    assert found.edge(1, 2).level > found.edge(0, 1).level


def test_numa_nodes_are_the_places_of_a_machine_without_gpus():
    from portagpu.facts.host.cpu import NumaNode

    nodes = [NumaNode(n, (2 * n, 2 * n + 1) if n != 2 else (), None) for n in range(5)]
    far = {0: [10, 32, 20, 12, 32], 1: [32, 10, 20, 32, 12], 3: [12, 32, 20, 10, 32],
           4: [32, 12, 20, 32, 10]}  # fmt: skip
    found = numa_graph(nodes, far)
    # node 2 has memory alone
    assert [each.key for each in found.places] == ["node 0", "node 1", "node 3", "node 4"]
    assert [each.cpus for each in found.places] == ["0-1", "2-3", "6-7", "8-9"]
    done = groups(found, tp=2)
    assert sorted(map(sorted, (done.order[:2], done.order[2:]))) == [[0, 2], [1, 3]]
    assert found.edge(0, 2).word == "distance 12"


def test_costs_never_let_many_fast_edges_pay_for_a_slow_one():
    speeds = dict.fromkeys(combinations(range(12), 2), 2.0)
    # any ring over the 3s has one edge of 1
    speeds |= {(a, a + 1): 3.0 for a in range(11)} | {(0, 11): 1.0}
    found = graph(12, speeds)
    order, _ = best_cycle(found.costs)
    assert min(found.edge(a, b).bandwidth_bytes_s for a, b in steps(order)) == 2e9
