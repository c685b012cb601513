"""What is planned, from facts alone: no device and no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.bench import AREAS, Effort, MeasuredDevice, UnknownMeasure, metrics
from portagpu.bench.cases import BEYOND_CACHE, cache_sentence, large_array_bytes
from portagpu.bench.suite import load_area, plan, selected_areas
from portagpu.results.run import Verdict
from portagpu.target import load_target
from portagpu.target.limits import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
CPU = MeasuredDevice(
    backend="cpu",
    name="cpu",
    shared=True,
    target="cpu-x86-64",
    cache_bytes=32 * MIB,
    free_bytes=16384 * MIB,
    support={"fp64": "native", "fp32": "native", "bf16": "emulated", "fp8": "storage"},
    capabilities=("collectives", "events"),
)
GPU = replace(
    CPU,
    backend="some",
    name="some:0",
    count=8,
    shared=False,
    support=dict.fromkeys(("fp64", "fp32", "bf16", "fp16", "fp8", "int8"), "native"),
    capabilities=("collectives", "events", "pinned-memory"),
)


def test_every_area_has_metrics_and_a_plan() -> None:
    for area in AREAS:
        found = [metric for metric in metrics() if metric.startswith(f"{area}/")]
        cases = plan([area], CPU, Effort.QUICK, 2, None)
        assert {case.metric for case in cases} == set(found), f"{area} plans other metrics"
        assert all(case.area == area for case in cases)


def test_ids_are_unique() -> None:
    for device in (CPU, GPU):
        ids = [case.id for case in plan(None, device, Effort.FULL, 8, load_target("amd-mi300x"))]
        assert len(ids) == len(set(ids))


def test_units_are_those_that_targets_expect() -> None:
    for case in plan(None, GPU, Effort.QUICK, 8, None):
        if case.metric in METRICS:
            assert case.unit == METRICS[case.metric].unit, f"{case.id} is in {case.unit}"
        assert case.algorithm is None or case.algorithm in METRICS[case.metric].algorithms


def test_each_case_says_what_it_counts_and_checks() -> None:
    for case in plan(None, CPU, Effort.QUICK, 2, None):
        assert case.counts, f"{case.id} does not say what it counts"
        assert case.checks, f"{case.id} does not say what it checks"
        assert callable(getattr(load_area(case.area), case.function))


def test_the_product_that_a_target_expects_is_planned() -> None:
    h200 = plan(["gemm/bf16"], GPU, Effort.QUICK, 8, load_target("nvidia-h200-sxm"))
    assert "gemm/bf16[2048x2048x13312]" in [case.id for case in h200]
    expected = next(case for case in h200 if "2048x2048" in case.id)
    shape = {"m": 2048, "n": 2048, "k": 13312}
    assert expected.arguments == {"dtype": "bf16", **shape, "contiguous": "kn"}


def test_a_product_lies_in_memory_as_the_source_has_it() -> None:
    """The transposes of the vendor's command lines, column by column: N and T; T and N."""
    planned = plan(["gemm/fp32"], GPU, Effort.QUICK, 8, load_target("amd-mi300x"))
    layouts = {case.id: case.arguments["contiguous"] for case in planned}
    assert layouts == {
        "gemm/fp32[4096]": "kn",
        "gemm/fp32[4000,mn]": "mn",
        "gemm/fp32[3072,kk]": "kk",
    }


def test_the_size_that_a_target_expects_is_planned_in_a_full_run() -> None:
    room = replace(GPU, free_bytes=130_000 * MIB)
    found = plan(["collectives/all_reduce"], room, Effort.FULL, 8, load_target("amd-mi300x"))
    sizes = {case.id: case.arguments["sizes"] for case in found}
    assert sizes["collectives/all_reduce[8,4096MiB]"] == [4 << 30]
    assert sizes["collectives/all_reduce[8,8192MiB]"] == [8 << 30]
    assert sizes["collectives/all_reduce[8,16384MiB]"] == [16 << 30]
    assert len(sizes) == 4
    small = replace(GPU, free_bytes=40_000 * MIB)
    found = plan(["collectives/all_reduce"], small, Effort.FULL, 8, load_target("amd-mi300x"))
    assert len(found) == 3, "16 GiB do not fit"


@pytest.mark.parametrize("dtype", ["fp8", "fp16", "tf32"])
def test_a_dtype_without_arithmetic_is_skipped_with_the_reason(dtype: str) -> None:
    (case,) = plan([f"gemm/{dtype}"], CPU, Effort.QUICK, 2, None)
    assert case.absent is not None
    assert case.absent.verdict is Verdict.SKIP
    assert dtype in case.absent.reason


def test_page_locked_memory_that_is_not_claimed_is_skipped() -> None:
    (case,) = plan(["transfer/h2d[pinned]"], CPU, Effort.QUICK, 2, None)
    assert case.absent is not None
    assert case.absent.verdict is Verdict.SKIP


def test_a_transfer_on_a_cpu_says_that_no_link_is_crossed() -> None:
    (case,) = plan(["transfer/h2d[pageable]"], CPU, Effort.QUICK, 2, None)
    assert "host-to-host" in case.does_not_show
    (case,) = plan(["transfer/h2d[pageable]"], GPU, Effort.QUICK, 2, None)
    assert "host-to-host" not in case.does_not_show


def test_collectives_of_one_rank_are_not_applicable() -> None:
    for case in plan(["collectives"], CPU, Effort.QUICK, 1, None):
        assert case.absent is not None
        assert case.absent.verdict is Verdict.SKIP
        assert "not applicable" in case.absent.reason


def test_more_ranks_than_devices_are_not_judged() -> None:
    for case in plan(["collectives"], GPU, Effort.QUICK, 16, None):
        assert case.absent is not None
        assert case.absent.verdict is Verdict.INCONCLUSIVE
        assert "16 devices" in case.absent.reason


def test_sizes_of_collectives_divide_among_ranks() -> None:
    for world in (2, 3, 8):
        for case in plan(["collectives"], GPU, Effort.FULL, world, None):
            odd = [size for size in case.arguments["sizes"] if size % (4 * world)]
            assert not odd, f"{case.id} cannot split {odd} bytes"


def test_arrays_are_larger_than_the_cache() -> None:
    size = large_array_bytes(CPU, arrays=3)
    assert size >= BEYOND_CACHE * 32 * MIB
    assert cache_sentence(CPU, size) == ""


def test_quick_arrays_of_a_cpu_are_small_beside_a_large_cache() -> None:
    server = replace(CPU, cache_bytes=480 * MIB, free_bytes=24 << 30)
    assert large_array_bytes(server, 3) >= BEYOND_CACHE * 480 * MIB
    quick = large_array_bytes(server, 3, Effort.QUICK)
    assert quick == 512 * MIB
    assert "not 4 times" in cache_sentence(server, quick)
    gpu = replace(server, shared=False)
    assert large_array_bytes(gpu, 3, Effort.QUICK) >= BEYOND_CACHE * 480 * MIB


def test_arrays_that_memory_keeps_small_say_so() -> None:
    tight = replace(CPU, free_bytes=512 * MIB)
    size = large_array_bytes(tight, arrays=3)
    assert 3 * size <= 512 * MIB // 4
    assert "cache" in cache_sentence(tight, size)


def test_an_unknown_cache_is_stated() -> None:
    unknown = replace(CPU, cache_bytes=None)
    assert "unknown" in cache_sentence(unknown, large_array_bytes(unknown, arrays=3))


def test_a_device_described_by_its_target_claims_what_has_a_rate() -> None:
    mi300x, h200 = (
        MeasuredDevice.from_target(load_target(n)) for n in ("amd-mi300x", "nvidia-h200-sxm")
    )
    assert mi300x.cache_bytes == 256 * MIB
    assert mi300x.triton
    assert not mi300x.shared
    assert h200.support["tf32"] == "native"
    assert mi300x.support["tf32"] == "none", "its matrix units have another format of 32 bits"
    cpu = MeasuredDevice.from_target(load_target("cpu-x86-64"))
    assert (cpu.triton, cpu.shared) == (False, True)


@pytest.mark.parametrize(
    ("name", "offer"),
    [("gem", "gemm"), ("gemm/bf15", "gemm/bf16"), ("memory/copi", "memory/copy"), ("zzz", "gemm")],
)
def test_an_unknown_name_offers_the_closest(name: str, offer: str) -> None:
    with pytest.raises(UnknownMeasure, match=offer):
        selected_areas([name])


def test_an_unknown_case_of_a_known_metric_is_refused() -> None:
    with pytest.raises(UnknownMeasure, match=r"gemm/fp32\[1024\]"):
        plan(["gemm/fp32[1025]"], CPU, Effort.QUICK, 2, None)


def test_areas_run_in_their_order_whatever_is_asked_first() -> None:
    assert selected_areas(["collectives", "gemm/fp32"]) == ("gemm", "collectives")
    assert selected_areas([]) == AREAS


def test_planning_imports_no_torch(child: Callable[..., Any]) -> None:
    code = (
        "import sys\n"
        "from portagpu import bench\n"
        "from portagpu.bench.suite import plan\n"
        "assert bench.metrics()\n"
        "plan(None, bench.MeasuredDevice(backend='', name=''), bench.Effort.QUICK, 2, None)\n"
        "assert 'torch' not in sys.modules, 'planning imported torch'\n"
    )
    child("-c", code).ok()
