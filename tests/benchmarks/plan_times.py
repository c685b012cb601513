"""How far predicted steps are from published ones: ``python -m tests.benchmarks.plan_times``.

The first column of errors takes the dense peak of the target as the rate, which is a bound that no
training reaches. The second takes one share of the peak, found from the first row
alone, for all others of the same table: what a user gets who has measured one run. Two
of MLPerf's four runs name no precision, so both are shown. An error is
``predicted / reported - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from portagpu.facts.targets import load_target
from portagpu.train.planning import Layout, Recipe, cluster_of, find_model
from portagpu.train.planning.cluster import Network, step_time
from tests.support.published_memory import EIGHT, FULL, LONG, PIPE, TITAN, TWO

FP8: Final = EIGHT | {"precision": "autocast-fp8"}
BIG: Final = FULL | {"sequence": 8192}
BIG16: Final = BIG | {"micro_batch": 16, "precision": "autocast-bf16"}
EIGHT8: Final = {"dp": 8, "tp": 8, "sequence_parallel": True}
LORA: Final = {"sequence": 8192, "sharding": "ddp", "frozen": True, "precision": "mixed-bf16"}
LORA8: Final = LORA | {"precision": "mixed-fp8"}


@dataclass(frozen=True)
class Run:
    """A published run: tokens a second of one GPU, or seconds of a step."""

    name: str
    model: str
    target: str
    recipe: dict[str, Any]
    layout: dict[str, Any]
    tokens_s: float | None = None
    seconds: float | None = None

    def errors(self, efficiency: float | None) -> tuple[float, float]:
        """(reported seconds, predicted seconds)."""
        layout, recipe = Layout(**self.layout), Recipe(**self.recipe)
        cluster = cluster_of(load_target(self.target), layout.world, nic_gbs=50.0)
        timing = step_time(
            find_model(self.model), recipe, layout, cluster, Network(cluster), efficiency
        )
        assert timing is not None
        tokens = recipe.micro_batch * recipe.sequence * layout.micro_batches * layout.dp
        reported = self.seconds or tokens / layout.world / (self.tokens_s or 1.0)
        return reported, timing.step_s


def titan(name: str, model: str, recipe: Any, layout: Any, tokens_s: float) -> Run:
    """A row of torchtitan's page, on 96 GB H100s with HBM2e at 500 W."""
    return Run(name, model, "nvidia-h100-sxm", recipe, layout, tokens_s=tokens_s)


TITANS: Final = (
    titan("table 1, torch.compile", "llama-3.1-8b", EIGHT, {"dp": 8}, 6667),
    titan("table 1, Float8", "llama-3.1-8b", FP8, {"dp": 8}, 8532),
    titan("table 3, torch.compile", "llama-3.1-8b", EIGHT, {"dp": 128}, 6514),
    titan("table 3, Float8", "llama-3.1-8b", FP8, {"dp": 128}, 8380),
    titan("table 2, 32k", "llama-3.1-8b", FULL | {"sequence": 32768}, {"dp": 8}, 3890),
    titan(
        "table 2, 64k CP 2", "llama-3.1-8b", FULL | {"sequence": 65536}, {"dp": 4, "cp": 2}, 2540
    ),
    titan(
        "table 2, 128k CP 4", "llama-3.1-8b", FULL | {"sequence": 131072}, {"dp": 2, "cp": 4}, 1071
    ),
    titan(
        "table 2, 256k CP 8", "llama-3.1-8b", FULL | {"sequence": 262144}, {"dp": 1, "cp": 8}, 548
    ),
    titan("table 4, TP 8", "llama-3.1-70b", BIG | {"micro_batch": 16}, TWO, 829),
    titan("table 5, TP 8 PP 8", "llama-3.1-405b", BIG | {"micro_batch": 4}, PIPE, 100),
    titan(
        "table 5, interleaved",
        "llama-3.1-405b",
        BIG | {"micro_batch": 4},
        PIPE | {"schedule": "interleaved", "chunks": 2},
        128,
    ),
    *(
        titan(f"table 6, {tokens >> 10}k", "llama-3.1-405b", recipe, layout, speed)
        for (tokens, recipe, layout), speed in zip(LONG, (76, 47, 31, 16), strict=True)
    ),
)
ASYNC: Final = (
    titan("70B TP 8", "llama-3.1-70b", BIG16, TWO, 597.3),
    titan("70B TP 8, Float8", "llama-3.1-70b", BIG | {"micro_batch": 16}, TWO, 809.8),
    titan("8B TP 8", "llama-3.1-8b", EIGHT | {"micro_batch": 12}, EIGHT8, 4378),
    titan("8B TP 8, Float8", "llama-3.1-8b", FP8 | {"micro_batch": 12}, EIGHT8, 5078.1),
)
"""benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md at b5bcd76, without asynchronous TP."""
H200: Final = tuple(
    Run(f"{dp} x H200, Float8", "llama-3.1-8b", "nvidia-h200-sxm", FP8, {"dp": dp}, tokens_s=speed)
    for dp, speed in ((32, 10938), (64, 10753))
)
"""benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md at b5bcd76."""
MLPERF: Final = tuple(
    Run(f"{name}, {words}", "llama-2-70b", target, recipe, layout, seconds=8 / samples_s)
    # samples a second of the first block (8 x B200: of the first 80 samples); a step has 8 samples
    for name, target, layout, samples_s in (
        ("v5.0 Dell 8 x H200", "nvidia-h200-sxm", {"dp": 4, "cp": 2, "micro_batches": 2}, 2.552135),
        ("v5.0 AMD 8 x MI300X", "amd-mi300x", {"dp": 8}, 2.02651),
        ("v5.1 AMD 8 x MI355X", "amd-mi355x", {"dp": 8}, 5.878038),
        ("v5.1 Dell 8 x B200", "nvidia-b200-sxm", {"dp": 8}, 80 / 11.029),
    )
    for words, recipe in (("bf16", LORA), ("fp8", LORA8))
)


def efficiency_of(run: Run) -> float:
    """The share of the peak with which the run's step is as long as reported, by bisection."""
    low, high = 0.01, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        reported, predicted = run.errors(middle)
        low, high = (middle, high) if predicted > reported else (low, middle)
    return high


def show(title: str, runs: tuple[Run, ...], efficiency: float | None) -> None:
    """Print a table of runs."""
    print(f"\n{title}\n{'seconds a step':<30}{'reported':>10}{'bound':>9}{'error':>8}", end="")
    print("" if efficiency is None else f"{'with share':>12}{'error':>8}")
    bounds, shared = [], []
    for run in runs:
        reported, bound = run.errors(None)
        bounds.append(bound / reported - 1)
        print(f"{run.name:<30}{reported:>10.2f}{bound:>9.2f}{bounds[-1]:>8.0%}", end="")
        if efficiency is not None:
            predicted = run.errors(efficiency)[1]
            shared.append(predicted / reported - 1)
            print(f"{predicted:>12.2f}{shared[-1]:>8.0%}", end="")
        print()
    if efficiency is not None:
        print(f"bound: median error {median(bounds):.0%}")
        # a row that gave the share says nothing
        off = [abs(each) for each in shared if abs(each) > 1e-9]
        print(f"with {efficiency:.1%} of the peak: median {median(off):.0%}, most {max(off):.0%}")


if __name__ == "__main__":
    share = efficiency_of(TITANS[0])
    show(TITAN, TITANS, share)
    show("the same GPUs, June 2025", ASYNC, share)
    show("H200, June 2025", H200, share)
    show("MLPerf Training, llama2_70b_lora, result_0 of each submission", MLPERF, None)
