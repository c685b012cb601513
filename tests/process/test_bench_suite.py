"""What is planned, from facts alone: no device and no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.facts.host import Cache
from portagpu.facts.targets import load_target
from portagpu.facts.targets.expect import METRICS
from portagpu.runs.results.run import Verdict
from portagpu.suites.performance import AREAS, Effort, MeasuredDevice, UnknownMeasure, metrics
from portagpu.suites.performance.cases import (
    BEYOND_CACHE,
    cache_sentence,
    large_array_bytes,
    load_area,
    plan,
    selected_areas,
)
from portagpu.suites.performance.device import (
    CacheLevel,
    best_by_level,
    levels_of_host,
    levels_of_target,
)

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


def test_a_transformers_products_are_planned_and_skinny_and_unaligned_ones() -> None:
    quick = {case.id: case for case in plan(["gemm"], GPU, Effort.QUICK, 8, None)}
    # Llama 3 8B: 32 heads of 128 and 2 x 8 of them for keys and values; an MLP of 14336
    for shape in ("4096x6144x4096", "4096x14336x4096", "4096x4096x14336", "4096x128256x4096"):
        assert f"gemm/bf16[{shape}]" in quick
        assert f"gemm/fp32[{shape}]" not in quick, "a quick run has them in one dtype"
    skinny = quick["gemm/bf16[16x14336x4096]"]
    assert skinny.arguments["beyond_bytes"] == 2 * 32 * MIB
    assert "weights from memory" in skinny.arguments["role"]
    assert "gemm/bf16[8193]" in quick
    full = [case.id for case in plan(["gemm"], GPU, Effort.FULL, 8, None)]
    assert {"gemm/fp8[4096x6144x4096]", "gemm/fp16[8193]", "gemm/bf16[max]"} <= set(full)
    assert "gemm/fp8[8193]" not in full, "torch multiplies fp8 by multiples of 16 only"
    assert not [name for name in quick if "max" in name]


def test_a_bring_up_leaves_further_products_out_and_keeps_what_targets_expect() -> None:
    found = plan(["gemm"], GPU, Effort.FULL, 8, load_target("nvidia-h200-sxm"))
    kept = [case.id for case in found if case.id.startswith("gemm/bf16") and not case.further]
    assert kept == ["gemm/bf16[8192]", "gemm/bf16[2048x2048x13312]"]


def test_a_dtype_that_is_emulated_has_no_further_shapes() -> None:
    ids = [case.id for case in plan(["gemm"], CPU, Effort.QUICK, 2, None)]
    assert "gemm/fp32[512x2304x768]" in ids
    assert [name for name in ids if name.startswith("gemm/bf16")] == ["gemm/bf16[256]"]


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


def test_the_sizes_of_memory_lead_through_every_cache() -> None:
    caches = (CacheLevel("L1d", 128 << 10), CacheLevel("L2", 4 * MIB), CacheLevel("L3", 32 * MIB))
    device = replace(CPU, caches=caches)
    for effort in Effort:
        for case in plan(["memory"], device, effort, 2, None):
            sizes = case.arguments["sizes"]
            assert sizes[0] == 4096
            assert sizes == sorted(set(sizes))
            arrays = {"read": 1, "write": 1, "copy": 2, "scale": 2}.get(case.id[7:], 3)
            found = best_by_level(caches, [arrays * size for size in sizes], sizes)
            assert list(found) == ["L1d", "L2", "L3", "memory"], case.id


def test_a_level_has_the_best_of_the_sizes_that_only_it_holds() -> None:
    levels = [CacheLevel("L1d", 100), CacheLevel("L2", 1000)]
    sizes, values = [50, 100, 101, 1000, 1001], [3.0, 9.0, 8.0, 7.0, 2.0]
    assert best_by_level(levels, sizes, values) == {"L1d": 9.0, "L2": 8.0, "memory": 2.0}
    assert best_by_level(levels, [50, 2000], [3.0, 2.0]) == {"L1d": 3.0, "memory": 2.0}
    assert best_by_level([], [50], [3.0]) == {"memory": 3.0}


def test_caches_have_the_names_and_sizes_of_the_facts() -> None:
    host = [
        Cache(1, "data", 48 << 10, 4, 1),
        Cache(1, "instruction", 64 << 10, 4, 1),
        Cache(2, "unified", 2 * MIB, 4, 1),
        Cache(3, "unified", 32 * MIB, 1, 4),
    ]
    assert levels_of_host(host) == [
        CacheLevel("L1d", 192 << 10),
        CacheLevel("L2", 8 * MIB),
        CacheLevel("L3", 32 * MIB),
    ]
    # 32 KiB in each of 304 compute units, 4 MiB in each of 8 chiplets, 256 MiB of Infinity Cache
    assert levels_of_target(load_target("amd-mi300x"), 304) == [
        CacheLevel("L1", 304 * 32 << 10),
        CacheLevel("L2", 32 * MIB),
        CacheLevel("memory-side cache", 256 * MIB),
    ]


def test_quick_arrays_of_a_cpu_are_small_where_large_ones_would_prove_nothing() -> None:
    server = replace(CPU, cache_bytes=480 * MIB, free_bytes=24 << 30)
    assert large_array_bytes(server, 3) >= BEYOND_CACHE * 480 * MIB
    quick = large_array_bytes(server, 3, Effort.QUICK)
    assert quick == 64 * MIB
    assert "not 4 times" in cache_sentence(server, quick)
    # four times a cache of 128 MiB is what a quick run may take
    beyond = replace(server, cache_bytes=128 * MIB)
    assert large_array_bytes(beyond, 3, Effort.QUICK) == 512 * MIB
    assert cache_sentence(beyond, 512 * MIB) == ""
    for case in plan(["transfer"], server, Effort.QUICK, 2, None):
        if case.absent is None:
            assert case.arguments["sizes"][-1] == 64 * MIB, case.id
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
    with pytest.raises(UnknownMeasure, match=r"gemm/fp32\[102[45]\]"):
        plan(["gemm/fp32[1026]"], CPU, Effort.QUICK, 2, None)


def test_areas_run_in_their_order_whatever_is_asked_first() -> None:
    assert selected_areas(["collectives", "gemm/fp32"]) == ("gemm", "collectives")
    assert selected_areas([]) == AREAS


def test_planning_imports_no_torch(child: Callable[..., Any]) -> None:
    code = (
        "import sys\n"
        "from portagpu.suites import performance as bench\n"
        "from portagpu.suites.performance.cases import plan\n"
        "assert bench.metrics()\n"
        "plan(None, bench.MeasuredDevice(backend='', name=''), bench.Effort.QUICK, 2, None)\n"
        "assert 'torch' not in sys.modules, 'planning imported torch'\n"
    )
    child("-c", code).ok()
