"""Parallel training gives the losses of one process; what is easily made wrong is made wrong."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.runs.world import Ranks
from tests.support.parallel_ranks import WIDTH, reference

if TYPE_CHECKING:
    from collections.abc import Callable

    Answers = Callable[[int, str], list[Any]]

ROUNDINGS: Final = 512
"""More than lead to any number here, one after the other: 8 layers, 2 products of 8 and 16
terms, forward and backward."""
RELATIVE: Final = {
    # each at its worst, and all of them in one direction
    "float64": ROUNDINGS * torch.finfo(torch.float64).eps,
    "float32": ROUNDINGS * torch.finfo(torch.float32).eps,
    # 16 products in a row, each rounded to 8 bits, independently: the root of 16, times 2^-8
    "bfloat16": 2.0**-6,
}
CLIP: Final = 0.5
CALLS: Final[dict[int, dict[str, tuple[str, dict[str, Any]]]]] = {2: {}, 4: {}}
"""What the tests below ask of a world of that many ranks, under a name."""


def ask(world: int, function: str, **options: Any) -> str:
    """The name under which the answer of that function of the ranks will be found."""
    name = f"{function} {json.dumps(options)}"
    CALLS[world][name] = (function, options)
    return name


@pytest.fixture(scope="module")
def answers() -> Answers:
    """What each rank answered; all of a world's calls are made in one world."""
    found: dict[int, list[Any]] = {}

    def answers_of(world: int, name: str) -> list[Any]:
        if world not in found:
            with Ranks() as ranks:
                done = ranks.run(
                    "tests.support.parallel_ranks:several",
                    world,
                    arguments={"calls": CALLS[world]},
                    backend="cpu",
                    timeout_s=400.0,
                )
            assert done.ok, f"{done.sentence}\n{done.ranks[done.culprit or 0].output}"
            found[world] = done.values
        return [each[name] for each in found[world]]

    return answers_of


FLOAT32: Final = {"dtype": "float32"}
FSDP2: Final = {"sharding": "fsdp2"}
LAYOUT: Final = {"dp": 2, "pp": 2, "schedule": "interleaved", "chunks": 2, "micro_batches": 4}
"""As a plan has it."""
WRONG: Final = (2, "trains", {"synced": False})
RUNS: Final[list[tuple[int, str, dict[str, Any]]]] = [
    (2, "trains", {}),
    (2, "trains", {"parts": 4}),
    (2, "trains", {"recompute": "full"}),
    (2, "trains", FLOAT32),
    WRONG,
    (2, "trains", FSDP2),
    (2, "trains", {**FSDP2, "parts": 4}),
    (2, "trains", {**FSDP2, "recompute": "operators"}),
    (2, "trains", {**FSDP2, **FLOAT32}),
    (2, "trains", {**FSDP2, **FLOAT32, "precision": "autocast-bf16"}),
    (2, "trains", {"tp": 2}),
    (2, "trains", {"tp": 2, **FLOAT32}),
    (2, "piped", {"kind": "gpipe"}),
    (2, "piped", {"kind": "1f1b"}),
    (2, "piped", {"kind": "1f1b", "accumulated": 2}),
    (2, "piped", {"kind": "1f1b", **FLOAT32}),
    (2, "piped", {"kind": "interleaved"}),
    (2, "piped", {"kind": "interleaved", "accumulated": 2}),
    (4, "trains", {}),
    (4, "trains", FLOAT32),
    (4, "trains", {**FSDP2, "parts": 2}),
    (4, "trains", {**FSDP2, **FLOAT32}),
    (4, "trains", {**FSDP2, **FLOAT32, "precision": "autocast-bf16"}),
    (4, "trains", {"tp": 4}),
    (4, "trains", {"tp": 4, **FLOAT32}),
    (4, "trains", {**FSDP2, "tp": 2, "parts": 2}),
    (4, "trains", {**FSDP2, "tp": 2, "split": "[0-5]"}),
    (4, "piped", {"pp": 4, "kind": "gpipe"}),
    (4, "piped", {"pp": 4}),
    (4, "piped", {"pp": 4, **FLOAT32}),
    (4, "piped", {"pp": 4, "kind": "interleaved"}),
    (4, "piped", {"sharding": "ddp"}),
    (4, "piped", {**FSDP2, "layout": {"tp": 2, "pp": 2, "micro_batches": 4}}),
    (4, "piped", {**FSDP2, "layout": LAYOUT}),
    (4, "piped", {**FSDP2, "kind": "gpipe"}),
    (4, "piped", FSDP2),
    (4, "piped", {**FSDP2, "kind": "interleaved"}),
]


def furthest(found: list[list[float]], expected: tuple[list[float], list[float]]) -> float:
    """The greatest relative difference of losses and norms."""
    assert [len(each) for each in found] == [len(each) for each in expected]
    pairs = [both for each in zip(found, expected, strict=True) for both in zip(*each, strict=True)]
    return max(abs(one / other - 1) for one, other in pairs)


@pytest.mark.parametrize(
    ("run", "name"),
    [(run, ask(run[0], run[1], clip=CLIP, **run[2])) for run in RUNS],
    ids=[f"{world} {function} {options}" for world, function, options in RUNS],
)
def test_losses_and_norms_are_those_of_one_process(
    answers: Answers, run: tuple[int, str, dict[str, Any]], name: str
) -> None:
    world, _, options = run
    dtype = options.get("dtype", "float64")
    tolerance = RELATIVE["bfloat16" if "precision" in options else dtype]
    expected = reference(dtype=dtype, clip=CLIP)
    assert min(expected[1]) > CLIP, "the norm must be clipped, or clipping is not tested"
    for rank, found in enumerate(answers(world, name)):
        off = furthest(found, expected)
        if run is WRONG:
            assert off > 1000 * RELATIVE["float32"], "without reduction nothing differs"
        else:
            assert off <= tolerance, f"rank {rank} is off by {off:.2g}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (ask(2, "reductions", sharding=sharding, held=held), expected)
        for sharding, held, expected in (
            ("ddp", True, 1),
            ("ddp", False, 4),
            ("fsdp2", True, 8),
            ("fsdp2", False, 32),
        )
    ],
)
def test_four_micro_batches_are_reduced_once(answers: Answers, name: str, expected: int) -> None:
    """DDP has one bucket here, and FSDP2 one reduce-scatter for each of eight layers."""
    assert answers(2, name) == [expected] * 2


HELD: Final = ask(2, "held_after_an_error")


def test_gradients_are_reduced_again_after_an_error(answers: Answers) -> None:
    assert answers(2, HELD) == [True, True]


COUNT: Final = 2 * 2 * WIDTH * WIDTH + 2 * WIDTH + WIDTH
"""Parameters of a layer."""
LADDER: Final = [float(2**layer) for layer in range(8)]


@pytest.mark.parametrize(
    ("world", "norm", "name"),
    [
        (world, norm, ask(world, "clips", values=LADDER, norm=norm, **layout))
        for world, layout in ((4, {"tp": 2}), (2, {"pp": 2}))
        for norm in (2.0, 1.0, 3.0, math.inf)
    ],
)
def test_the_norm_is_over_all_shards_and_stages(
    answers: Answers, world: int, norm: float, name: str
) -> None:
    greatest = max(LADDER)
    total = (
        greatest if math.isinf(norm) else sum(COUNT * value**norm for value in LADDER) ** (1 / norm)
    )
    of_stage = [max(LADDER[:4]), greatest] if world == 2 else [greatest] * world
    for (said, left), before in zip(answers(world, name), of_stage, strict=True):
        assert float(said) == pytest.approx(total, rel=1e-12)
        assert left == pytest.approx(before / (total + 1e-6), rel=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        ask(2, "clips", values=[1.0] * layer + [math.nan] + [1.0] * (7 - layer), norm=norm, pp=2)
        for norm in (2.0, math.inf)
        for layer in (0, 7)
    ],
)
def test_nan_of_one_stage_is_the_norm_of_all(answers: Answers, name: str) -> None:
    assert [said for said, _ in answers(2, name)] == ["nan", "nan"]


ALONE: Final = ask(4, "clips", values=LADDER, norm=2.0, tp=2, own=True)


def test_torch_alone_does_not_clip_shards_of_two_meshes(answers: Answers) -> None:
    """Else there is no need for ours."""
    assert all(answers(4, ALONE))


SKIPPED: Final = [[8.0, True], [4.0, False], [4.0, True], [8.0, True]]
"""Rank 1 overflows in step 1: no rank steps, and the scale halves; after two more it doubles."""


@pytest.mark.parametrize(
    ("world", "name"),
    [
        (2, ask(2, "scales", sharding="ddp")),
        (2, ask(2, "scales", sharding="fsdp2")),
        (2, ask(2, "scales", pp=2)),
        (4, ask(4, "scales", tp=2, split="[0-5]")),
    ],
)
def test_an_overflow_on_one_rank_skips_the_step_on_all(
    answers: Answers, world: int, name: str
) -> None:
    assert answers(world, name) == [SKIPPED] * world


PLAIN: Final = ask(2, "scales", pp=2, plain=True)


def test_a_plain_scaler_lets_one_stage_step_alone(answers: Answers) -> None:
    """Else there is no need for another."""
    first, second = answers(2, PLAIN)
    assert second == SKIPPED
    assert first != second


STRANGE: Final = ask(2, "strange_norms")


def test_norms_of_frozen_stages_empty_shards_and_nan(answers: Answers) -> None:
    """Of one dtype on each rank, or the process ends; torch's own waits, and loses NaN."""
    # half of the layers have gradients, each of them one
    total = str(math.sqrt(4 * COUNT))
    assert answers(2, STRANGE) == [[total, "3.0", "nan", "3.0", "nan"]] * 2


NESTED: Final = ask(2, "nested_blocks")


def test_blocks_in_one_another_reduce_after_the_outer_one(answers: Answers) -> None:
    assert answers(2, NESTED) == [[False, True]] * 2


SHARDED: Final = ask(2, "sharded_modules")


def test_layers_in_lists_and_in_layers_are_sharded(answers: Answers) -> None:
    inner = [f"layers.{layer}{name}" for layer in (0, 1) for name in ("", ".up", ".down")]
    listed = ["", "layers.0", "layers.1", "head"]
    assert answers(2, SHARDED) == [[listed, ["", *inner, "head"]]] * 2


WRAPPED: Final = "the model is wrapped by DDP already: give the one inside, model.module"
REFUSED: Final = {
    "size": ["ValueError", "dp, tp and pp are whole numbers of at least 1"],
    "layout": ["ValueError", "a layout is a plan's, not 2: give sizes by name, as tp=2"],
    "classes": ["ValueError", "layers is a class of modules, or a tuple of some, not 'Layer'"],
    "container": [
        "ValueError",
        "ModuleList has no forward: give the class of the layers that are in it",
    ],
    "dtype": ["ValueError", "compute is a dtype, as torch.bfloat16, not 'bf16'"],
    "host": ["ValueError", "the mesh is on the CPU, where nothing is to be offloaded"],
    "twice": ["ValueError", "the model is sharded by FSDP2 already"],
    "wrapped": ["ValueError", WRAPPED],
    "replicas": ["ValueError", "the model is sharded by FSDP2 already"],
    "device": [
        "ValueError",
        "the model is on meta, and the mesh on cpu: move it first, model.to(portagpu.device())",
    ],
    "tied": [
        "ValueError",
        (
            "0.weight and 2.weight are one parameter: give layers= the class of others, "
            "so that both are in the rest of the model"
        ),
    ],
    "blocks": None,
    "stages": [
        "ValueError",
        (
            "stages 0 and 1 share a parameter, 0.weight and 2.weight: "
            "torch's pipelines would train a copy on each"
        ),
    ],
    "repeated": [
        "ValueError",
        (
            "stages 0 and 1 share a parameter, 0.up.weight and 2.up.weight: "
            "torch's pipelines would train a copy on each"
        ),
    ],
    "forward": ["TypeError", "a Doubled cannot be cut: give an nn.Sequential of layers"],
    "none": ["ValueError", "0 parts on a rank: interleaved takes 2 or more, others one"],
    "key": ["ValueError", "the model has no module '*.upp', which the tensor_plan names"],
    "untied": ["ValueError", "the tensor_plan splits one of two modules that share a parameter"],
    "again": ["ValueError", "these layers recompute already, and would do it twice"],
    "negative": ["ValueError", "max_norm is 0 or more and norm_type not 0, not -1.0 and 2.0"],
    "norm": ["ValueError", "max_norm is 0 or more and norm_type not 0, not 1.0 and 0"],
    "world": ["ValueError", "pp=1 dp=1 tp=3 needs 3 ranks, and the world has 2"],
    "product": ["ValueError", "pp=1 dp=2 tp=2 needs 4 ranks, and the world has 2"],
    "zero": ["ValueError", "dp, tp and pp are whole numbers of at least 1"],
    "both": ["ValueError", "give a layout, or dp, tp and pp"],
    "context": ["ValueError", "cp2: cp and ep are for the model's own code; plan without them"],
    "zero1": ["ValueError", "apply takes a recipe with sharding ddp or fsdp2, not zero1"],
    "mixed-fp8": [
        "ValueError",
        "apply takes a recipe with precision fp32 or autocast-bf16, not mixed-fp8",
    ],
    "offload": [
        "ValueError",
        "only FSDP2 offloads, and it offloads parameters: plan with fsdp2 and parameters",
    ],
    "tensors": [
        "ValueError",
        "the mesh splits tensors: give the tensor_plan of the model's layers",
    ],
    "layers": ["ValueError", "the model has no layer of LSTM"],
    "recompute": [
        "ValueError",
        "kind of recomputation is one of none, selective, operators, full, not 'half'",
    ],
    "cut": ["TypeError", "a Layer cannot be cut: give an nn.Sequential of layers"],
    "few": ["ValueError", "1 layers do not make 2 stages of at least one"],
    "kind": [
        "ValueError",
        "kind of schedule is one of gpipe, 1f1b, interleaved, not 'zero-bubble'",
    ],
    "parts": ["ValueError", "2 parts on a rank: interleaved takes 2 or more, others one"],
    "fill": ["ValueError", "1 micro-batches do not fill 2 stages: give more"],
    "ddp": ["ValueError", "torch's GPipe does not run DDP: take 1f1b, or fsdp2"],
    "rounds": ["ValueError", "5 micro-batches: give a multiple of 2"],
}


ASKED: Final = ask(2, "refusals")


def test_wrong_arguments_are_refused_in_one_line(answers: Answers) -> None:
    assert answers(2, ASKED) == [REFUSED] * 2
