"""Plans in the words of the tools that run them; their own parsers read them where installed."""

from __future__ import annotations

import argparse
from dataclasses import field, make_dataclass
from typing import Any

import pytest

from portagpu.cli import main
from portagpu.facts.targets import load_target
from portagpu.train.planning import Layout, Plan, Recipe, cluster_of, find_model, plan
from portagpu.train.planning.recipe import layers_of_parts
from portagpu.train.planning.settings import (
    deepspeed_config,
    megatron_arguments,
    torchtitan_arguments,
)

MODEL = find_model("llama-3.1-8b")
MIXTRAL = find_model("mixtral-8x7b")


def planned(layout: Layout, model: Any = MODEL, **recipe: Any) -> Plan:
    """The plan of one layout, whatever its memory."""
    cluster = cluster_of(load_target("nvidia-h100-sxm"), layout.world, nic_gbs=50.0, memory=1 << 50)
    found = Recipe(sequence=4096, **recipe)
    batch = found.micro_batch * layout.micro_batches * layout.dp
    plans = plan(
        model,
        cluster,
        found,
        batch=batch,
        strategy=layout,
        micro_batches=(found.micro_batch,),
        recomputes=(found.recompute,),
    )
    return plans.best


def values(words: list[str]) -> dict[str, str]:
    return {
        word.removeprefix("--"): after
        for word, after in zip(words, [*words[1:], ""], strict=True)
        if word.startswith("--") and not after.startswith("--")
    }


BIG = find_model("llama-3.1-405b")
UNEVEN = Layout(tp=8, pp=8, dp=1, micro_batches=8, sequence_parallel=True)
PIPELINE = Layout(
    tp=2, pp=2, dp=4, micro_batches=8, sequence_parallel=True, schedule="interleaved", chunks=2
)


def test_torchtitan_gets_the_layout() -> None:
    words = torchtitan_arguments(MODEL, planned(PIPELINE, sharding="fsdp2"))
    found = values(words)
    assert found["training.local_batch_size"] == "8"
    assert found["training.global_batch_size"] == "32"
    assert found["parallelism.data_parallel_shard_degree"] == "4"
    assert found["parallelism.pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert found["parallelism.pipeline_parallel_layers_per_stage"] == "8"
    assert "--parallelism.enable_sequence_parallel" in words


def test_torchtitan_s_own_classes_take_the_words() -> None:
    tyro = pytest.importorskip("tyro")
    configs = pytest.importorskip("torchtitan.config.configs")
    sections = {"training": configs.TrainingConfig, "parallelism": configs.ParallelismConfig}
    both = make_dataclass(
        "Both", [(name, kind, field(default_factory=kind)) for name, kind in sections.items()]
    )
    for each in (
        planned(PIPELINE, sharding="fsdp2"),
        planned(Layout(dp=8), sharding="fsdp2", offload="parameters"),
        planned(Layout(dp=8), sharding="ddp", precision="fp32"),
        planned(UNEVEN, BIG, sharding="fsdp2"),
    ):
        read = tyro.cli(both, args=torchtitan_arguments(MODEL, each))
        assert read.parallelism.tensor_parallel_degree == each.layout.tp
        assert read.parallelism.pipeline_parallel_degree == each.layout.pp
        assert read.training.seq_len == 4096
        assert read.training.enable_cpu_offload == (each.recipe.offload == "parameters")


def test_stages_that_differ_are_reported() -> None:
    """126 layers on 8 stages: 15, six times 16, and 15."""
    found = values(torchtitan_arguments(BIG, planned(UNEVEN, BIG, sharding="fsdp2")))
    assert found["parallelism.pipeline_parallel_layers_per_stage"] == "16"
    assert found["parallelism.pipeline_parallel_last_stage_less_layers"] == "1"
    found = values(megatron_arguments(BIG, planned(UNEVEN, BIG, sharding="ddp")))
    assert found["decoder-first-pipeline-num-layers"] == "15"
    assert found["decoder-last-pipeline-num-layers"] == "15"


def test_torchtitan_s_own_split_is_the_planned_one() -> None:
    pipeline = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
    for layers, parts in ((126, 8), (126, 16), (7, 3), (5, 2), (33, 4)):
        split = pipeline._generate_llm_fqn_per_model_part(parts, layers, 1, 1)
        counts = tuple(sum(name.startswith("layers.") for name in each) for each in split)
        assert counts == layers_of_parts(layers, parts)


@pytest.mark.parametrize(
    ("recipe", "stage"), [({"sharding": "zero1"}, 1), ({"sharding": "zero3"}, 3)]
)
def test_deepspeed_gets_the_stage_and_the_batch(recipe: dict[str, Any], stage: int) -> None:
    found = deepspeed_config(MODEL, planned(Layout(dp=8, micro_batches=4), **recipe))
    assert found["train_batch_size"] == 32
    assert found["zero_optimization"] == {"stage": stage}
    assert found["bf16"] == {"enabled": True}
    assert not found["torch_autocast"]["enabled"]


def test_deepspeed_s_own_parser_takes_the_configuration() -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    offload = {"sharding": "zero3", "offload": "parameters", "precision": "autocast-bf16"}
    # the parser divides by the world that it runs in, which is one rank
    found = deepspeed_config(MODEL, planned(Layout(dp=1, micro_batches=4), **offload))
    read = config.DeepSpeedConfig(found)
    assert read.zero_optimization_stage == 3
    assert read.gradient_accumulation_steps == 4
    assert read.zero_config.offload_param.device == "cpu"
    assert read.torch_autocast_enabled
    assert str(read.torch_autocast_dtype) == "torch.bfloat16"


def test_megatron_gets_the_layout_and_the_model() -> None:
    layout = Layout(tp=2, pp=2, dp=4, ep=4, micro_batches=8, sequence_parallel=True)
    words = megatron_arguments(
        MIXTRAL, planned(layout, MIXTRAL, sharding="zero1", recompute="full")
    )
    found = values(words)
    assert found["tensor-model-parallel-size"] == "2"
    assert found["expert-model-parallel-size"] == "4"
    assert found["num-query-groups"] == "8"
    assert found["global-batch-size"] == "32"
    assert {"--swiglu", "--use-distributed-optimizer", "--sequence-parallel"} <= {*words}


def test_megatron_s_own_parser_takes_the_words() -> None:
    arguments = pytest.importorskip("megatron.training.arguments", exc_type=ImportError)
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    layout = Layout(tp=2, pp=2, dp=4, ep=4, micro_batches=8, sequence_parallel=True)
    for each, model in (
        (planned(layout, MIXTRAL, sharding="zero1", recompute="full"), MIXTRAL),
        (planned(PIPELINE, sharding="zero1", precision="mixed-fp8"), MODEL),
        (planned(UNEVEN, BIG, sharding="ddp"), BIG),
    ):
        read = parser.parse_args(megatron_arguments(model, each))
        assert read.tensor_model_parallel_size == each.layout.tp
        assert read.num_layers == model.layers
        assert read.global_batch_size == each.layout.micro_batches * each.layout.dp
    assert read.decoder_first_pipeline_num_layers == 15


@pytest.mark.parametrize(
    ("make", "layout", "recipe"),
    [
        (torchtitan_arguments, Layout(dp=8), {"sharding": "zero2"}),
        (torchtitan_arguments, Layout(dp=8), {"sharding": "fsdp2", "offload": "optimizer"}),
        (deepspeed_config, Layout(dp=8), {"sharding": "fsdp2"}),
        (deepspeed_config, Layout(tp=2, dp=4), {"sharding": "zero1"}),
        (deepspeed_config, Layout(dp=8), {"sharding": "zero2", "offload": "parameters"}),
        (megatron_arguments, Layout(dp=8), {"sharding": "fsdp2"}),
        (megatron_arguments, Layout(dp=8), {"sharding": "ddp", "recompute": "operators"}),
        # 32 layers on 6 stages: 5, 6, 6, 6, 5 and 4
        (megatron_arguments, Layout(pp=6, micro_batches=6), {"sharding": "ddp"}),
        (torchtitan_arguments, Layout(pp=24, micro_batches=24), {"sharding": "fsdp2"}),
    ],
)
def test_what_a_tool_cannot_do_is_one_line(make: Any, layout: Layout, recipe: Any) -> None:
    with pytest.raises(ValueError) as caught:
        make(MODEL, planned(layout, **recipe))
    assert "\n" not in str(caught.value)


def test_the_command_prints_settings(capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--model", "llama-2-7b", "--batch", "8"]
    asked += ["--target", "nvidia-h100-sxm", "--ranks", "8"]
    assert main([*asked, "--settings", "torchtitan"]) == 0
    assert "--parallelism.tensor_parallel_degree" in capfd.readouterr().out
    assert main([*asked, "--settings", "deepspeed"]) == 2
    assert "DeepSpeed has no fsdp2" in capfd.readouterr().err


def test_megatron_is_not_asked_for_more_tokens_than_positions() -> None:
    """Its arguments are refused where max-position-embeddings is below seq-length."""
    with pytest.raises(ValueError, match="gpt2 has 1,024 positions"):
        megatron_arguments(
            find_model("gpt2"), planned(Layout(dp=8, micro_batches=8), sharding="ddp")
        )
