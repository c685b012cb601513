"""Models from public configurations, against published counts and counts by hand of shapes.

The sizes are those of the ``config.json`` on each model's page at huggingface.co.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from portagpu.train.planning import Layout, Model, Recipe, estimate, kv_cache, read_model
from portagpu.train.planning.cluster import forward_flops
from portagpu.train.planning.configurations import DECODERS
from portagpu.train.planning.recipe import stages
from portagpu.train.planning.states import share

# hidden, layers, heads, key heads, inner, vocabulary
NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size")  # fmt: skip


def config(kind: str, *sizes: int, **more: Any) -> dict[str, Any]:
    """The values that count of a model's file."""
    return {"model_type": kind, **dict(zip(NAMES, sizes, strict=True)), **more}


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V3 = config(
    *("deepseek_v3", 7168, 61, 128, 128, 18432, 129280),
    **LATENT,
    q_lora_rank=1536,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=3,
)
V2_LITE = config(
    *("deepseek_v2", 2048, 27, 16, 16, 10944, 102400),
    **LATENT,
    q_lora_rank=None,
    moe_intermediate_size=1408,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    first_k_dense_replace=1,
)
OSS = {"head_dim": 64, "num_experts_per_tok": 4, "sliding_window": 128}
LLAMA4 = {"head_dim": 128, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}
GEMMA3_27B = config(
    *("gemma3_text", 5376, 62, 32, 16, 21504, 262144),
    head_dim=128,
    sliding_window=1024,
    sliding_window_pattern=6,
)

EXACT = [
    # number of parameters in the safetensors of each model's page
    (config("gemma2", 2304, 26, 8, 4, 9216, 256000, head_dim=256), 2_614_341_888),
    (config("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256), 9_241_705_984),
    (config("gemma2", 4608, 46, 32, 16, 36864, 256000, head_dim=128), 27_227_128_320),
    (config("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256), 999_885_952),
    (config("gpt_oss", 2880, 24, 64, 8, 2880, 201088, num_local_experts=32, **OSS),
     20_914_757_184),
    (config("gpt_oss", 2880, 36, 64, 8, 2880, 201088, num_local_experts=128, **OSS),
     116_829_156_672),
    (config("qwen2", 3584, 28, 28, 4, 18944, 152064), 7_615_616_512),
    (config("qwen2", 2048, 24, 16, 16, 5504, 151936), 1_836_828_672),
    (config("qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128), 8_190_735_360),
    (config("qwen2_moe", 2048, 24, 16, 16, 5632, 151936, moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632, num_experts=60, num_experts_per_tok=4),
     14_315_784_192),
    (config("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, moe_intermediate_size=768,
            num_experts=128, num_experts_per_tok=8), 30_532_122_624),
    (V2_LITE, 15_706_484_224),
    (config("falcon", 4544, 32, 71, 71, 18176, 65024), 6_921_720_704),
    (config("phi", 2048, 24, 32, 32, 8192, 51200), 1_418_270_720),
    (config("phi", 2560, 32, 32, 32, 10240, 51200), 2_779_683_840),
    (config("gpt_neox", 4096, 32, 32, 32, 16384, 50432), 6_857_302_016),
    (config("llama", 3072, 28, 24, 8, 8192, 128256, head_dim=128, tie_word_embeddings=True),
     3_212_749_824),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "parameters"), EXACT)
def test_a_model_has_its_published_parameters(sizes: dict[str, Any], parameters: int) -> None:
    assert Model.from_config(sizes).parameters == parameters


@pytest.mark.parametrize(
    ("sizes", "billions", "active"),
    [
        # arXiv:2412.19437: 671B, of which 37B are active
        (V3, 671, 37),
        # arXiv:2405.04434, appendix B: 15.7B, 2.4B
        (V2_LITE, 15.7, 2.4),
        # gpt-oss model card, table 1: 20.91B and 3.61B, 116.83B and 5.13B
        (EXACT[4][0], 20.91, 3.61),
        (EXACT[5][0], 116.83, 5.13),
        # qwenlm.github.io, Qwen1.5-MoE: 14.3B, and 2.7B with the look-up of 0.31B
        (EXACT[9][0], 14.3, 2.7 - 0.31),
        # arXiv:2407.10671: 57B and 14B
        (
            config("qwen2_moe", 3584, 28, 28, 4, 18944, 151936, moe_intermediate_size=2560,
                   shared_expert_intermediate_size=20480, num_experts=64, num_experts_per_tok=8),
            57.4,
            14,
        ),
        # ai.meta.com, Llama 4: 109B and 17B, 400B and 17B
        (config("llama4_text", 5120, 48, 40, 8, 8192, 202048, num_local_experts=16, **LLAMA4),
         109, 17),
        (config("llama4_text", 5120, 48, 40, 8, 8192, 202048, num_local_experts=128,
                interleave_moe_layer_step=2, **LLAMA4), 400, 17),
    ],
)  # fmt: skip
def test_a_model_has_about_the_parameters_of_its_paper(
    sizes: dict[str, Any], billions: float, active: float
) -> None:
    found = Model.from_config(sizes)
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.015)
    assert found.active_parameters / 1e9 == pytest.approx(active, rel=0.08)


def test_gemma_3_has_the_parameters_of_its_report() -> None:
    """arXiv:2503.19786, table 1, in millions: embedding, and the rest of the text's part."""
    four = config("gemma3_text", 2560, 34, 8, 4, 10240, 262144, head_dim=256)
    twelve = config("gemma3_text", 3840, 48, 16, 8, 15360, 262144, head_dim=256)
    for sizes, embedding, rest in (
        (four, 671, 3209), (twelve, 1007, 10759), (GEMMA3_27B, 1409, 25600)
    ):  # fmt: skip
        found = Model.from_config(sizes)
        assert found.embedding_parameters / 1e6 == pytest.approx(embedding, abs=1)
        assert found.parameters - found.embedding_parameters == pytest.approx(rest * 1e6, rel=5e-4)


def test_deepseek_v3_by_its_tensors() -> None:
    """Each tensor of the published index, by its shape."""
    attention = (1536 * 7168 + 1536 + 128 * 192 * 1536 + 576 * 7168 + 512
                 + 128 * 256 * 512 + 7168 * 128 * 128)  # fmt: skip
    expert = 3 * 7168 * 2048
    layers = 61 * (attention + 2 * 7168) + 3 * 3 * 7168 * 18432 + 58 * (257 * expert + 256 * 7168)
    assert Model.from_config(V3).parameters == 2 * 129280 * 7168 + 7168 + layers


def test_falcon_40b_by_its_tensors() -> None:
    """Two norms read one input, and 8 key heads of 64 stand next to 128 queries."""
    sizes = config("falcon", 8192, 60, 128, 128, 32768, 65024, num_kv_heads=8,
                   new_decoder_architecture=True)  # fmt: skip
    layer = (128 + 16) * 64 * 8192 + 8192 * 8192 + 2 * 4 * 8192 * 8192 + 4 * 8192
    found = Model.from_config(sizes)
    assert found.parameters == 65024 * 8192 + 60 * layer + 2 * 8192
    assert found.parameters / 1e9 == pytest.approx(41.3, rel=0.01)
    assert (found.parallel, found.norms, found.kv_heads) == (True, 2, 8)


@pytest.mark.parametrize(
    ("sizes", "token"),
    [
        # arXiv:2505.09343, table 1, in bytes of 16-bit numbers
        (V3, 70_272),
        (config("qwen2", 8192, 80, 64, 8, 29568, 152064), 327_680),
        # one key head of 64
        (config("falcon", 4544, 32, 71, 71, 18176, 65024), 2 * 32 * 64 * 2),
    ],
)
def test_the_bytes_of_a_cached_token(sizes: dict[str, Any], token: int) -> None:
    found = Model.from_config(sizes)
    assert kv_cache(found, Recipe(kv_tokens=1), Layout()).expected == token


def test_a_latent_cache_is_whole_on_every_tensor_parallel_rank() -> None:
    found = Model.from_config(V3)
    assert kv_cache(found, Recipe(kv_tokens=1), Layout(tp=8)).expected == 70_272


def test_a_window_bounds_the_cache_of_its_layers() -> None:
    """Gemma 3 27B: 52 of 62 layers keep 1,024 tokens of each sequence, at most all."""
    found = Model.from_config(GEMMA3_27B)
    assert len(found.windowed_layers) == 52
    assert {*range(62)} - {*found.windowed_layers} == {5, 11, 17, 23, 29, 35, 41, 47, 53, 59}
    each = 2 * 16 * 128 * 2
    cache = kv_cache(found, Recipe(sequence=32768, kv_tokens=4 * 32768), Layout())
    assert cache.expected == 4 * each * (10 * 32768 + 52 * 1024)
    assert cache.most == 4 * each * 62 * 32768
    # sequences that are shorter than the window
    short = kv_cache(found, Recipe(sequence=512, kv_tokens=512), Layout())
    assert short.expected == short.most == each * 62 * 512


def test_windows_make_attention_cheaper() -> None:
    found = Model.from_config(GEMMA3_27B)
    by_hand = 4 * 32 * 128 * (10 * 32768 + 52 * 1024) / 62
    assert forward_flops(found, 32768).attention == pytest.approx(by_hand)


def test_latent_heads_multiply_by_their_own_sizes() -> None:
    """Scores are of 192 numbers, their sum of 128."""
    assert forward_flops(Model.from_config(V3), 4096).attention == 2 * 128 * (192 + 128) * 4096


def test_plain_layers_are_where_the_model_has_them() -> None:
    """DeepSeek-V3's first three, on the first stage; every other one of Llama 4 Maverick."""
    found = Model.from_config(V3)
    layout = Layout(pp=4, micro_batches=4)
    every = stages(found, layout)
    assert [each.plain for each in every] == [3, 0, 0, 0]
    parts = [share(found, layout, each) for each in every]
    assert sum(each.all for each in parts) == found.parameters
    maverick = Model.from_config(
        config("llama4_text", 5120, 48, 40, 8, 8192, 202048, num_local_experts=128,
               interleave_moe_layer_step=2, **LLAMA4)
    )  # fmt: skip
    assert maverick.plain_layers == tuple(range(0, 48, 2))
    chunks = Layout(pp=2, micro_batches=4, schedule="interleaved", chunks=2)
    assert [each.plain for each in stages(maverick, chunks)] == [12, 12]


def test_adapters_are_those_that_litgpt_counts() -> None:
    """litgpt, tutorials/resource-tables.md: trained parameters of rank 8 on queries and values."""
    falcon = config("falcon", 8192, 60, 128, 128, 32768, 65024, num_kv_heads=8,
                    new_decoder_architecture=True)  # fmt: skip
    for sizes, trained in (
        (config("phi", 2048, 24, 32, 32, 8192, 51200), 1_572_864),
        (config("llama", 4096, 32, 32, 32, 11008, 32000), 4_194_304),
        (config("llama", 5120, 40, 40, 40, 13824, 32000), 6_553_600),
        (falcon, 12_042_240),
    ):
        found = Model.from_config(sizes)
        assert found.adapter_parameters(8, "queries-values") == trained


def test_adapters_of_latent_attention_and_of_experts() -> None:
    """Those of attention have five products; experts that tokens choose from have none."""
    found = Model.from_config(V3)
    attention = (7168 + 1536) + (1536 + 24576) + (7168 + 576) + (512 + 32768) + (16384 + 7168)
    assert found.adapter_parameters(16, "attention") == 16 * 61 * attention
    plain, shared = 3 * (7168 + 18432), 3 * (7168 + 2048)
    assert found.adapter_parameters(16, "all") == 16 * (61 * attention + 3 * plain + 58 * shared)
    with pytest.raises(ValueError, match="adapt attention or all"):
        found.adapter_parameters(16, "queries-values")


def test_lora_trains_its_adapters_alone() -> None:
    model = Model.from_config(config("llama", 4096, 32, 32, 32, 11008, 32000))
    recipe = Recipe(frozen=True, lora_rank=8, adapted="queries-values")
    found = estimate(model, recipe)
    # weight, gradient, master weight and two moments
    assert found.of("adapters and their states").expected == 4_194_304 * (2 + 2 + 4 + 8)
    shared = estimate(model, Recipe(frozen=True, lora_rank=8, sharding="fsdp2"), Layout(dp=8))
    whole = estimate(model, Recipe(frozen=True, lora_rank=8))
    name = "adapters and their states"
    assert shared.of(name).expected == whole.of(name).expected / 8
    with pytest.raises(ValueError, match="frozen weights alone"):
        Recipe(lora_rank=8)


def test_frozen_products_keep_no_inputs_of_their_own() -> None:
    """The MLP's last product keeps its input only for the gradient of its weight."""
    model = Model.from_config(config("llama", 4096, 32, 32, 32, 11008, 32000))
    tokens = 2048 * 2 * 32
    frozen = estimate(model, Recipe(frozen=True)).of("activations")
    trained = estimate(model, Recipe()).of("activations")
    assert trained.expected - frozen.expected == tokens * 11008
    assert frozen.most == trained.expected
    adapted = estimate(model, Recipe(frozen=True, lora_rank=8)).of("activations")
    assert adapted.expected == trained.expected


def test_a_parallel_block_keeps_one_input_for_both() -> None:
    """A block with one norm keeps its input and the normed one; a usual one keeps both twice."""
    sizes = config("gpt_neox", 1024, 4, 8, 8, 4096, 1000)
    recipe = Recipe(sequence=128)
    one = 128 * 1024 * 2
    usual = estimate(Model.from_config(sizes | {"use_parallel_residual": False}), recipe)
    two_norms = estimate(Model.from_config(sizes), recipe)
    phi = estimate(Model.from_config(sizes | {"model_type": "phi"}), recipe)
    kept = [each.of("activations").expected / 4 / one for each in (usual, two_norms, phi)]
    assert kept[0] - kept[1] == pytest.approx(1)
    assert kept[1] - kept[2] == pytest.approx(1)


def test_norms_of_results_keep_their_inputs() -> None:
    sizes = config("gemma2", 1024, 4, 8, 8, 4096, 1000, head_dim=128)
    recipe = Recipe(sequence=128)
    gemma2 = estimate(Model.from_config(sizes), recipe).of("activations")
    gemma = estimate(Model.from_config(sizes | {"model_type": "gemma"}), recipe).of("activations")
    assert gemma2.expected - gemma.expected == 4 * 2 * 128 * 1024 * 2


def test_a_model_with_pictures_is_read_by_its_text() -> None:
    """Gemma 3 4B's file leaves out what is usual for the type."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024, "model_type": "gemma3_text"}  # fmt: skip
    found = read_model(json.dumps({"model_type": "gemma3", "text_config": text}), "gemma-3-4b")
    assert (found.heads, found.kv_heads, found.head_size) == (8, 4, 256)
    assert found.vocabulary == 262_208
    assert found.tied


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["full_attention"]}, "one name for each of 26 layers"),
        ({"sliding_window": "wide"}, "sliding_window"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
    ],
)
def test_a_wrong_value_is_one_line(change: dict[str, Any], said: str) -> None:
    sizes = config("gemma2", 2304, 26, 8, 4, 9216, 256000, head_dim=256)
    with pytest.raises(ValueError, match=said) as caught:
        read_model(json.dumps(sizes | change), "config.json")
    assert "\n" not in str(caught.value)


def test_layers_that_a_file_names_are_the_windowed_ones() -> None:
    named = ["sliding_attention", "full_attention", "full_attention"] * 8
    sizes = config("gpt_oss", 2880, 24, 64, 8, 2880, 201088, num_local_experts=32, **OSS)
    found = Model.from_config(sizes | {"layer_types": named})
    assert found.windowed_layers == tuple(range(0, 24, 3))


def test_every_type_is_listed() -> None:
    with pytest.raises(ValueError, match="no closed form") as caught:
        Model.from_config({"model_type": "mamba2"})
    for kind in DECODERS:
        assert kind in str(caught.value)
