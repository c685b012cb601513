"""Estimates of memory against published numbers: ``python -m tests.benchmarks.plan_published``.

It prints the table of docs/planning.md. A number is one of three: what torch's allocator had given
out (allocated), what it held (reserved), or all that the device says is used. An error is
``estimate / published - 1``. Numbers of states alone and of a cached token follow from the
definitions of the papers, and are shown apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from portagpu.train.planning import Estimate, Layout, Model, Recipe, estimate, find_model, kv_cache
from portagpu.train.planning.states import Share, state_terms
from tests.support.published_memory import TITAN_ROWS

GB: Final = 10**9
MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True)
class Row:
    """A published peak in bytes, and what is counted in it."""

    source: str
    name: str
    model: Model
    recipe: dict[str, Any]
    layout: dict[str, Any]
    published: float
    counted: str

    @property
    def found(self) -> Estimate:
        """The estimate."""
        return estimate(self.model, Recipe(**self.recipe), Layout(**self.layout))

    @property
    def expected(self) -> float:
        """Expected bytes of what is counted."""
        outside: tuple[str, ...] = ("device context", "collective library")
        if self.counted == "allocated":
            outside += ("fragmentation and rounding",)
        found = self.found
        terms = () if self.counted == "used" else [found.of(name) for name in outside]
        return found.expected - sum(each.expected for each in terms if each is not None)

    @property
    def error(self) -> float:
        """As a share of what was published."""
        return self.expected / self.published - 1


def model_of(kind: str, name: str, **config: Any) -> Model:
    """The model of a public configuration."""
    return Model.from_config({"model_type": kind, **config}, name)


NANOTRON_1B: Final = model_of(
    *("llama", "llama-1B"),
    hidden_size=2048,
    intermediate_size=4096,
    num_attention_heads=32,
    num_hidden_layers=24,
    vocab_size=50257,
    tie_word_embeddings=True,
)
"""huggingface/bench_cluster, bench_cluster/create_configs.py and template/base_config.py."""
_NANOTRON: Final = (
    # dp, tp, pp, micro-batch, peak_allocated_MiB of the second step
    (16, 4, 1, 4, 13153.25),
    (16, 4, 1, 2, 7519.63),
    (2, 4, 1, 8, 25808.34),
    (1, 8, 1, 32, 60095.72),
    (4, 2, 1, 8, 43650.72),
    (1, 8, 2, 8, 16549.94),
    (1, 4, 2, 8, 25707.36),
    (2, 2, 2, 1, 8570.26),
    (1, 1, 8, 4, 44034.23),
)
"""huggingface.co/nanotron/old_bench, llama-1B/*_GPUS/dp-*_tp-*_pp-*_mbz-*/log_metrics.csv: 1,024
sequences of 4,096 tokens a step."""
PHI: Final = model_of(
    *("phi", "phi-1.5"),
    hidden_size=2048,
    num_hidden_layers=24,
    num_attention_heads=32,
    intermediate_size=8192,
    vocab_size=51200,
)
STABLELM: Final = model_of(
    *("gpt_neox", "stablelm-alpha-3b"),
    hidden_size=4096,
    num_hidden_layers=16,
    num_attention_heads=32,
    intermediate_size=16384,
    vocab_size=50688,
)
_LITGPT: Final = (
    # model, sequences, tokens, GB
    (PHI, 1, 1044, 4.82),
    (PHI, 2, 1044, 6.76),
    (PHI, 4, 1044, 10.68),
    (STABLELM, 1, 1034, 9.69),
    (STABLELM, 2, 1034, 12.10),
    (STABLELM, 4, 1034, 16.92),
    (find_model("llama-2-7b"), 1, 1304, 21.30),
    (find_model("llama-2-7b"), 2, 1304, 29.07),
    (find_model("llama-2-13b"), 1, 1304, 38.12),
)
"""Lightning-AI/litgpt, tutorials/resource-tables.md: LoRA of rank 8 on queries and values
with dropout (finetune/lora.py), every tensor in 16 bits."""
_QWEN: Final = tuple(
    model_of(
        *("qwen2", name),
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
    )
    for name, hidden, inner, heads, layers, vocabulary in (
        ("Qwen-1.8B", 2048, 5504, 16, 24, 151936),
        ("Qwen-7B", 4096, 11008, 32, 32, 151936),
        ("Qwen-14B", 5120, 13696, 40, 40, 152064),
    )
)
_QWEN_GB: Final = (
    (6.7, 7.4, 8.4, 11.0, 16.2, 21.8),
    (20.1, 20.4, 21.5, 23.8, 29.7, 36.6),
    (34.6, 35.1, 35.3, 37.4, 42.5, 55.2),
)
"""QwenLM/Qwen, README.md, "Profiling of Memory and Speed": LoRA of rank 64 on one A100, one
sequence of 256 to 8,192 tokens, layers recomputed (finetune.py, finetune_lora_single_gpu.sh)."""
LLAMA_3B: Final = model_of(
    *("llama", "Llama 3.2 3B"),
    hidden_size=3072,
    intermediate_size=8192,
    num_attention_heads=24,
    num_key_value_heads=8,
    num_hidden_layers=28,
    head_dim=128,
    vocab_size=128256,
    tie_word_embeddings=True,
)
_TUNE: Final = (
    ("packed", {}, 60.0),
    ("compiled", {"fused_loss": True}, 51.0),
    ("loss in chunks", {"fused_loss": True}, 42.9),
    ("layers recomputed", {"fused_loss": True, "recompute": "full"}, 24.9),
)
"""pytorch/torchtune, README.md, "Optimization flags": 2 sequences of 4,096 tokens on one A100,
every tensor in bfloat16, GiB."""

ROWS: Final = (
    *(
        Row("torchtitan", name, find_model(model), recipe, layout, peak * GIB, "reserved")
        for name, model, recipe, layout, peak in TITAN_ROWS
    ),
    *(
        Row(
            "nanotron",
            f"dp {dp}, tp {tp}, pp {pp}, {micro} sequences",
            NANOTRON_1B,
            {"micro_batch": micro, "sequence": 4096, "precision": "mixed-bf16-fp32-grads",
             "sharding": "zero1", "foreach": False, "keep_gathered": True},
            {"dp": dp, "tp": tp, "pp": pp, "sequence_parallel": tp > 1,
             "micro_batches": 1024 // dp // micro},
            peak * MIB,
            "allocated",
        )
        for dp, tp, pp, micro, peak in _NANOTRON
    ),
    *(
        Row(
            "litgpt, LoRA",
            f"{model.name}, {count} of {tokens} tokens",
            model,
            {"micro_batch": count, "sequence": tokens, "precision": "bf16", "frozen": True,
             "optimizer": "adam-bf16", "lora_rank": 8, "adapted": "queries-values",
             "lora_dropout": True, "foreach": False},
            {},
            peak * GB,
            "allocated",
        )
        for model, count, tokens, peak in _LITGPT
    ),
    *(
        Row(
            "Qwen, LoRA",
            f"{model.name}, {tokens} tokens",
            model,
            {"sequence": tokens, "precision": "mixed-bf16", "frozen": True, "lora_rank": 64,
             "recompute": "full", "foreach": False},
            {},
            peak * GB,
            "used",
        )
        for model, peaks in zip(_QWEN, _QWEN_GB, strict=True)
        for tokens, peak in zip((256, 512, 1024, 2048, 4096, 8192), peaks, strict=True)
    ),
    *(
        Row(
            "torchtune",
            f"{LLAMA_3B.name}, {name}",
            LLAMA_3B,
            {"micro_batch": 2, "sequence": 4096, "precision": "bf16", "optimizer": "adam-bf16",
             "foreach": False, **more},
            {},
            peak * GIB,
            "allocated",
        )
        for name, more, peak in _TUNE
    ),
)  # fmt: skip


def _paper(sharding: str) -> float:
    """Bytes of states of 7.5 billion parameters on 64 ranks."""
    part = Share(dense=7.5e9, experts=0, layer=1e8, outside=1e8, dense_ranks=64, expert_ranks=64)
    recipe = Recipe(precision="mixed-bf16", sharding=sharding, foreach=False)
    return sum(term.expected for term, _ in state_terms(part, recipe, Layout(dp=64)))


def _token(model: Model) -> float:
    return kv_cache(model, Recipe(kv_tokens=1), Layout()).expected


DEFINED: Final = (
    ("ZeRO paper, figure 1, GB: no sharding", 120.0, _paper("ddp") / GB),
    ("stage 1", 31.4, _paper("zero1") / GB),
    ("stage 2", 16.6, _paper("zero2") / GB),
    ("stage 3", 1.88, _paper("zero3") / GB),
    (
        "KB of a cached token (arXiv:2505.09343, table 1): DeepSeek-V3",
        70.272,
        _token(
            model_of(
                *("deepseek_v3", "DeepSeek-V3"),
                hidden_size=7168,
                num_hidden_layers=61,
                num_attention_heads=128,
                q_lora_rank=1536,
                kv_lora_rank=512,
                qk_nope_head_dim=128,
                qk_rope_head_dim=64,
                v_head_dim=128,
                intermediate_size=18432,
                moe_intermediate_size=2048,
                n_routed_experts=256,
                n_shared_experts=1,
                num_experts_per_tok=8,
                first_k_dense_replace=3,
                vocab_size=129280,
            )
        )
        / 1000,
    ),
    ("Llama-3.1 405B", 516.096, _token(find_model("llama-3.1-405b")) / 1000),
    (
        "Qwen-2.5 72B",
        327.680,
        _token(
            model_of(
                *("qwen2", "Qwen2.5-72B"),
                hidden_size=8192,
                intermediate_size=29568,
                num_attention_heads=64,
                num_key_value_heads=8,
                num_hidden_layers=80,
                vocab_size=152064,
            )
        )
        / 1000,
    ),
)
"""Name, published, computed: what the definitions of papers give."""


def main() -> None:
    """Print the tables in Markdown."""
    print("| source | run | published | expected | error |\n|---|---|---|---|---|")
    for row in ROWS:
        unit, size = (GB, "GB") if row.source.endswith("LoRA") else (GIB, "GiB")
        shown = f"{row.published / unit:.1f} {size} | {row.expected / unit:.1f}"
        print(f"| {row.source} | {row.name} | {shown} | {row.error:+.0%} |")
    for source in dict.fromkeys(row.source for row in ROWS):
        off = [abs(row.error) for row in ROWS if row.source == source]
        print(f"{source}: {len(off)}, median {median(off):.1%}, most {max(off):.1%}")
    off = [abs(row.error) for row in ROWS]
    print(f"all: {len(off)}, median {median(off):.1%}, most {max(off):.1%}")
    for name, published, computed in DEFINED:
        print(f"{name}: {published:g}, computed {computed:g}, {computed / published - 1:+.1%}")
    defined = [abs(computed / published - 1) for _, published, computed in DEFINED]
    print(f"with definitions: {len(off) + len(defined)}, median {median([*off, *defined]):.1%}")


if __name__ == "__main__":
    main()
