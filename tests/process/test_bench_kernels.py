"""Portable kernels next to torch's operators: what is timed, checked and held to, without a GPU.

The kernels run in Triton's interpreter, in ranks whose times say nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.stats import summarise
from portagpu.facts.targets import load_target
from portagpu.runs.results.run import Verdict
from portagpu.suites.performance.cases import BenchCase, plan
from portagpu.suites.performance.judge import judge
from tests.process.test_bench_suite import CPU, GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.runs.world import Ranks


def test_a_cpu_has_none_and_says_so() -> None:
    for case in plan(["kernels"], CPU, "quick", 1, None):
        assert case.absent is not None
        assert case.absent.verdict is Verdict.SKIP
        assert case.absent.reason == "Triton launches nothing on cpu"


def test_a_gpu_has_each_kernel_and_what_it_is_held_to() -> None:
    found = {case.id: case.least for case in plan(["kernels"], GPU, "quick", 1, None)}
    by_memory = ("copy", "triad", "sum", "softmax", "rms_norm", "quantize_fp8", "adamw_step")
    expected = {f"kernels/{name}[copy]": 0.9 for name in by_memory}
    expected |= dict.fromkeys([f"kernels/{name}[torch]" for name in by_memory[3:]], 0.95)
    assert found == {**expected, "kernels/matmul[4096]": None}
    (full,) = plan(["kernels/matmul"], GPU, "full", 1, None)
    assert full.id == "kernels/matmul[8192]"


def test_arrays_are_of_one_size_in_every_dtype() -> None:
    for case in plan(["kernels"], replace(GPU, triton=True), "full", 1, None):
        assert case.absent is None
        if case.metric == "kernels/matmul":
            continue
        assert isinstance(case.shape, dict)
        given = case.arguments
        width = {"float32": 4, "bfloat16": 2}[given["dtype"]]
        assert given["rows"] * given["columns"] * width == case.shape["array_bytes"]
        assert (given["dtype"] == "float32") == (given["kernel"] == "adamw_step")


def test_kernels_stand_next_to_torchs_operators() -> None:
    """In one table, over the same bytes; a CPU has torch's alone."""
    for device, runs in ((CPU, False), (replace(GPU, triton=True), True)):
        found = {case.id: case for case in plan(["operators"], device, "quick", 1, None)}
        for ours, theirs in (("adamw", "adamw[fused]"), ("rms_norm", "rms_norm")):
            own, other = found[f"operators/{ours}[portable]"], found[f"operators/{theirs}"]
            assert (own.metric, own.unit, own.shape) == (other.metric, other.unit, other.shape)
            assert other.absent is None
            assert (own.absent is None) == runs
        assert "operators/sgd[portable]" not in found


@pytest.mark.parametrize("target", [None, "nvidia-h200-sxm"])
@pytest.mark.parametrize(
    ("value", "verdict", "said"),
    [(0.96, Verdict.PASS, "at least 0.95"), (0.5, Verdict.FAIL, "0.5 is below 0.95")],
)
def test_a_kernel_is_held_to_its_least_on_any_hardware(
    target: str | None, value: float, verdict: Verdict, said: str
) -> None:
    case = BenchCase(
        id="kernels/x[torch]", metric="kernels/x", area="kernels", unit="1", function="", least=0.95
    )
    found = judge(case, summarise([value] * 5), load_target(target) if target else None)
    assert found.verdict is verdict
    assert said in found.reason
    assert found.expected is not None
    assert (found.expected["reference"], found.expected["upper"]) == (0.95, None)


@pytest.fixture(scope="module")
def interpreting() -> Iterator[Ranks]:
    """A rank server of its own, in which Triton interprets."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    from portagpu.runs.world import Ranks

    with Ranks(environment={"TRITON_INTERPRET": "1"}) as ranks:
        ranks.prepare("tests.support.kernel_ranks:import_kernels", backend="cpu")
        yield ranks


def run(ranks: Ranks, function: str, **arguments: Any) -> Any:
    place = f"tests.support.kernel_ranks:{function}"
    return ranks.run(place, arguments=arguments, backend="cpu", group=False).values[0]


def measured(
    ranks: Ranks, kernel: str, dtype: str, fault: str = "none", **options: Any
) -> list[dict[str, Any]]:
    found = run(ranks, "compared", kernel=kernel, dtype=dtype, fault=fault, **options)
    assert isinstance(found, list)
    return found


@pytest.mark.torch
def test_a_step_is_timed_next_to_torchs_foreach_where_none_is_fused(interpreting: Ranks) -> None:
    with_torch, with_copy = measured(interpreting, "adamw_step", "float32", "unfused")
    assert with_torch["notes"]["torch_form"] == "foreach"
    assert with_torch["points"]
    assert "torch_form" not in with_copy["notes"]


@pytest.mark.torch
def test_a_step_at_another_rate_keeps_no_time(interpreting: Ranks) -> None:
    for reading in measured(interpreting, "adamw_step", "float32", "rate"):
        assert reading["points"] == []
        assert "elements are further off than their bound" in reading["wrong"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "flops", "moved"),
    # 28 bytes for each of 16 parts of 5 numbers; 8 bytes for each of 8 x 20
    [("adamw", 14 * 80, 28 * 80), ("rms_norm", 5 * 160, 8 * 160)],
)
def test_a_kernel_is_measured_as_torchs_operators_are(
    interpreting: Ranks, name: str, flops: int, moved: int
) -> None:
    reading = run(interpreting, "operator", name=name, is_wrong=False)
    assert (reading["wrong"], reading["skip"]) == ("", "")
    (point,) = reading["points"]
    assert (point["flops"], point["bytes"], point["work"]) == (flops, moved, moved)
    broken = run(interpreting, "operator", name=name, is_wrong=True)
    assert broken["points"] == []
    assert broken["wrong"]


@pytest.mark.torch
def test_a_kernel_is_timed_as_a_graph_where_the_device_has_graphs(interpreting: Ranks) -> None:
    first, second = measured(interpreting, "sum", "float32", "graphs")
    for reading, captures in ((first, 2), (second, 4)):
        assert (reading["wrong"], reading["skip"]) == ("", "")
        notes, (point,) = reading["notes"], reading["points"]
        assert notes["captures"] == captures, "ours and theirs are captured once each"
        assert notes["replays"] > 2 * len(point["seconds"]), "a sample replays no graph"


@pytest.mark.torch
@pytest.mark.parametrize("kernel", ["copy", "softmax"])
def test_a_kernel_that_computes_wrong_keeps_no_time(interpreting: Ranks, kernel: str) -> None:
    for reading in measured(interpreting, kernel, "float32", "wrong"):
        assert reading["points"] == []
        assert "elements are further off than their bound" in str(reading["wrong"])
