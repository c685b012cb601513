"""``portagpu plan``: memory and parallel layouts of a training, without a device."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from portagpu.base.errors import PortagpuError
from portagpu.base.files import read_bounded
from portagpu.base.units import count
from portagpu.cli._common import (
    TARGET,
    SizeType,
    check_outputs,
    chosen_machine,
    json_option,
    print_lines,
    text_stream,
    write_json,
)
from portagpu.cli._process import FAILED
from portagpu.runs.results.plain import json_text

if TYPE_CHECKING:
    from portagpu.facts.targets import Target
    from portagpu.train.planning import Cluster, Model, Plans

SCHEMA: Final = "portagpu.plan/1"
_MAX_BYTES: Final = 1 << 20
"""Of a config.json: larger files are something else."""
_COUNT: Final = click.IntRange(min=1)


@click.command()
@click.option(
    "--model",
    "model_name",
    required=True,
    metavar="NAME|FILE",
    help="A published model, such as llama-3.1-8b, or a config.json, or the folder that has it.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=TARGET,
    metavar="ID|FILE",
    help='The GPU; "portagpu targets" lists them. Repeat it to compare several.',
)
@click.option(
    "--replay",
    multiple=True,
    metavar="PATH",
    help="A recording of the machine, whose links count instead of the target's facts.",
)
@click.option(
    "--ranks", type=_COUNT, metavar="N", help="Number of GPUs. Default: all of the recording."
)
@click.option(
    "--nodes", type=_COUNT, metavar="N", help="Number of machines. Default: one for every 8 GPUs."
)
@click.option(
    "--nic-gbs",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB/S",
    help="What one GPU can send to the network: 50 for 400 Gb/s. Needed for several machines.",
)
@click.option(
    "--memory", type=SizeType(), metavar="SIZE", help="Memory of a GPU. Default: the target's."
)
@click.option(
    "--batch", type=_COUNT, required=True, metavar="N", help="Sequences of a step, over all GPUs."
)
@click.option("--sequence", type=_COUNT, default=2048, show_default=True, metavar="TOKENS")
@click.option("--micro-batch", type=_COUNT, metavar="N", help="Default: tries 1, 2, 4 and 8.")
@click.option("--precision", default="autocast-bf16", show_default=True, metavar="NAME")
@click.option("--optimizer", default="adam", show_default=True, metavar="NAME")
@click.option(
    "--sharding",
    default="fsdp2",
    show_default=True,
    metavar="NAME",
    help="ddp, zero1, zero2, zero3 or fsdp2.",
)
@click.option(
    "--recompute", metavar="NAME", help="none, selective, operators or full. Default: tries all."
)
@click.option("--offload", default="none", show_default=True, metavar="NAME")
@click.option(
    "--strategy",
    default="auto",
    show_default=True,
    metavar="auto|tp=N,pp=N,...",
    help="Fixed degrees of tp, pp, dp, cp and ep.",
)
@click.option("--max-cp", type=_COUNT, default=1, show_default=True, metavar="N")
@click.option("--plain-attention", is_flag=True, help="Attention that keeps its scores.")
@click.option("--fused-loss", is_flag=True, help="A loss without float32 copies of the logits.")
@click.option("--frozen", is_flag=True, help="Weights get no gradients, as with LoRA.")
@click.option(
    "--lora-rank",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Rank of adapters that are trained in place of frozen weights.",
)
@click.option(
    "--adapted",
    default="all",
    show_default=True,
    metavar="NAME",
    help="What adapters are added to: queries-values, attention or all.",
)
@click.option("--graphs", is_flag=True, help="Steps are captured as graphs.")
@click.option(
    "--kv-tokens",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Tokens of a KV cache that is also held.",
)
@click.option(
    "--efficiency",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="SHARE",
    help="Share of the dense peak that products reach. Default: 1, so times are lower bounds.",
)
@click.option(
    "--track",
    metavar="FILE:FUNCTION",
    help="Also run torch's memory trackers on your module: the function returns what builds it, "
    "what makes a step's loss, and what makes the optimiser. The file is executed.",
)
@click.option(
    "--settings",
    type=click.Choice(["torchtitan", "deepspeed", "megatron"]),
    help="Also print the first plan as settings of this tool.",
)
@click.option(
    "--show",
    type=_COUNT,
    default=5,
    show_default=True,
    metavar="N",
    help="Plans in the text; JSON has all.",
)
@json_option
def plan(
    model_name: str,
    targets: tuple[str, ...],
    replay: tuple[str, ...],
    batch: int,
    show: int,
    json_to: str | None,
    **asked: Any,
) -> int:
    """Plan a training: the memory of a GPU, and which parallel layouts fit and how fast.

    Computed from formulas and the facts of targets: no device is opened. Exit codes: 0, and 1 if
    nothing fits.
    """
    from portagpu.cli._plan_view import show_plans, show_targets
    from portagpu.train import planning

    check_outputs(json_to)
    try:
        model = _model(model_name)
        found = []
        for cluster in _clusters(targets, replay, asked):
            plans = planning.plan(
                model,
                cluster,
                _recipe(asked),
                batch=batch,
                strategy=asked["strategy"],
                longest_context=asked["max_cp"],
                efficiency=asked["efficiency"],
                **_searched(asked),
            )
            found.append(plans)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    stream = text_stream(json_to)
    settings = [_settings(model, plans, asked["settings"]) for plans in found]
    lines, tracked = _track(asked, model, found[0])
    if len(found) > 1:
        show_targets(found, stream)
    for plans, words in zip(found, settings, strict=True):
        show_plans(model, plans, show, stream)
        if words is not None:
            shown = json_text(words, indent=2) if isinstance(words, dict) else " ".join(words)
            click.echo(f"{asked['settings']}: {shown}\n", file=stream)
    print_lines(lines, stream)
    if json_to is not None:
        write_json(_document(model, found, settings, tracked), json_to)
    nowhere = [plans.nothing for plans in found if not plans.ranked]
    if len(nowhere) == len(found):
        if not any(each.needs is not None for plans in found for each in plans.rejected):
            # it is the degrees that are wrong, not the memory that is too small
            raise click.UsageError(nowhere[0])
        print_lines([f"portagpu: plan: {nowhere[0]}"], sys.stderr)
        return FAILED
    return 0


def _document(
    model: Model, found: list[Plans], settings: list[Any], tracked: dict[str, Any] | None
) -> dict[str, Any]:
    """All plans with all of their terms, which is most of the work of a call."""
    from portagpu.cli._plan_view import plans_document

    shown = [
        plans_document(plans) | {"settings": words}
        for plans, words in zip(found, settings, strict=True)
    ]
    return {"schema": SCHEMA, "model": asdict(model), "tracked": tracked, "plans": shown}


def _track(
    asked: dict[str, Any], model: Model, plans: Plans
) -> tuple[list[str], dict[str, Any] | None]:
    """Lines and values of ``--track``; none without it."""
    if asked["track"] is None:
        return [], None
    from portagpu.cli._plan_view import tracked_lines

    recipe = plans.best.recipe if plans.ranked else _recipe(asked)
    recipe = replace(recipe, micro_batch=asked["micro_batch"] or recipe.micro_batch)
    try:
        return tracked_lines(asked["track"], model, recipe)
    except (PortagpuError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _settings(model: Model, plans: Plans, tool: str | None) -> Any:
    """The first plan in the words of a tool; raises UsageError for what the tool cannot do."""
    if tool is None or not plans.ranked:
        return None
    from portagpu.train.planning.settings import SETTINGS

    try:
        return SETTINGS[tool](model, plans.best)
    except ValueError as error:
        raise click.UsageError(f"no settings for {tool}: {error}") from error


def _model(name: str) -> Model:
    from portagpu.train.planning import MODELS, find_model, read_model

    path = Path(name)
    if name not in MODELS and path.is_dir():
        path /= "config.json"
    elif name in MODELS or (path.suffix != ".json" and not path.exists()):
        return find_model(name)
    try:
        text = read_bounded(path, _MAX_BYTES + 1).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a config.json of a model: it is not text") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > _MAX_BYTES:
        raise ValueError(f"{path} is too large for a config.json")
    return read_model(text, path.name)


def _recipe(asked: dict[str, Any]) -> Any:
    from portagpu.train.planning import Recipe

    names = (
        "sequence",
        "precision",
        "optimizer",
        "sharding",
        "offload",
        "graphs",
        "kv_tokens",
        "frozen",
        "lora_rank",
        "adapted",
        "fused_loss",
    )
    recipe = Recipe(**{name: asked[name] for name in names}, fused=not asked["plain_attention"])
    return replace(recipe, recompute=asked["recompute"] or "none")


def _searched(asked: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if asked["micro_batch"]:
        found["micro_batches"] = (asked["micro_batch"],)
    if asked["recompute"]:
        found["recomputes"] = (asked["recompute"],)
    return found


def _clusters(
    names: tuple[str, ...], replay: tuple[str, ...], asked: dict[str, Any]
) -> list[Cluster]:
    from portagpu.facts.targets import load_target
    from portagpu.train.planning import cluster_of

    more = {"nic_gbs": asked["nic_gbs"], "memory": asked["memory"]}
    targets = [load_target(name) for name in names]
    if replay:
        return [_recorded(replay, targets, asked, more)]
    if not targets or asked["ranks"] is None:
        raise ValueError("give --target and --ranks, or a machine's recording with --replay")
    return [cluster_of(each, asked["ranks"], nodes=asked["nodes"], **more) for each in targets]


def _recorded(
    replay: tuple[str, ...], targets: list[Target], asked: dict[str, Any], more: dict[str, Any]
) -> Cluster:
    """Machines like the recorded one."""
    from portagpu.machine.inventory.gpu import product_target
    from portagpu.machine.placement.machine import graph_of_machine
    from portagpu.machine.placement.parallel_groups import fastest_domains
    from portagpu.train.planning import cluster_of

    machine = chosen_machine(replay)
    if len(targets) > 1:
        raise ValueError("a recording is of one machine: give one --target at most")
    assumed = targets[0] if targets else None
    graph = graph_of_machine(machine, assumed)
    if assumed is None:
        products = {product_target(each) for each in machine.inventory().gpus} - {None}
        if len(products) != 1:
            raise ValueError("the recording does not say which GPUs it has: give --target")
        assumed = products.pop()
    assert assumed is not None  # noqa: S101 - for the type checker
    nodes = asked["nodes"] or 1
    ranks = asked["ranks"] or nodes * len(graph)
    if ranks != nodes * len(graph):
        raise ValueError(
            f"{count(nodes, 'machine')} of {count(len(graph), 'GPU')}, as recorded, have "
            f"{count(nodes * len(graph), 'rank')}, "
            f"not {ranks}"
        )
    has_links = any(each.speed[0] for each in graph.edges.values())
    domain = max(map(len, fastest_domains(graph))) if has_links else None
    found = cluster_of(assumed, ranks, nodes=nodes, domain=domain, **more)
    if has_links or len(graph) == 1:
        return found
    remark = f"the recording has no links: the facts of {assumed.id} decide"
    return replace(found, remarks=(*found.remarks, remark))
