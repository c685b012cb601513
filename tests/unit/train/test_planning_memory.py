"""The closed form of memory, against published counts and formulas worked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest

from portagpu.facts.targets import load_target
from portagpu.train.planning import (
    MODELS,
    Fit,
    Layout,
    Model,
    Phase,
    Recipe,
    estimate,
    find_model,
    kv_cache,
    read_model,
)
from portagpu.train.planning.memory import kept_per_layer, layer
from portagpu.train.planning.recipe import (
    OPTIMIZERS,
    PRECISIONS,
    SHARDINGS,
    layers_of_parts,
    stages,
)
from portagpu.train.planning.states import Share, buffer_terms, share, state_terms

GPT = Model(
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=8,
    head_size=64,
    inner=2048,
    vocabulary=1000,
    gated=False,
    dropout=True,
)
MIXTRAL = MODELS["mixtral-8x7b"]
S, B, H, A = 128, 2, 512, 8


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # the counts of the models' own pages
        ("gpt2", 124_439_808),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_a_published_model_has_its_published_parameters(name: str, parameters: int) -> None:
    assert find_model(name).parameters == parameters


def test_gpt3_has_about_175_billion_parameters() -> None:
    assert MODELS["gpt3-175b"].parameters == pytest.approx(175e9, rel=0.005)


def test_a_config_gives_the_same_model() -> None:
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    assert read_model(json.dumps(config), "mixtral-8x7b") == MODELS["mixtral-8x7b"]


def test_a_config_with_experts_of_their_own_width() -> None:
    """Qwen3-30B-A3B: 30.5 billion parameters, of which a token multiplies 3.3."""
    config = {
        "model_type": "qwen3_moe",
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    }
    found = Model.from_config(config)
    assert found.parameters == 30_532_122_624
    assert found.active_parameters + 151936 * 2048 == pytest.approx(3.35e9, rel=0.01)


@pytest.mark.parametrize(
    "wrong",
    [{"layers": 0}, {"layers": 1.5}, {"hidden": -1}, {"vocabulary": 1 << 70}, {"kv_heads": 3},
     {"experts": -1}, {"experts": 4, "active_experts": 5}, {"positions": -1}],
)  # fmt: skip
def test_a_wrong_model_is_one_line(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError) as caught:
        replace(GPT, **wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bert", "deepseek_v9", "mamba2", "t5", 7])
def test_another_kind_of_model_has_no_closed_form(kind: object) -> None:
    with pytest.raises(ValueError, match="no closed form") as caught:
        read_model(json.dumps({"model_type": kind, "hidden_size": 768}), "c.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_key_value_heads", "x"), ("num_key_value_heads", 0), ("head_dim", 1.5),
     ("num_hidden_layers", 1 << 70), ("vocab_size", True), ("num_local_experts", [8]),
     ("tie_word_embeddings", "false")],
)  # fmt: skip
def test_a_wrong_number_in_a_config_is_named(key: str, value: object) -> None:
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
    }
    with pytest.raises(ValueError, match=f"{key}|layers") as caught:
        read_model(json.dumps(config | {key: value}), "c.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{}", "null", '{"hidden_size": "x"}', "[" * 100_000])
def test_what_is_not_a_config_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^c\.json") as caught:
        read_model(text, "c.json")
    assert "\n" not in str(caught.value)


def test_an_unknown_model_offers_the_closest() -> None:
    with pytest.raises(ValueError, match=r"llama-2-7b"):
        find_model("llama2-7b")


@pytest.mark.parametrize(
    ("sharding", "gb"),
    # arXiv:1910.02054, figure 1: 7.5 billion parameters, 64 ranks, K = 12
    [("ddp", 120.0), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)],
)
def test_states_are_those_of_the_paper(sharding: str, gb: float) -> None:
    part = Share(dense=7.5e9, experts=0, layer=1e8, outside=1e8, dense_ranks=64, expert_ranks=64)
    recipe = Recipe(precision="mixed-bf16", sharding=sharding, foreach=False)
    terms = [term for term, _ in state_terms(part, recipe, Layout(dp=64))]
    assert sum(each.expected for each in terms) / 1e9 == pytest.approx(gb, abs=0.06)


def test_parameters_are_gathered_where_they_are_shared_out_and_nowhere_else() -> None:
    """Of all shardings, ZeRO 3 and fully_shard share out parameters (arXiv:1910.02054)."""
    part = Share(dense=7.5e9, experts=0, layer=1e8, outside=1e8, dense_ranks=64, expert_ranks=64)
    for sharding, layout, training in product(
        SHARDINGS, (Layout(dp=64), Layout(dp=64, pp=2)), (True, False)
    ):
        recipe = Recipe(precision="mixed-bf16", sharding=sharding, training=training)
        found = {term.name for term in buffer_terms(part, recipe, layout)}
        shared = sharding in ("zero3", "fsdp2")
        assert ("gathered parameters" in found) == shared, (sharding, layout.pp, training)


def test_gpt3_in_ddp_needs_16_bytes_a_parameter() -> None:
    """Not the 350 GB of its weights alone."""
    found = estimate(MODELS["gpt3-175b"], Recipe(foreach=False))
    names = ("parameters", "gradients", "master weights", "optimiser state")
    states = sum(found.of(name).expected for name in names)
    assert states == pytest.approx(16 * MODELS["gpt3-175b"].parameters)


@pytest.mark.parametrize(
    ("recompute", "tp", "sp", "by_hand"),
    [
        # arXiv:2205.05198, table 2
        ("none", 1, False, S * B * H * 34 + 5 * A * S * S * B),
        ("none", 2, False, S * B * H * (10 + 24 / 2) + 5 * A * S * S * B / 2),
        ("none", 2, True, (S * B * H * 34 + 5 * A * S * S * B) / 2),
        ("selective", 2, False, S * B * H * (10 + 24 / 2)),
        ("selective", 2, True, S * B * H * 34 / 2),
        ("full", 1, False, S * B * H * 2),
    ],
)
def test_a_layer_keeps_the_bytes_of_the_paper(
    recompute: str, tp: int, sp: bool, by_hand: float
) -> None:
    recipe = Recipe(micro_batch=B, sequence=S, fused=False, recompute=recompute)
    layout = Layout(tp=tp, sequence_parallel=sp)
    assert kept_per_layer(layer(GPT, recipe, layout), recipe) == pytest.approx(by_hand)


def test_torch_keeps_the_inputs_that_tensor_parallelism_gathered() -> None:
    """Of attention and of the MLP, in 16 bits: all tokens instead of a rank's half."""
    layout = Layout(tp=2, dp=2, sequence_parallel=True)
    recipe = Recipe(micro_batch=B, sequence=S, sharding="zero1")
    gathered = layer(GPT, replace(recipe, sharding="fsdp2"), layout)
    assert gathered.kept - layer(GPT, recipe, layout).kept == 2 * 2 * S * B * H / 2


def test_a_fused_loss_keeps_the_logits_and_their_gradient() -> None:
    found = estimate(GPT, Recipe(micro_batch=B, sequence=S, fused_loss=True))
    assert found.of("logits and loss").expected == 2 * 2 * S * B * GPT.vocabulary


def test_sharded_gradients_stay_reserved_on_their_stream() -> None:
    """After a first step they are there also when the loss is computed, but not on a CPU."""
    recipe, layout = Recipe(sharding="fsdp2"), Layout(dp=4)
    found = estimate(GPT, recipe, layout)
    assert found.of("reserved for gradients").expected == found.of("gradients").expected
    assert found.of("reserved for gradients").least == 0
    cpu = estimate(GPT, recipe, layout, target=load_target("cpu-x86-64"))
    assert cpu.of("reserved for gradients") is None


@pytest.mark.parametrize(
    ("layout", "in_flight"),
    [
        (Layout(pp=4, micro_batches=8), [4, 3, 2, 1]),
        (Layout(pp=4, micro_batches=2), [2, 2, 2, 1]),
        (Layout(pp=4, micro_batches=8, schedule="gpipe"), [8, 8, 8, 8]),
        # the first stage: 4 x (1 + (p - 1) / (p v)), by arXiv:2205.05198
        (Layout(pp=2, micro_batches=8, schedule="interleaved", chunks=2), [4 * 1.25, 3]),
        # no more than there are
        (Layout(pp=2, micro_batches=2, schedule="interleaved", chunks=2), [4, 3]),
    ],
)
def test_layers_in_flight(layout: Layout, in_flight: list[float]) -> None:
    assert [each.in_flight for each in stages(GPT, layout)] == in_flight


@pytest.mark.parametrize(
    ("layers", "parts", "by_hand"),
    [
        (32, 4, (8, 8, 8, 8)),
        # with the embedding and the head 128, 16 each: as torchtitan splits Llama 3.1 405B
        (126, 8, (15, 16, 16, 16, 16, 16, 16, 15)),
        (7, 3, (2, 3, 2)),
        (5, 2, (3, 2)),
        (4, 3, (1, 2, 1)),
    ],
)
def test_layers_that_do_not_divide_are_spread(
    layers: int, parts: int, by_hand: tuple[int, ...]
) -> None:
    assert layers_of_parts(layers, parts) == by_hand
    assert sum(by_hand) == layers


def test_the_embedding_is_on_the_first_stage_and_the_head_on_the_last() -> None:
    """A tied head is a copy there, and the parameters of the model are the sum otherwise."""
    layout = Layout(pp=4, micro_batches=4)
    parts = [share(GPT, layout, each) for each in stages(GPT, layout)]
    assert [each.outside for each in parts] == [1000 * 512, 0, 0, 1000 * 512 + 512]
    assert sum(each.all for each in parts) == GPT.parameters
    tied = replace(GPT, tied=True)
    parts = [share(tied, layout, each) for each in stages(tied, layout)]
    assert sum(each.all for each in parts) == tied.parameters + 1000 * 512


@pytest.mark.parametrize(
    ("vocabulary", "said"), [(100, "stage 1 of 4"), (1_000_000, "stage 4 of 4")]
)
def test_the_rank_that_needs_most_is_estimated(vocabulary: int, said: str) -> None:
    """The first stage holds most activations, but the last one has logits."""
    found = estimate(replace(GPT, vocabulary=vocabulary, tied=True), Recipe(sequence=256),
                     Layout(pp=4, micro_batches=8))  # fmt: skip
    assert said in found.remarks[0]
    assert (found.of("logits and loss") is not None) == (said == "stage 4 of 4")
    assert len(found.others) == 2
    assert found.least >= max(each.least for each in found.others)


@pytest.mark.parametrize(
    ("name", "tp", "kv_bytes", "token"),
    [
        ("llama-2-7b", 1, 2, 524_288),
        ("mistral-7b", 1, 2, 131_072),
        ("mistral-7b", 1, 1, 65_536),
        ("mistral-7b", 4, 2, 32_768),
        ("mistral-7b", 16, 2, 16_384),
    ],
)
def test_the_bytes_of_a_cached_token(name: str, tp: int, kv_bytes: float, token: int) -> None:
    recipe = Recipe(kv_tokens=1, kv_bytes=kv_bytes)
    assert kv_cache(find_model(name), recipe, Layout(tp=tp)).expected == token


def test_experts_are_sharded_over_fewer_ranks() -> None:
    layout = Layout(dp=8, ep=4)
    part = share(MIXTRAL, layout, *stages(MIXTRAL, layout))
    assert (part.dense_ranks, part.expert_ranks) == (8, 2)
    assert part.experts == 32 * 8 * 3 * 4096 * 14336 / 4


def test_offload_moves_states_to_the_host() -> None:
    here = estimate(GPT, Recipe())
    there = estimate(GPT, Recipe(offload="optimizer"))
    assert {each.name for each in there.host} == {"gradients", "master weights", "optimiser state"}
    assert there.expected < here.expected
    assert "parameters" in {each.name for each in estimate(GPT, Recipe(offload="parameters")).host}


def test_precisions_order_the_states() -> None:
    """More exact formats never need less."""

    def states(precision: str) -> float:
        part = share(GPT, Layout(), *stages(GPT, Layout()))
        terms = [term for term, _ in state_terms(part, Recipe(precision=precision), Layout())]
        return sum(term.expected for term in terms if term.name != "optimiser temporaries")

    assert states("mixed-bf16") == states("fp32") == 16 * GPT.parameters
    assert states("mixed-bf16-fp32-grads") == 18 * GPT.parameters


def test_every_term_has_a_range_a_formula_and_a_source() -> None:
    recipe = Recipe(precision="mixed-fp8", sharding="fsdp2", recompute="full", graphs=True)
    found = estimate(GPT, recipe, Layout(tp=2, pp=2, dp=2, micro_batches=4))
    assert len({each.name for each in found.terms}) == len(found.terms)
    for each in found.terms:
        assert 0 <= each.least <= each.expected <= each.most, each.name
        assert each.formula, each.name
        assert each.source, each.name
    assert found.least <= found.expected <= found.most


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3", "fsdp2"])
@pytest.mark.parametrize("offload", ["none", "optimizer", "parameters"])
def test_a_range_holds_what_is_expected(sharding: str, offload: str) -> None:
    """Of a model whose embedding is larger than what stage 3 keeps."""
    recipe = Recipe(sharding=sharding, offload=offload, fragmentation=0)
    found = estimate(find_model("llama-3.1-8b"), recipe, Layout(dp=8))
    for each in (*found.terms, *found.host):
        assert 0 <= each.least <= each.expected <= each.most, each


def test_a_cpu_has_no_context() -> None:
    names = {each.name for each in estimate(GPT, Recipe(), target=load_target("cpu-x86-64")).terms}
    assert "device context" not in names
    assert "device context" in {each.name for each in estimate(GPT, Recipe()).terms}


def test_recomputing_more_keeps_less() -> None:
    kept = [
        estimate(GPT, Recipe(fused=False, recompute=word)).of("activations").expected
        for word in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 3


def test_a_forward_alone_has_no_gradients() -> None:
    found = estimate(GPT, Recipe(training=False, kv_tokens=1000))
    names = {each.name for each in found.terms}
    assert {"parameters", "KV cache", "activations"} <= names
    assert not names & {"gradients", "optimiser state", "logits and loss"}


def test_fitting_says_what_is_sure() -> None:
    found = estimate(GPT, Recipe())
    assert found.fits(found.most) is Fit.YES
    assert found.fits(found.most - 1) is Fit.MAYBE
    assert found.fits(found.least - 1) is Fit.NO
    assert found.phase in Phase


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "fp23"},
        {"optimizer": "adma"},
        {"sharding": "zero4"},
        {"recompute": "some"},
        {"offload": "disk"},
        {"micro_batch": 0},
        {"fragmentation": 1.0},
        {"kv_tokens": -1},
        {"kv_tokens": 1 << 70},
        {"sequence": 1 << 70},
    ],
)
def test_a_wrong_recipe_is_one_line(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError) as caught:
        replace(Recipe(), **wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"tp": 0}, {"schedule": "2f2b"}, {"chunks": 2}, {"schedule": "interleaved"}]
)
def test_a_wrong_layout_is_one_line(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError) as caught:
        Layout(**wrong)
    assert "\n" not in str(caught.value)


def test_frozen_weights_have_no_states() -> None:
    names = {each.name for each in estimate(GPT, Recipe(frozen=True), Layout(dp=4)).terms}
    assert "parameters" in names
    assert not names & {"gradients", "optimiser state", "master weights", "gradient buckets"}


@pytest.mark.parametrize(
    ("precision", "optimizer", "published"),
    [
        # Megatron-LM, docs of the distributed optimizer: fp32 parameters and gradients; bf16 and
        # fp32; bf16 and bf16. fp8 changes what is multiplied alone
        ("fp32", "adam", 16),
        ("mixed-bf16-fp32-grads", "adam", 18),
        ("mixed-fp8", "adam", 18),
        # arXiv:1910.02054, section 3.1: 2 + 2 + K, with K of 12
        ("mixed-bf16", "adam", 16),
        # autocast keeps what fp32 keeps
        ("autocast-bf16", "adam", 16),
        ("autocast-fp8", "adam", 16),
        # all four in 2 bytes
        ("bf16", "adam-bf16", 8),
        # arXiv:2110.02861: two moments of a byte, and a float32 for each block of 256 of each
        ("fp32", "adam-8bit", 8 + 2 + 2 * 4 / 256),
        ("fp32", "momentum", 12),
        ("fp32", "sgd", 8),
    ],
)
def test_a_parameter_has_the_bytes_that_were_published(
    precision: str, optimizer: str, published: float
) -> None:
    found = PRECISIONS[precision]
    state = OPTIMIZERS[optimizer][0]
    assert found.weight + found.gradient + found.master + state == published
    # what forward reads has the bytes of its format, and a master copy is of float32
    assert found.weight == (2 if found.master or precision == "bf16" else 4)
    assert found.master in (0, 4)


def test_temporary_bytes_are_of_the_format_that_is_multiplied() -> None:
    assert {*PRECISIONS} == {"fp32", "bf16", "autocast-bf16", "mixed-bf16",
                             "mixed-bf16-fp32-grads", "mixed-fp8", "autocast-fp8"}  # fmt: skip
    for name, each in PRECISIONS.items():
        assert each.name == name
        assert each.matrix == name.removeprefix("autocast-").removeprefix("mixed-")[:4].rstrip("-")
        assert each.activation == (4 if name == "fp32" else 2), "no activation is kept in fp8"
        assert each.gathered == each.activation, "parameters are gathered in what is computed in"
        # autocast keeps a copy in bf16; fp8 products read a byte of a weight and of its transpose
        assert each.cast == (2 if "autocast" in name or "fp8" in name else 0)
