"""A plan in the words of the tools that run it: torchtitan, DeepSpeed, Megatron-LM.

Names are those of torchtitan 0.3.0 (``torchtitan/config/configs.py``), of DeepSpeed 0.19.8's
configuration, and of Megatron-LM's ``megatron/training/arguments.py`` at d98e8a6. What a tool
cannot do raises ValueError, in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.train.planning.recipe import stages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.train.planning.model import Model
    from portagpu.train.planning.plans import Plan

_SCHEDULES: Final = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
_STAGES: Final = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def torchtitan_arguments(model: Model, plan: Plan) -> list[str]:
    """The words for torchtitan's command line, after ``--module`` and ``--config``.

    Recomputation, precision of products and the optimiser are of the configuration that
    ``--config`` names.

    :param model: the model that was planned.
    :param plan: one of its plans.
    :raises ValueError: for a sharding that is not FSDP2 or DDP, for an offload of the optimiser
        alone, and for parts that torchtitan does not cut the layers into.
    """
    at, recipe = plan.layout, plan.recipe
    if recipe.sharding not in ("fsdp2", "ddp"):
        raise ValueError(f"torchtitan has no {recipe.sharding}: plan with fsdp2 or ddp")
    if recipe.offload == "optimizer":
        raise ValueError("torchtitan offloads everything or nothing: plan with offload parameters")
    shards = at.dp if recipe.sharding == "fsdp2" else 1
    values: dict[str, object] = {
        "training.local_batch_size": recipe.micro_batch * (at.micro_batches if at.pp > 1 else 1),
        "training.global_batch_size": recipe.micro_batch * at.micro_batches * at.dp,
        "training.seq_len": recipe.sequence,
        "training.mixed_precision_param": "float32" if recipe.precision == "fp32" else "bfloat16",
        "parallelism.data_parallel_replicate_degree": at.dp // shards,
        "parallelism.data_parallel_shard_degree": shards,
        "parallelism.tensor_parallel_degree": at.tp,
        "parallelism.context_parallel_degree": at.cp,
        "parallelism.expert_parallel_degree": at.ep,
        "parallelism.pipeline_parallel_degree": at.pp,
    }
    if at.pp > 1:
        values["parallelism.pipeline_parallel_schedule"] = _SCHEDULES[at.schedule]
        values["parallelism.pipeline_parallel_microbatch_size"] = recipe.micro_batch
        parts = at.pp * at.chunks
        # in parts that differ, the embedding and the head count as a layer each
        less = 1 if model.layers % parts else 0
        each = -(-(model.layers + 2 * less) // parts)
        if -(-(model.layers + 2 * less) // each) != parts:
            raise ValueError(f"torchtitan does not cut {model.layers} layers into {parts} parts")
        values["parallelism.pipeline_parallel_layers_per_stage"] = each
        values["parallelism.pipeline_parallel_first_stage_less_layers"] = less
        values["parallelism.pipeline_parallel_last_stage_less_layers"] = less
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    if recipe.offload == "parameters":
        words.append("--training.enable_cpu_offload")
    words.append(f"--parallelism.{'' if at.sequence_parallel else 'no-'}enable_sequence_parallel")
    return words


def deepspeed_config(model: Model, plan: Plan) -> dict[str, Any]:
    """The configuration that ``deepspeed.initialize`` takes.

    :param model: the model that was planned.
    :param plan: one of its plans.
    :returns: values that JSON holds; batches are in samples.
    :raises ValueError: for a sharding that DeepSpeed lacks, and for what it leaves to the model:
        tensor, context, pipeline and expert splits.
    """
    at, recipe = plan.layout, plan.recipe
    if recipe.sharding not in _STAGES:
        raise ValueError(f"DeepSpeed has no {recipe.sharding}: plan with ddp or zero1 to zero3")
    if max(at.tp, at.pp, at.cp, at.ep) > 1:
        raise ValueError(f"DeepSpeed's configuration cannot split a model: {at} is for its code")
    zero: dict[str, Any] = {"stage": _STAGES[recipe.sharding]}
    if recipe.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if recipe.offload == "parameters":
        if recipe.sharding != "zero3":
            raise ValueError("DeepSpeed offloads parameters with zero3 alone")
        zero["offload_param"] = {"device": "cpu"}
    autocast = recipe.precision.startswith("autocast")
    return {
        "train_batch_size": recipe.micro_batch * at.micro_batches * at.dp,
        "train_micro_batch_size_per_gpu": recipe.micro_batch,
        "gradient_accumulation_steps": at.micro_batches,
        "zero_optimization": zero,
        "bf16": {"enabled": recipe.precision.startswith("mixed")},
        "torch_autocast": {"enabled": autocast, "dtype": "bfloat16"},
    }


def megatron_arguments(model: Model, plan: Plan) -> list[str]:
    """The words for Megatron-LM's command line: the model's sizes, the layout and the batch.

    :param model: the model that was planned.
    :param plan: one of its plans.
    :raises ValueError: for a sharding other than DDP and its distributed optimiser (zero1), for
        more tokens than learned positions, for stages that Megatron cannot make, and for models
        whose settings are not known here, as latent attention's.
    """
    at, recipe = plan.layout, plan.recipe
    written = {
        "latent attention": model.latent,
        "windows": model.windowed_layers,
        "sinks": model.sinks,
        "plain layers next to experts": model.plain_layers,
        "a shared expert": model.shared_inner,
        "a parallel block": model.parallel,
        "norms of results": model.norms == 4,
    }
    if lacking := [name for name, has in written.items() if has]:
        raise ValueError(f"a model with {lacking[0]} has no Megatron settings here: write its own")
    if recipe.sharding not in ("ddp", "zero1"):
        raise ValueError(f"Megatron is planned with ddp or zero1 here, not with {recipe.sharding}")
    if 0 < model.positions < recipe.sequence:
        raise ValueError(
            f"{model.name} has {model.positions:,} positions: plan with as many tokens at most, "
            f"not with {recipe.sequence:,}"
        )
    values: dict[str, object] = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "num-attention-heads": model.heads,
        "ffn-hidden-size": model.inner,
        "seq-length": recipe.sequence,
        "max-position-embeddings": model.positions or recipe.sequence,
        "micro-batch-size": recipe.micro_batch,
        "global-batch-size": recipe.micro_batch * at.micro_batches * at.dp,
        "tensor-model-parallel-size": at.tp,
        "pipeline-model-parallel-size": at.pp,
        "context-parallel-size": at.cp,
    }
    flags = []
    if model.kv_heads != model.heads:
        values["num-query-groups"] = model.kv_heads
        flags.append("group-query-attention")
    if model.experts:
        values["num-experts"] = model.experts
        values["moe-router-topk"] = model.active_experts
        values["expert-model-parallel-size"] = at.ep
    if model.layers % (at.pp * at.chunks):
        first, *middle, last = [each.layers for each in stages(model, at)]
        if len({*middle}) > 1 or any(each % at.chunks for each in (first, *middle, last)):
            raise ValueError(f"Megatron gives all middle stages the same layers, not {middle}")
        values["decoder-first-pipeline-num-layers"] = first
        values["decoder-last-pipeline-num-layers"] = last
    if at.chunks > 1:
        values["num-virtual-stages-per-pipeline-rank"] = at.chunks
    if recipe.recompute == "full":
        values |= {"recompute-granularity": "full", "recompute-method": "uniform"}
        values["recompute-num-layers"] = 1
    elif recipe.recompute == "selective":
        values["recompute-granularity"] = "selective"
    elif recipe.recompute == "operators":
        raise ValueError("Megatron does not recompute single operators: plan with another")
    if recipe.precision != "fp32":
        flags.append("bf16")
    if recipe.numbers.matrix == "fp8":
        values["fp8-format"] = "hybrid"
    flags += [
        name
        for name, wanted in (
            ("swiglu", model.gated),
            ("untie-embeddings-and-output-weights", not model.tied),
            ("sequence-parallel", at.sequence_parallel),
            ("use-distributed-optimizer", recipe.sharding == "zero1"),
        )
        if wanted
    ]
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return words + [f"--{name}" for name in flags]


SETTINGS: Final[Mapping[str, Callable[[Model, Plan], Any]]] = {
    "torchtitan": torchtitan_arguments,
    "deepspeed": deepspeed_config,
    "megatron": megatron_arguments,
}
"""Tool -> what makes its settings."""
