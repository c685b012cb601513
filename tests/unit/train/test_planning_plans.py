"""Which layouts keep the rules, what they are ranked by, and why the others are rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portagpu.facts.targets import load_target
from portagpu.train.planning import Layout, Model, Recipe, cluster_of, estimate, find_model, plan
from portagpu.train.planning.cluster import Cluster, Network, forward_flops, rate_of, step_time
from portagpu.train.planning.plans import MEMORY, RULES, broken_rule, parse_strategy

EIGHT = find_model("llama-3.1-8b")
RECIPE = Recipe(sequence=8192, precision="autocast-bf16", sharding="fsdp2")


def machines(world: int = 8, target: str = "nvidia-h100-sxm", **more: object) -> Cluster:
    nic = {"nic_gbs": 50.0} if world > 8 else {}
    return cluster_of(load_target(target), world, **nic | more)


@pytest.mark.parametrize(
    ("rule", "layout", "recipe", "batch"),
    [
        ("world", {"dp": 4}, {}, 8),
        ("heads", {"tp": 64, "dp": 1}, {}, 8),
        ("mlp", {"tp": 32, "dp": 2}, {"inner": 100}, 8),
        ("tp-in-domain", {"tp": 16, "dp": 4}, {}, 8),
        ("layers", {"pp": 64}, {}, 64),
        ("layers", {"pp": 4, "dp": 16, "chunks": 16, "schedule": "interleaved"}, {}, 64),
        ("batch", {"dp": 64}, {}, 96),
        ("micro-batches", {"dp": 64, "micro_batches": 2}, {}, 64),
        ("pipeline-filled", {"pp": 8, "dp": 8}, {}, 8),
        (
            "interleaved",
            {"pp": 4, "dp": 16, "chunks": 2, "schedule": "interleaved", "micro_batches": 6},
            {},
            96,
        ),
        ("context", {"cp": 8, "dp": 8}, {"sequence": 8200}, 8),
        ("sequence", {"dp": 64, "sequence_parallel": True}, {}, 64),
        ("experts", {"dp": 64, "ep": 2}, {}, 64),
        ("sharding-with-pipeline", {"pp": 2, "dp": 32, "micro_batches": 2}, {"z": "zero3"}, 64),
    ],
)
def test_a_rejected_layout_names_its_rule(
    rule: str, layout: dict[str, object], recipe: dict[str, object], batch: int
) -> None:
    model = replace(EIGHT, inner=recipe.pop("inner", EIGHT.inner))
    sharding = recipe.pop("z", RECIPE.sharding)
    found = broken_rule(
        model, replace(RECIPE, sharding=sharding, **recipe), Layout(**layout), machines(64), batch
    )
    assert found is not None
    assert found[0] == rule
    assert found[1]
    assert "\n" not in found[1]


def test_experts_divide() -> None:
    mixtral = find_model("mixtral-8x7b")
    for layout in (Layout(dp=64, ep=16), Layout(tp=8, dp=8, ep=3, micro_batches=8)):
        found = broken_rule(mixtral, RECIPE, layout, machines(64), 64)
        assert found is not None
        assert found[0] == "experts"
    assert broken_rule(mixtral, RECIPE, Layout(dp=64, ep=8), machines(64), 64) is None


def test_kv_heads_divide_one_way_or_the_other() -> None:
    model = replace(EIGHT, heads=24, kv_heads=6, inner=14400)
    found = broken_rule(model, RECIPE, Layout(tp=4, dp=2), machines(), 8)
    assert found is not None
    assert found[0] == "kv-heads"
    assert broken_rule(replace(model, heads=8, kv_heads=4), RECIPE, Layout(tp=8), machines(),
                       1) is None  # fmt: skip


def test_every_ranked_plan_keeps_every_rule_and_every_other_names_one() -> None:
    found = plan(EIGHT, machines(16), RECIPE, batch=64)
    for each in found.ranked:
        assert broken_rule(EIGHT, each.recipe, each.layout, found.cluster, 64) is None
        assert each.layout.world == 16
        assert each.memory.least <= found.cluster.memory
        assert each.why
    assert {each.rule for each in found.rejected} <= {*RULES, MEMORY}
    times = [each.timing.step_s for each in found.ranked if each.memory.expected <= 85e9]
    assert times == sorted(times)


def test_the_first_plan_is_the_fastest_by_brute_force() -> None:
    """Asked for by itself, no layout is faster."""
    found = plan(EIGHT, machines(), RECIPE, batch=64)
    best = found.best
    for each in found.ranked[:20]:
        alone = plan(
            EIGHT,
            machines(),
            RECIPE,
            batch=64,
            strategy=each.layout,
            micro_batches=(each.recipe.micro_batch,),
            recomputes=(each.recipe.recompute,),
        )
        assert alone.best.timing == each.timing
        if each.memory.expected <= found.cluster.memory:
            assert best.timing.step_s <= each.timing.step_s


@pytest.mark.parametrize(
    ("p", "m", "v", "share"),
    [(1, 8, 1, 0), (4, 8, 1, 3 / 11), (4, 8, 2, 3 / 19), (8, 8, 1, 7 / 15)],
)
def test_the_bubble_of_equal_stages(p: int, m: int, v: int, share: float) -> None:
    schedule = "interleaved" if v > 1 else "1f1b"
    layout = Layout(pp=p, dp=8 // p, micro_batches=m, chunks=v, schedule=schedule)
    cluster = machines()
    # a head that takes no time
    model = replace(EIGHT, vocabulary=1)
    timing = step_time(model, RECIPE, layout, cluster, Network(cluster), 0.5)
    assert timing is not None
    assert timing.bubble == pytest.approx(share, rel=1e-5)
    busy = timing.compute_s + timing.pipeline_s
    assert timing.bubble_s / (timing.bubble_s + busy) == pytest.approx(share, rel=1e-5)


def test_the_slowest_stage_paces_a_pipeline() -> None:
    """5 layers on 2 stages: 3 with the embedding, 2 with the head; worked by hand in layers."""
    cluster = machines(2)
    model = replace(EIGHT, layers=5)
    flops = forward_flops(model, 8192)
    layer = 3 * 8192 * (flops.products + flops.attention) / (0.5 * 989.4e12)
    head = 3 * 8192 * flops.head / (0.5 * 989.4e12)
    timing = step_time(model, RECIPE, Layout(pp=2, micro_batches=4), cluster, Network(cluster), 0.5)
    assert timing is not None
    slow, fast = max(3 * layer, 2 * layer + head), min(3 * layer, 2 * layer + head)
    assert timing.compute_s == pytest.approx(4 * slow)
    passed = timing.pipeline_s / 4
    assert timing.step_s == pytest.approx(4 * slow + fast + 5 * passed)


def test_an_all_to_all_leaves_a_machine_in_part() -> None:
    """8 experts' ranks on 2 machines of 4: a half goes out at 50 GB/s, 3/8 stay inside."""
    cluster = cluster_of(load_target("nvidia-h100-sxm"), 8, nodes=2, nic_gbs=50.0)
    size = 1 << 30
    inside, outside = size * 3 / 8 / 450e9, size / 2 / 50e9
    assert Network(cluster).seconds("all_to_all", size, 8, 1) == pytest.approx(outside)
    one = cluster_of(load_target("nvidia-h100-sxm"), 8)
    assert Network(one).seconds("all_to_all", size, 8, 1) == pytest.approx(size * 7 / 8 / 450e9)
    assert inside < outside
    mesh = cluster_of(load_target("amd-mi300x"), 4)
    # a quarter to each of three others, over a link of its own
    assert Network(mesh).seconds("all_to_all", size, 4, 1) == pytest.approx(size / 4 / 64e9)


def test_experts_that_are_apart_pay_an_exchange() -> None:
    mixtral, cluster = find_model("mixtral-8x7b"), machines()
    layout = Layout(dp=8, ep=8)
    network = Network(cluster)
    timing = step_time(mixtral, RECIPE, layout, cluster, network, 0.5)
    assert timing is not None
    # two experts a token; to and from them, forward and backward, in each of 32 layers
    once = network.seconds("all_to_all", 8192 * 4096 * 2 * 2, 8, 1)
    assert timing.expert_s == pytest.approx(once * 4 * 32)
    full = step_time(mixtral, replace(RECIPE, recompute="full"), layout, cluster, network, 0.5)
    assert full.expert_s == pytest.approx(once * 6 * 32)
    together = step_time(mixtral, RECIPE, Layout(dp=8), cluster, network, 0.5)
    assert together.expert_s == 0


def test_the_operations_of_a_step_are_those_of_the_paper() -> None:
    """arXiv:2204.02311, appendix B: 6 N + 12 L H Q T a token, on one GPU without a link."""
    cluster = machines(1)
    timing = step_time(EIGHT, RECIPE, Layout(), cluster, Network(cluster), 0.5)
    # multiplied with the head, and looked up in the embedding
    weights = EIGHT.parameters - 128256 * 4096 - 64 * 4096
    flops = 6 * weights + 12 * 32 * 32 * 128 * 8192
    assert timing is not None
    assert timing.step_s == pytest.approx(8192 * flops / (0.5 * 989.4e12), rel=1e-4)
    assert forward_flops(EIGHT, 8192).attention * 3 == 12 * 32 * 128 * 8192


def test_dense_peaks_are_not_sparse_ones() -> None:
    assert rate_of(load_target("nvidia-h100-sxm"), "bf16", None) == 989.4e12
    assert rate_of(load_target("amd-mi300x"), "bf16", 0.5) == 0.5 * 1307.4e12
    assert rate_of(load_target("cpu-x86-64"), "bf16", None) is None


def test_sharding_more_moves_more() -> None:
    """Stage 2 moves as much as an all-reduce of 16-bit gradients, stage 3 more."""
    cluster = machines(64)
    moved = {}
    for sharding in ("ddp", "zero1", "zero2", "zero3"):
        recipe = replace(RECIPE, precision="mixed-bf16", sharding=sharding, micro_batch=1)
        timing = step_time(EIGHT, recipe, Layout(dp=64), cluster, Network(cluster))
        moved[sharding] = timing.data_s
    assert moved["zero1"] == moved["zero2"]
    # and pays the latency of each layer's call
    assert 1.5 < moved["zero3"] / moved["zero2"] < 2
    assert moved["ddp"] == pytest.approx(moved["zero2"], rel=0.25)


@pytest.mark.parametrize(("sharding", "times"), [("zero1", 1), ("zero2", 4), ("zero3", 4)])
def test_shares_of_gradients_are_reduced_for_every_micro_batch(sharding: str, times: int) -> None:
    cluster = machines(64)
    recipe = replace(RECIPE, sharding=sharding)
    network = Network(cluster)
    one, four = (
        step_time(EIGHT, recipe, Layout(dp=64, micro_batches=count), cluster, network).data_s
        for count in (1, 4)
    )
    gathers = 0 if sharding == "zero3" else network.seconds(
        "all_gather", 2 * EIGHT.parameters, 64, 1
    )  # fmt: skip
    assert four - gathers == pytest.approx(times * (one - gathers))


def test_a_model_that_fits_nowhere_says_what_is_missing() -> None:
    found = plan(find_model("llama-3.1-405b"), machines(), RECIPE, batch=8)
    assert not found.ranked
    with pytest.raises(ValueError, match=r"nothing fits: .* needs at least .* of 79\.6 GiB") as why:
        _ = found.best
    assert "\n" not in str(why.value)


def test_a_small_domain_keeps_tensor_parallelism_inside() -> None:
    found = plan(EIGHT, machines(domain=2), RECIPE, batch=64)
    assert {each.layout.tp for each in found.ranked} == {1, 2}
    assert "tp-in-domain" in {each.rule for each in found.rejected}


@pytest.mark.parametrize(
    ("world", "more", "said"),
    [
        (0, {}, "at least 1 rank"),
        (12, {"nodes": 5}, "spread evenly"),
        (16, {"nic_gbs": None}, "need a network"),
        (16, {"nic_gbs": -1.0}, "from 0.001"),
        (16, {"nic_gbs": float("nan")}, "from 0.001"),
        (16, {"nic_gbs": float("inf")}, "from 0.001"),
        (1 << 20, {}, "at most"),
        (8, {"memory": 0}, "above 0"),
        (8, {"memory": 1e30}, "at most 1 PiB"),
    ],
)
def test_an_impossible_world_is_one_line(world: int, more: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        machines(world, **more)
    assert "\n" not in str(caught.value)


def test_a_target_without_memory_needs_its_size() -> None:
    with pytest.raises(ValueError, match="no memory size"):
        machines(1, "cpu-x86-64")
    found = plan(find_model("gpt2"), machines(1, "cpu-x86-64", memory=1 << 36),
                 Recipe(sequence=512), batch=8)  # fmt: skip
    assert found.best.timing is None
    assert "not known" in found.best.why


def test_a_strategy_fixes_degrees() -> None:
    found = plan(EIGHT, machines(), RECIPE, batch=64, strategy="tp=2, pp=2")
    assert {(each.layout.tp, each.layout.pp, each.layout.dp) for each in found.ranked} == {
        (2, 2, 2)
    }
    wrong = plan(EIGHT, machines(), RECIPE, batch=64, strategy="tp=3")
    assert not wrong.ranked
    assert {each.rule for each in wrong.rejected} == {"world"}
    assert "tp 3" in wrong.nothing
    assert "\n" not in wrong.nothing
    with pytest.raises(ValueError, match=r"world"):
        _ = plan(EIGHT, machines(), RECIPE, batch=64, strategy="tp=2,pp=2,dp=3,cp=1").best


@pytest.mark.parametrize(
    "text", ["", "tp", "tp=0", "tp=x", "np=2", "tp=2;pp=2", "tp=-1", "tp=2,tp=4"]
)
def test_a_wrong_strategy_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown degree|tp is there twice") as caught:
        parse_strategy(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"batch": 1 << 70}, {"efficiency": float("nan")}, {"efficiency": 2.0}],
)
def test_a_wrong_number_is_one_line(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError) as caught:
        plan(EIGHT, machines(), RECIPE, **{"batch": 8} | wrong)
    assert "\n" not in str(caught.value)


def test_a_dense_model_has_no_expert_groups() -> None:
    found = plan(EIGHT, machines(), RECIPE, batch=64)
    assert {each.layout.ep for each in found.ranked} == {1}


def test_the_longest_context_is_split() -> None:
    recipe = replace(RECIPE, sequence=131072)
    found = plan(EIGHT, machines(), recipe, batch=8, longest_context=8)
    assert {each.layout.cp for each in found.ranked} > {1}
    long = estimate(EIGHT, recipe, Layout(cp=8)).of("activations")
    short = estimate(EIGHT, recipe, Layout()).of("activations")
    assert short.expected == pytest.approx(8 * long.expected)


def test_a_model_of_one_layer_has_no_pipeline() -> None:
    tiny = Model(layers=1, hidden=64, heads=1, kv_heads=1, head_size=64, inner=128, vocabulary=100)
    found = plan(tiny, machines(), replace(RECIPE, sequence=64), batch=8)
    assert {each.layout.pp for each in found.ranked} == {1}


@pytest.mark.parametrize("name", ["x", "llama-9", "meta-llama/Llama-3.1-8B"])
def test_an_unknown_model_says_what_to_give(name: str) -> None:
    with pytest.raises(ValueError, match=r"^unknown model '.+': give a config\.json, ") as raised:
        find_model(name)
    assert "llama-3.1-8b" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_name_is_not_a_model() -> None:
    with pytest.raises(TypeError, match="find_model") as caught:
        plan("llama-3-8b", None, None, batch=8)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
