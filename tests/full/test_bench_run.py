"""The performance suite on this machine's CPU, and with broken operations, which must fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.facts.targets import Expectation, Target, load_target
from portagpu.runs.engine import Progress
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.world import Ranks
from portagpu.suites import performance as bench
from portagpu.suites.performance import Effort, MeasuredDevice, load
from portagpu.suites.performance.case_runner import BenchContext
from portagpu.suites.performance.cases import load_area, plan
from portagpu.suites.performance.device import CacheLevel
from portagpu.suites.performance.runner import OPEN_ID, shuffled, with_shares
from tests.conftest import ROOT
from tests.support.case_files import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

FAULTS = ROOT / "tests/support/bench_faults.py"
WAYS = ("forward", "backward")
FORMS = ("fused", "foreach", "loop")
TINY = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "length": 64, "batch": 2}
LAUNCHES = ["launch/issue", "launch/roundtrip", "launch/throughput"]
SMALL: dict[str, dict[str, Any]] = {
    "gemm": {"m": 64, "n": 48, "k": 32},
    "memory": {"sizes": [1 << 16, 1 << 20]},
    "transfer": {"sizes": [1 << 16]},
    "launch": {},
    "attention": {"sizes": [1, 2, 64, 16]},
    "operators": {},
    "training": {},
    "collectives": {"sizes": [1 << 12, 1 << 14]},
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as helper:
        yield helper


@pytest.fixture(scope="module")
def device(ranks: Ranks) -> MeasuredDevice:
    found = bench.open_device(ranks, "cpu")
    assert isinstance(found, MeasuredDevice), f"the CPU did not open: {found}"
    return found


def run_one(
    ranks: Ranks,
    device: MeasuredDevice,
    name: str,
    fault: str | None = None,
    *,
    world: int = 2,
    timeout_s: float = 240.0,
    effort: Effort = Effort.QUICK,
) -> Result:
    """One case on small operands, with the function of that name in place of its own."""
    case = plan([name], device, effort, world, None)[0]
    small = SMALL[case.area]
    if case.area == "training" and "sizes" in case.arguments:
        small = {"sizes": TINY}
    if case.area == "operators":
        small = {"elements": 1000} if case.function == "step" else {"rows": 128, "columns": 64}
    case = replace(case, arguments={**case.arguments, **small})
    if fault is not None:
        case = replace(case, function=f"{FAULTS}:{fault}")
    return BenchContext(ranks, device, Effort.QUICK, None, timeout_s).result(case)


def assert_measured(result: Result) -> None:
    """Nothing judges it; on a machine that others use its spread may be too wide to be judged."""
    noisy = result.verdict is Verdict.INCONCLUSIVE and "too wide to judge" in result.reason
    assert result.verdict is Verdict.UNVERIFIED or noisy, f"{result.id}: {result.reason}"


def test_the_cpu_is_described(device: MeasuredDevice) -> None:
    assert (device.backend, device.shared, device.triton) == ("cpu", True, False)
    assert device.support["fp32"] == "native"
    assert device.support["tf32"] == "none"
    assert device.free_bytes


@pytest.mark.parametrize(
    "name",
    [
        "gemm/fp64",
        "gemm/fp32",
        "gemm/bf16",
        "gemm/fp16",
        "gemm/int8",
        "memory/copy",
        "memory/scale",
        "memory/add",
        "memory/triad",
        "memory/read",
        "memory/write",
        "transfer/h2d[pageable]",
        "transfer/d2h[pageable]",
        "transfer/both[pageable]",
        "launch/issue",
        "launch/roundtrip",
        "launch/throughput",
        *(f"attention/{way}[{name},fp32]" for way in WAYS for name in ("default", "math", "flash")),
        "operators/layer_norm",
        "operators/rms_norm",
        *(f"operators/{name}[{form}]" for name in ("adamw", "sgd") for form in FORMS),
        "training/step[fp32]",
        "training/step[bf16]",
        "training/loading[main]",
        "training/loading[workers]",
        "collectives/all_reduce",
        "collectives/all_gather",
        "collectives/reduce_scatter",
        "collectives/all_to_all",
        "collectives/broadcast",
        "collectives/reduce",
    ],
)
def test_a_right_operation_is_measured(ranks: Ranks, device: MeasuredDevice, name: str) -> None:
    wide = name.startswith(("attention/", "operators/", "training/"))
    everything = replace(device, support=dict.fromkeys(device.support, "native"))
    result = run_one(
        ranks,
        everything if wide else device,
        name,
        effort=Effort.FULL if wide else Effort.QUICK,
    )
    assert_measured(result)
    assert result.value is not None
    assert result.value > 0
    assert result.statistic == "median"
    assert result.n is not None
    assert result.n >= 5
    assert result.spread is not None
    assert result.evidence == (Evidence.EXECUTED,)
    assert result.extra["threads"] >= 1
    assert result.extra["resolution_s"] > 0
    low, high = result.extra["interval"]
    assert low <= result.value <= high
    assert result.extra["interval_level"] == 0.95
    assert result.extra["telemetry"], "neither readings nor why there are none"


def of_doubles(metric: str, reference: float) -> tuple[Target, Expectation]:
    """AMD's target, with its figure of BabelStream for arrays of 4 MiB."""
    amd = load_target("amd-mi300x")
    (figure,) = amd.expectations(metric)
    small = replace(figure, reference=reference, size_bytes=4 << 20)
    return replace(amd, all_expectations=(small,)), small


@pytest.mark.parametrize("operation", ["copy", "scale", "add", "triad"])
def test_a_vendors_figure_judges_the_arrays_that_it_is_about(
    ranks: Ranks, device: MeasuredDevice, operation: str
) -> None:
    metric = f"memory/{operation}"
    for reference, verdict in ((0.001, Verdict.PASS), (4000.0, Verdict.FAIL)):
        target, figure = of_doubles(metric, reference)
        by_id = {case.id: case for case in plan([metric], device, Effort.QUICK, 2, target)}
        case = by_id[f"{metric}[fp64,4MiB]"]
        result = BenchContext(ranks, device, Effort.QUICK, target, 60.0).result(case)
        if result.verdict is not Verdict.INCONCLUSIVE:  # of a busy machine
            assert result.verdict is verdict, result.reason
        assert result.shape == {"array_bytes": 4 << 20, "dtype": "fp64"}
        assert result.expected is not None
        assert result.expected["source"].startswith(figure.source[0])
        arrays = 3 if operation in ("add", "triad") else 2
        assert result.extra["bytes"] == arrays * (4 << 20), "of 8 bytes an element"


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_to_all"])
def test_collectives_of_three_ranks_are_exact(
    ranks: Ranks, device: MeasuredDevice, operation: str
) -> None:
    (case,) = plan([f"collectives/{operation}"], device, Effort.QUICK, 3, None)
    case = replace(case, arguments={**case.arguments, "sizes": [12 * 1001]})
    assert_measured(BenchContext(ranks, device, Effort.QUICK, None).result(case))


def test_a_bandwidth_has_a_curve_that_ends_in_its_value(
    ranks: Ranks, device: MeasuredDevice
) -> None:
    for name in ("memory/copy", "collectives/all_reduce"):
        result = run_one(ranks, device, name)
        curve = result.extra["curve"]
        assert curve["x"] == SMALL[result.area]["sizes"]
        assert (curve["x_unit"], curve["y_unit"]) == ("B", "GB/s")
        assert curve["y"][-1] == result.value, "the value is that of the largest size"


@pytest.mark.parametrize(
    ("fault", "words"), [("replay_of_a_recorder", ""), ("replay_of_nothing", "of them in graphs")]
)
def test_a_graph_is_timed_against_the_same_adds(
    ranks: Ranks, device: MeasuredDevice, fault: str, words: str
) -> None:
    """Calls that were recorded and are made again: this CPU has no graphs."""
    graphs = replace(device, capabilities=(*device.capabilities, "graphs"))
    result = run_one(ranks, graphs, "launch/graph", fault)
    if words:
        assert result.verdict is Verdict.FAIL
        assert words in result.reason
    else:
        assert_measured(result)
        assert result.unit == "ratio"


def test_attention_says_what_ran_and_skips_what_the_device_lacks(
    ranks: Ranks, device: MeasuredDevice
) -> None:
    result = run_one(ranks, device, "attention/forward[default,fp32]", effort=Effort.FULL)
    assert (result.extra["asked"], result.extra["ran"]) == ("default", "flash")
    # 4 * 2 heads * 64^2 * 16 operations, half of them under the mask
    assert result.extra["flops"] == 4 * 2 * 64**2 * 16 / 2
    lacking = run_one(ranks, device, "attention/forward[efficient,fp32]", effort=Effort.FULL)
    assert lacking.verdict is Verdict.SKIP
    assert "torch has no efficient attention in fp32 on cpu" in lacking.reason


@pytest.mark.parametrize(
    ("operators", "name"),
    [
        (["aten::_scaled_dot_product_flash_attention_for_cpu"], "flash"),
        (["aten::bmm", "aten::_scaled_dot_product_efficient_attention"], "efficient"),
        (["aten::_scaled_dot_product_attention_math"], "math"),
        (["aten::_scaled_dot_product_fused_attention_overrideable"], "overrideable"),
        (["aten::_scaled_dot_product_flash_attention_backward", "aten::mm"], "none of torch's"),
    ],
)
def test_the_back_end_is_that_of_the_operator(operators: list[str], name: str) -> None:
    assert load_area("attention").back_end_of(operators) == name


def test_peers_are_a_matrix_and_the_value_is_the_slowest(
    ranks: Ranks, device: MeasuredDevice
) -> None:
    """Three handles of one CPU: what is timed is not a link."""
    several = replace(device, shared=False, count=3)
    (case,) = plan(["transfer/p2p"], several, Effort.QUICK, 2, None)
    case = replace(case, arguments={**case.arguments, "size": 1 << 16})
    context = BenchContext(ranks, device, Effort.QUICK, None)
    result = context.result(case)
    assert_measured(result)
    rates = [rate for row in result.extra["gb_per_s"] for rate in row if rate is not None]
    assert len(rates) == 6
    assert min(rates) == pytest.approx(result.value)
    assert [result.extra["gb_per_s"][place][place] for place in range(3)] == [None] * 3
    wrong = context.result(replace(case, function=f"{FAULTS}:peers_of_which_one_is_wrong"))
    assert wrong.verdict is Verdict.FAIL
    assert "1 to 2: byte 99" in wrong.reason


def test_an_all_reduce_without_peers_has_the_backends_environment(
    ranks: Ranks, device: MeasuredDevice
) -> None:
    name = "collectives/all_reduce_without_p2p"
    (here,) = plan([name], device, Effort.QUICK, 2, None)
    assert here.absent is not None
    assert here.absent.verdict is Verdict.SKIP
    reported = replace(device, no_peer_copies={"EXAMPLE_NO_P2P": "1"})
    result = run_one(ranks, reported, name, "reduce_that_reports_its_environment")
    assert_measured(result)
    assert result.id == f"{name}[2]"
    assert result.extra["seen"] == "1"
    assert result.extra["environment"] == {"EXAMPLE_NO_P2P": "1"}


def test_a_collective_has_bandwidths_and_latency(ranks: Ranks, device: MeasuredDevice) -> None:
    result = run_one(ranks, device, "collectives/all_gather")
    # two ranks: busbw = algbw * (n - 1) / n
    assert result.extra["algorithm_bandwidth_gb_per_s"] == pytest.approx(2 * result.value)
    low = result.extra["curve"]["y"][0]
    # half of the bytes cross the bus, in as many us as their bandwidth allows
    assert result.extra["latency_us"] == pytest.approx((1 << 12) / 2 / (low * 1e9) * 1e6)
    assert result.extra["latency_bytes"] == 1 << 12


def test_a_training_step_has_its_operations_and_its_share_of_the_fastest_product(
    ranks: Ranks, device: MeasuredDevice
) -> None:
    result = run_one(ranks, device, "training/step[fp32]")
    # 6 (2 layers * 12 * 32^2 + 32 * 64) + 12 * 2 * 32 * 64 operations a token
    assert result.extra["flops_per_token"] == 6 * (24_576 + 2_048) + 49_152
    assert result.extra["flops"] == result.extra["flops_per_token"] * 128
    assert result.extra["loss"] < result.extra["first_loss"]
    product = run_one(ranks, device, "gemm/fp32")
    training = with_shares([product, result], device)[1]
    share = result.extra["flops_per_s"] / (product.value * 1e12)
    assert training.extra["of_ceiling"] == pytest.approx(share)


@pytest.mark.parametrize("fault", ["training_in_fp8", "compiled_by_nothing"])
def test_paths_that_this_machine_may_lack_have_right_values(
    ranks: Ranks, device: MeasuredDevice, fault: str
) -> None:
    what = "step" if fault == "training_in_fp8" else "compile"
    assert_measured(run_one(ranks, device, f"training/{what}[fp32]", fault, effort=Effort.FULL))


def test_fp8_with_a_wrong_scale_fails_and_where_it_is_refused_it_is_skipped(
    ranks: Ranks, device: MeasuredDevice
) -> None:
    name = "training/step[fp32]"
    wrong = run_one(ranks, device, name, "training_in_fp8_with_a_wrong_scale")
    assert wrong.verdict is Verdict.FAIL
    assert "the gradient of" in wrong.reason
    refused = run_one(ranks, device, name, "training_where_torch_refuses_fp8")
    assert refused.verdict is Verdict.SKIP
    assert refused.reason == (
        "torch refuses the products of fp8 backward here: e5m2 needs another device"
    )


def searched(ranks: Ranks, device: MeasuredDevice, fault: str | None = None) -> Result:
    (case,) = plan(["gemm/fp32[max]"], device, Effort.FULL, 2, None)
    case = replace(case, arguments={**case.arguments, "edges": [32, 64]})
    if fault is not None:
        case = replace(case, function=f"{FAULTS}:{fault}")
    return BenchContext(ranks, device, Effort.QUICK, None).result(case)


def test_a_search_says_which_shape_won(ranks: Ranks, device: MeasuredDevice) -> None:
    result = searched(ranks, device)
    assert_measured(result)
    assert set(result.extra["searched_tera_per_s"]) == {"32", "64"}
    won = int(result.extra["won"].partition("x")[0])
    assert result.extra["won"] == f"{won}x{won}x{won}"
    assert result.extra["flops"] == 2 * won**3
    assert result.extra["bytes"] == 3 * 4 * won**2


def test_a_wrong_product_ends_a_search(ranks: Ranks, device: MeasuredDevice) -> None:
    result = searched(ranks, device, "search_with_one_wrong_square")
    assert result.verdict is Verdict.FAIL
    assert "wrong in row 63" in result.reason
    assert result.value is None


def test_cold_operands_take_turns_and_each_is_checked(ranks: Ranks, device: MeasuredDevice) -> None:
    (case,) = plan(["gemm/fp32[1024]"], device, Effort.QUICK, 2, None)
    # (64*32 + 32*48 + 64*48) * 4 bytes = 26,624 a copy
    arguments = {**case.arguments, **SMALL["gemm"], "role": "skinny", "beyond_bytes": 26_625}
    context = BenchContext(ranks, device, Effort.QUICK, None)
    right = context.result(replace(case, arguments=arguments))
    assert (right.extra["operand_copies"], right.extra["role"]) == (2, "skinny")
    fault = f"{FAULTS}:gemm_wrong_in_a_copy"
    wrong = context.result(replace(case, arguments=arguments, function=fault))
    assert wrong.verdict is Verdict.FAIL
    assert "wrong in row 0" in wrong.reason


def test_a_memory_measure_has_levels_bytes_and_flops(ranks: Ranks, device: MeasuredDevice) -> None:
    named = replace(device, caches=(CacheLevel("L1d", 1 << 18),))
    result = run_one(ranks, named, "memory/triad")
    low, high = result.extra["curve"]["y"]
    assert result.extra["levels"] == {"L1d": low, "memory": high}
    # 2**18 elements of 1 MiB: a multiplication and an addition each, three arrays
    assert (result.extra["flops"], result.extra["bytes"]) == (2 << 18, 3 << 20)
    assert "flops" not in run_one(ranks, named, "memory/copy").extra


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("gemm/fp32", "gemm_off_by_one_element", "wrong in row 63"),
        ("gemm/int8", "gemm_off_by_one_element", "wrong in row 63"),
        ("gemm/fp32", "gemm_that_goes_wrong_later", "wrong in row 0"),
        ("gemm/fp32", "gemm_that_does_nothing", "wrong in row 0, column 0: nan"),
        ("gemm/int8", "gemm_that_does_nothing", "wrong"),
        ("gemm/fp32", "gemm_in_half_precision", "wrong"),
        ("memory/copy", "stream_that_skips_the_last_element", "element 16383 is nan"),
        ("memory/scale", "stream_that_skips_the_last_element", "element 16383 is nan"),
        ("memory/add", "stream_that_skips_the_last_element", "element 16383 is nan"),
        ("memory/triad", "stream_that_skips_the_last_element", "element 16383 is nan"),
        ("memory/write", "stream_that_skips_the_last_element", "element 16383 is nan"),
        ("memory/read", "sum_that_skips_the_last_element", "the sum is"),
        ("transfer/h2d[pageable]", "transfer_that_flips_a_bit", "byte 4711"),
        ("transfer/d2h[pageable]", "transfer_that_flips_a_bit", "byte 4711"),
        ("transfer/both[pageable]", "both_ways_that_flip_a_bit", "h2d of 65536 bytes: byte 4711"),
        ("launch/issue", "launch_that_is_lost", "calls added up to"),
        ("launch/throughput", "burst_that_loses_a_launch", "bursts of 200 calls added up to"),
        ("attention/forward[flash,fp32]", "attention_wrong_in_one_element", "in row 5, column 3"),
        ("attention/backward[math,bf16]", "attention_wrong_in_one_element", "dk of head -1"),
        ("attention/forward[flash,fp32]", "attention_by_another_back_end", "and math ran"),
        ("operators/rms_norm", "norm_without_its_weight", "further off than their bound"),
        ("operators/layer_norm", "norm_without_its_weight", "further off than their bound"),
        ("operators/adamw[fused]", "step_with_another_rate", "of parameter 0"),
        ("operators/sgd[foreach]", "step_with_another_rate", "of parameter 0"),
        ("training/step[fp32]", "training_without_a_gradient", "blocks.1.up.weight is off by 0.2"),
        ("training/step[bf16]", "training_without_a_gradient", "blocks.1.up.weight is off by 0.2"),
        ("training/step[fp32]", "training_that_does_not_learn", "the loss of one batch went from"),
        ("training/compile[fp32]", "compiled_to_something_else", "the compiled loss is"),
        ("training/loading[main]", "loading_that_loses_a_batch", "[3] have other sums"),
    ],
)
def test_a_wrong_value_fails_and_keeps_no_number(
    ranks: Ranks, device: MeasuredDevice, name: str, fault: str, words: str
) -> None:
    everything = replace(device, support=dict.fromkeys(device.support, "native"))
    effort = Effort.FULL if name.startswith(("attention/", "training/")) else Effort.QUICK
    result = run_one(ranks, everything, name, fault, effort=effort)
    assert result.verdict is Verdict.FAIL, f"{fault} was not noticed: {result.value}"
    assert words in result.reason
    assert result.value is None, "a number was kept of an operation that is wrong"
    assert "curve" not in result.extra
    assert result.device == "cpu"


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
def test_a_collective_that_is_wrong_on_one_rank_names_it(
    ranks: Ranks, device: MeasuredDevice, operation: str
) -> None:
    result = run_one(ranks, device, f"collectives/{operation}", "collective_wrong_on_rank_1")
    assert result.verdict is Verdict.FAIL, f"was not noticed: {result.value}"
    assert result.device == "rank 1"
    assert result.value is None
    assert "instead of" in result.reason


def test_a_rank_that_dies_in_a_collective_is_named(ranks: Ranks, device: MeasuredDevice) -> None:
    result = run_one(ranks, device, "collectives/all_reduce", "collective_that_kills_rank_1")
    assert result.verdict is Verdict.FAIL
    assert result.device == "rank 1"
    assert "SIGKILL" in result.reason


@pytest.mark.usefixtures("quiet_machine")
def test_a_rank_that_hangs_in_a_collective_is_named(ranks: Ranks, device: MeasuredDevice) -> None:
    result = run_one(
        ranks,
        device,
        "collectives/all_reduce",
        "collective_where_rank_1_hangs",
        timeout_s=4.0,  # allowed: what it limits never ends
    )
    assert result.verdict is Verdict.FAIL
    assert result.device == "rank 1"
    assert "hung" in result.reason


def test_a_check_that_raises_is_an_error_and_not_a_failure(
    ranks: Ranks, device: MeasuredDevice
) -> None:
    result = run_one(ranks, device, "gemm/fp32", "gemm_that_raises")
    assert result.verdict is Verdict.ERROR
    assert "no such kernel" in result.reason
    assert result.evidence == ()


def measured(ranks: Ranks, *names: str, backend: str = "cpu", **more: Any) -> list[Result]:
    options = bench.BenchOptions(names=names, backend=backend, **more)
    run = options.new_run()
    bench.measure(run, options, ranks, Progress())
    return run.results


def test_a_run_reports_each_case_as_it_ends() -> None:
    recorder = Recorder()
    run = bench.run(bench.BenchOptions(names=["launch", "gemm/tf32"], backend="cpu"), recorder)
    assert sorted(each.id for each in recorder.results) == sorted(each.id for each in run.results)
    ids = [each.id for each in run.results]
    assert ids == ["gemm/tf32[1024]", *LAUNCHES, "launch/graph"]
    begun = {name for name, _, _ in recorder.begun}
    assert begun == set(LAUNCHES), "a skipped case does not begin"
    assert [each[1:] for each in recorder.begun] == [(1, 5), (2, 5), (3, 5)]
    (device,) = recorder.devices
    assert device.backend == run.info.backend == "cpu"
    assert [each["name"] for each in run.info.devices] == [device.product or device.name]
    assert run.info.versions["torch"] == device.versions["torch"]
    assert not run.info.interrupted
    assert run.results[0].verdict is Verdict.SKIP


def test_the_order_is_that_of_the_seed_and_the_list_that_of_the_plan() -> None:
    cases = plan(None, MeasuredDevice(backend="", name=""), Effort.QUICK, 2, None)
    first, again, other = (shuffled(cases, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(case.id for case in first) == sorted(case.id for case in cases)
    recorder = Recorder()
    run = bench.run(bench.BenchOptions(names=["launch"], backend="cpu", seed=7), recorder)
    order = {each.id: each.extra["order"] for each in run.results if each.id in LAUNCHES}
    assert {each["seed"] for each in order.values()} == {7}
    assert [name for name, _, _ in recorder.begun] == sorted(order, key=lambda n: order[n]["place"])
    assert [each.id for each in run.results][:3] == LAUNCHES


def test_a_quick_run_of_everything_begins_nothing_when_its_time_is_over(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.suites.performance.runner.QUICK_S", 0.0)
    results = measured(ranks)
    assert {each.verdict for each in results} == {Verdict.INCONCLUSIVE, Verdict.SKIP}
    left = [each.reason for each in results if each.verdict is Verdict.INCONCLUSIVE]
    assert set(left) == {
        "not run: the 0 s of a quick run are over; name it with --only, or use --level full"
    }
    (named,) = measured(ranks, "launch/issue")
    assert named.value is not None, "what is asked for by name runs"


def test_collectives_of_one_rank_have_no_value(ranks: Ranks) -> None:
    results = measured(ranks, "collectives", world=1)
    assert len(results) == 7
    for result in results:
        assert result.verdict is Verdict.SKIP
        assert result.value is None
        assert "not applicable" in result.reason


def test_a_target_that_is_not_here_is_not_judged(ranks: Ranks) -> None:
    results = measured(ranks, "gemm", "memory", target="amd-mi300x")
    assert {result.verdict for result in results} == {Verdict.INCONCLUSIVE, Verdict.SKIP}
    inconclusive = [each for each in results if each.verdict is Verdict.INCONCLUSIVE]
    assert all("not amd-mi300x" in each.reason for each in inconclusive)
    assert "gemm/bf16[10240x15360x8192]" in [each.id for each in inconclusive]


def test_a_device_that_does_not_open_blocks_everything(ranks: Ranks) -> None:
    results = measured(ranks, "launch", backend="no-such-backend")
    assert results[0].id == OPEN_ID
    assert results[0].verdict is Verdict.ERROR
    assert [each.verdict for each in results[1:]] == [Verdict.INCONCLUSIVE] * 4
    assert {each.blocked_by for each in results[1:]} == {OPEN_ID}


def test_ranks_are_compared_with_one_another(ranks: Ranks) -> None:
    found = bench.compare_ranks(ranks, backend="cpu", world=4, size=64, relative=100.0)
    assert [result.device for result in found.results] == [f"rank {rank}" for rank in range(4)]
    assert {result.verdict for result in found.results} == {Verdict.PASS}
    assert found.peers.judged


def test_fewer_than_four_ranks_are_not_compared(ranks: Ranks) -> None:
    found = bench.compare_ranks(ranks, backend="cpu", world=2, size=64)
    assert {result.verdict for result in found.results} == {Verdict.UNVERIFIED}
    assert "too few" in found.results[0].reason


def broken(ranks: Ranks, name: str, fault: str) -> Ranks:
    """``ranks`` that run ``fault`` in place of the function of that name."""
    run = ranks.run

    class Broken:
        def run(self, function: str, *positional: Any, **options: Any) -> Any:
            assert function.endswith(f":{name}"), f"{function} is not what is broken"
            return run(f"{FAULTS}:{fault}", *positional, **options)

    return Broken()  # type: ignore[return-value]


def test_a_slow_rank_is_the_outlier(ranks: Ranks) -> None:
    slow = broken(ranks, "take_turns", "turns_where_rank_2_is_slow")
    found = bench.compare_ranks(slow, backend="cpu", world=4, size=64, relative=0.5)
    failed = [result for result in found.results if result.verdict is Verdict.FAIL]
    assert [result.device for result in failed] == ["rank 2"]
    assert "below the median of its peers" in failed[0].reason


def test_a_rank_that_computes_wrong_is_named(ranks: Ranks) -> None:
    wrong = broken(ranks, "take_turns", "turns_where_rank_3_is_wrong")
    found = bench.compare_ranks(wrong, backend="cpu", world=4, size=64, relative=100.0)
    failed = [result for result in found.results if result.verdict is Verdict.FAIL]
    assert [result.device for result in failed] == ["rank 3"]
    assert failed[0].value is None


def test_a_sustained_load_reports_each_interval(ranks: Ranks) -> None:
    seen: list[float] = []
    (found,) = bench.sustain_load(
        broken(ranks, "sustain", "sustain_by_a_clock_of_steps"),
        2.0,
        backend="cpu",
        size=64,
        interval_s=0.1,
        on_interval=lambda rank, data: seen.append(data["tflops"]),
    )
    assert found.wrong == ""
    # an interval reads its start, 100 ms in steps of 20, what elapsed, and whether to go on
    assert len(found.throughput) == pytest.approx(2.0 / (8 * 0.02), abs=2)
    assert seen == [rate for _, rate in found.throughput]
    assert found.compared > found.judged["batches"] >= len(found.throughput)
    assert found.judged["by"].startswith("every element")
    assert found.judged["share"] is not None
    by_id = {result.id: result for result in found.results}
    assert by_id["sustained/identical"].verdict is Verdict.PASS
    assert by_id["sustained/gemm"].unit == "TFLOPS"
    assert by_id["sustained/drift"].unit == "%"
    assert by_id["sustained/drift"].value == pytest.approx(
        load.drift_percent([rate for _, rate in found.throughput])
    )


def test_the_load_goes_on_while_its_device_is_asked(ranks: Ranks) -> None:
    (found,) = bench.sustain_load(
        broken(ranks, "sustain", "sustain_with_slow_telemetry"),
        3.0,
        backend="cpu",
        size=64,
        interval_s=0.1,
    )
    assert found.wrong == ""
    clocks = {each["clock_mhz"] for each in found.readings}
    assert clocks == {1980.0}, f"readings of an idle device, or none: {found.readings}"


def test_a_load_that_others_slow_down_ends_in_time(ranks: Ranks) -> None:
    """A batch sized by one fast product would hold thousands, and last for minutes."""
    slowed = broken(ranks, "sustain", "sustain_during_work_that_slows_it_down")
    (found,) = bench.sustain_load(slowed, 0.5, backend="cpu", size=64, interval_s=0.1)
    assert found.wrong == ""
    assert found.throughput


def test_ranks_under_load_on_one_device_are_distinguished(ranks: Ranks) -> None:
    found = bench.sustain_load(ranks, 0.1, backend="cpu", indices=[0, 0], size=64, interval_s=0.1)
    assert [each.device for each in found] == ["rank 0", "rank 1"]
    ids = [(result.id, result.device) for each in found for result in each.results]
    assert len(ids) == len(set(ids)), "one run cannot hold both"


def test_a_load_that_computes_other_bits_fails(ranks: Ranks) -> None:
    flipped = broken(ranks, "sustain", "sustain_with_a_flipped_bit")
    (found,) = bench.sustain_load(flipped, 1.0, backend="cpu", size=64, interval_s=0.2)
    (result,) = found.results
    assert result.verdict is Verdict.FAIL
    assert "1 of 4096 elements" in result.reason
    assert result.device == "cpu"
