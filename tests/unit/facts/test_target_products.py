"""Every product that ships, against figures worked out by hand and against known wrong ones."""

from __future__ import annotations

import math

import pytest

from portagpu.facts.targets import Authority, Confidence, Target, load_target, load_targets

# Dense bf16, or fp16 where there is no bf16, as units x FLOP a clock and unit x clock in MHz, from
# the vendors' block diagrams; or the published rate in TFLOPS where they do not give a clock.
# id: warp size, units, dtype, rate, memory as sold in GB
PRODUCTS: dict[str, tuple[int, int | None, str, tuple[int, int, float] | float, list[int]]] = {
    "nvidia-v100-sxm2": (32, 80, "fp16", (80, 8 * 64 * 2, 1530), [16, 32]),
    "nvidia-t4": (32, 40, "fp16", (40, 8 * 64 * 2, 1590), [16]),
    "nvidia-a100-sxm-40gb": (32, 108, "bf16", (108, 4 * 256 * 2, 1410), [40]),
    "nvidia-a100-sxm-80gb": (32, 108, "bf16", (108, 4 * 256 * 2, 1410), [80]),
    "nvidia-a100-pcie-80gb": (32, 108, "bf16", (108, 4 * 256 * 2, 1410), [80]),
    "nvidia-a10": (32, 72, "bf16", (72, 4 * 128 * 2, 1695), [24]),
    "nvidia-rtx3090": (32, 82, "bf16", (82, 4 * 64 * 2, 1695), [24]),
    "nvidia-l4": (32, 58, "bf16", (58, 4 * 128 * 2, 2040), [24]),
    "nvidia-l40s": (32, 142, "bf16", (142, 4 * 128 * 2, 2490), [48]),
    "nvidia-rtx4090": (32, 128, "bf16", (128, 4 * 64 * 2, 2520), [24]),
    "nvidia-h100-sxm": (32, 132, "bf16", (132, 4 * 512 * 2, 1830), [80]),
    "nvidia-h100-pcie": (32, 114, "bf16", (114, 4 * 512 * 2, 1620), [80]),
    "nvidia-h100-nvl": (32, 132, "bf16", (132, 4 * 512 * 2, 1545), [94]),
    "nvidia-h200-sxm": (32, 132, "bf16", (132, 4 * 512 * 2, 1830), [141]),
    "nvidia-gh200": (32, 132, "bf16", (132, 4 * 512 * 2, 1830), [96, 141]),
    "nvidia-b100": (32, None, "bf16", 1750.0, [192]),
    "nvidia-b200-sxm": (32, 148, "bf16", 2250.0, [180]),
    "nvidia-gb200": (32, None, "bf16", 2500.0, [186]),
    "nvidia-b300-sxm": (32, 148, "bf16", 2250.0, [288]),
    "nvidia-rtx5090": (32, 170, "bf16", (170, 4 * 64 * 2, 2407), [32]),
    "amd-mi50": (64, 60, "fp16", (60, 4 * 16 * 2 * 2, 1725), [16, 32]),
    "amd-mi100": (64, 120, "fp16", (120, 4 * 128 * 2, 1502), [32]),
    "amd-mi210": (64, 104, "bf16", (104, 4 * 128 * 2, 1700), [64]),
    "amd-mi250x": (64, 110, "bf16", (110, 4 * 128 * 2, 1700), [64]),
    "amd-mi300a": (64, 228, "bf16", (228, 4 * 256 * 2, 2100), [128]),
    "amd-mi300x": (64, 304, "bf16", (304, 4 * 256 * 2, 2100), [192]),
    "amd-mi325x": (64, 304, "bf16", (304, 4 * 256 * 2, 2100), [256]),
    "amd-mi350x": (64, 256, "bf16", (256, 4 * 512 * 2, 2200), [288]),
    "amd-mi355x": (64, 256, "bf16", (256, 4 * 512 * 2, 2400), [288]),
    # the unit is the workgroup processor of two compute units, which is what torch reports
    "amd-rx7900xtx": (32, 48, "bf16", (96, 512, 2500), [24]),
    "amd-w7900": (32, 48, "bf16", (96, 512, 2495), [48]),
    "amd-rx9070xt": (32, 32, "bf16", (64, 1024, 2970), [16]),
    "amd-r9700": (32, 32, "bf16", (64, 1024, 2920), [32]),
}


def gpus() -> list[Target]:
    return [each for each in load_targets().values() if each.vendor != "cpu"]


def test_every_product_of_the_table_is_a_target() -> None:
    """A new target needs no row: its file is checked by the rules between its facts."""
    missing = set(PRODUCTS) - {each.id for each in gpus()}
    assert not missing
    assert {"cpu-aarch64", "cpu-x86-64"} <= set(load_targets())


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_the_figures_of_its_hardware(name: str) -> None:
    warp, units, dtype, rate, memory = PRODUCTS[name]
    target = load_target(name)
    assert target.arch.warp_size == warp
    assert target.value("exec.unit_count") == units
    sizes = target.value("memory.sizes") or (target.value("memory.size"),)
    assert list(sizes) == memory
    peak = target.peak(dtype)
    assert peak is not None, f"{name} has no {dtype}"
    assert not peak.sparse
    tflops = rate if isinstance(rate, float) else math.prod(rate) * 1e6 / 1e12
    assert peak.value == pytest.approx(tflops, rel=0.01), f"{name}: {dtype}"


# Every erratum that names a figure of a product: target, key, what is often written, what holds.
# None means that there is no such fact. A key of the whole family is tested on one member.
ERRATA = [
    ("nvidia-h100-sxm", "peak.dense.matrix.fp16", 1979, 989.4),
    ("nvidia-h100-pcie", "peak.dense.matrix.fp16", 1513, 756),
    ("nvidia-h100-sxm", "peak.dense.matrix.tf32", 989.4, 494.7),
    ("nvidia-h100-sxm", "peak.dense.matrix.fp8", 3957.8, 1978.9),
    ("nvidia-h100-sxm", "peak.dense.matrix.int8", 3957.8, 1978.9),
    ("nvidia-h100-sxm", "link.total_bidirectional", 600, 900),
    ("nvidia-h100-sxm", "link.total_per_direction", 900, 450),
    ("nvidia-h100-sxm", "peak.clock.matrix", 1980, 1830),
    ("nvidia-h100-sxm", "shared_memory.reserved_per_block", 0, 1024),
    ("nvidia-h200-sxm", "peak.dense.matrix.fp16", 1970, 989.4),
    ("nvidia-a100-sxm-80gb", "peak.dense.matrix.fp8", 624, None),
    ("nvidia-a100-sxm-80gb", "link.total_per_direction", 600, 300),
    ("nvidia-b300-sxm", "peak.dense.matrix.int8", 4500, 150),
    ("nvidia-b300-sxm", "peak.dense.matrix.fp16", 3500, 2250),
    ("nvidia-b300-sxm", "peak.dense.matrix.fp8", 7000, 4500),
    ("nvidia-b200-sxm", "shared_memory.per_unit", 262144, 233472),
    ("nvidia-rtx3090", "peak.dense.matrix.bf16", None, 71),
    ("nvidia-rtx5090", "peak.dense.matrix.fp16", 838, 209.5),
    ("nvidia-rtx5090", "peak.dense.matrix.fp4", 3352, 1676),
    ("nvidia-rtx5090", "peak.dense.matrix.fp8", 3352, 419),
    ("amd-mi50", "cache.l1_per_unit", 32, 16),
    ("amd-mi100", "cache.l1_per_unit", 32, 16),
    ("amd-mi210", "cache.l1_per_unit", 32, 16),
    ("amd-mi250x", "cache.l1_per_unit", 32, 16),
    ("amd-mi300a", "cache.l1_per_unit", 16, 32),
    ("amd-mi355x", "cache.l1_per_unit", 16, 32),
    ("amd-rx7900xtx", "cache.l1_per_unit", 16, 2 * 32),
    ("amd-mi100", "exec.max_waves_per_unit", 10, 40),
    ("amd-mi100", "host_link.per_direction", 16, 31),
    ("amd-mi100", "peak.dense.matrix.fp64", 11.5, None),
    ("amd-mi100", "peak.dense.matrix.fp16", None, 184.6),
    ("amd-mi250x", "peak.dense.matrix.fp16", 383, 191.5),
    ("amd-mi250x", "exec.unit_count", 220, 110),
    ("amd-mi300x", "cache.l2_total", 8, 32),
    ("amd-mi300x", "cache.memory_side_total", None, 256),
    ("amd-mi300x", "peak.dense.matrix.fp16", 2614.9, 1307.4),
    ("amd-mi300x", "peak.dense.vector.fp32", 330.6, 163.4),
    ("amd-mi300x", "register.alloc_granularity", 16, 8),
    ("amd-mi300x", "matrix.fp8_flavour", "ocp", "fnuz"),
    ("amd-mi355x", "matrix.fp8_flavour", "fnuz", "ocp"),
    ("amd-mi355x", "peak.dense.matrix.xf32", 1307.4, None),
    ("amd-mi355x", "peak.dense.matrix.fp16", 18500, 2516.6),
    ("amd-mi355x", "peak.dense.matrix.fp8", 37000, 5033.2),
    ("amd-mi355x", "peak.dense.matrix.fp4", 74000, 10066.3),
    ("amd-mi355x", "cache.memory_side_total", 64, 256),
    ("amd-rx9070xt", "peak.dense.matrix.int8", 779, 389.3),
    ("amd-rx9070xt", "peak.dense.matrix.int4", 1557, 778.5),
]


@pytest.mark.parametrize(("name", "key", "wrong", "right"), ERRATA)
def test_a_figure_that_is_often_wrong_is_right(
    name: str, key: str, wrong: float | str | None, right: float | str | None
) -> None:
    value = load_target(name).value(key)
    assert value != wrong
    assert value == right, f"{name}: {key}"


def test_names_of_architectures_that_are_often_mixed_up() -> None:
    for name in ("amd-mi300a", "amd-mi300x", "amd-mi325x"):
        assert load_target(name).arch.name == "gfx942", "gfx940 is a name that LLVM dropped"
    for name in ("nvidia-b100", "nvidia-b200-sxm", "nvidia-gb200"):
        assert load_target(name).arch.name == "sm_100", "neither sm_90 nor sm_120"
    assert load_target("nvidia-rtx5090").arch.name == "sm_120"


def test_only_one_fp8_encoding_runs_and_it_is_the_architectures() -> None:
    flavours = {each.arch.name: each.value("matrix.fp8_flavour") for each in gpus()}
    assert {arch for arch, flavour in flavours.items() if flavour == "fnuz"} == {"gfx942"}
    assert {arch for arch, flavour in flavours.items() if flavour == "ocp"} == {
        "sm_89",
        "sm_90",
        "sm_100",
        "sm_103",
        "sm_120",
        "gfx950",
        "gfx1201",
    }
    for target in gpus():
        for dtype in ("torch.float8_e4m3fn", "torch.float8_e4m3fnuz", "fp8"):
            if target.value("matrix.fp8_flavour") is None:
                assert target.peak(dtype) is None, f"{target.id} has no fp8"


def test_bf16_in_the_matrix_unit_starts_with_sm_80_and_gfx908() -> None:
    without = {each.arch.name for each in gpus() if "bf16" not in _dtypes(each)}
    assert without == {"sm_70", "sm_75", "gfx906"}


def _dtypes(target: Target) -> tuple[str, ...]:
    return target.value("matrix.dtypes") or ()


def test_wavefronts_have_64_lanes_on_gfx9_and_32_elsewhere() -> None:
    for target in gpus():
        wide = target.arch.name.startswith("gfx9")
        assert target.arch.warp_size == (64 if wide else 32), target.id


def test_one_direction_of_a_link_is_half_of_both() -> None:
    linked = {each.id: each for each in gpus() if each.value("link.total_bidirectional")}
    assert len(linked) > 15, "the test found the links"
    for target in linked.values():
        both, one = (target.value(f"link.total_{d}") for d in ("bidirectional", "per_direction"))
        assert both == pytest.approx(2 * one), target.id
    wires = {"nvidia-v100-sxm2": 150, "nvidia-b200-sxm": 900, "amd-mi355x": 535.5, "amd-mi100": 138}
    assert {name: linked[name].value("link.total_per_direction") for name in wires} == wires


def test_a_product_without_links_states_none() -> None:
    for name in ("nvidia-t4", "nvidia-a10", "nvidia-l4", "nvidia-l40s", "amd-rx7900xtx"):
        assert not [key for key in load_target(name).facts if key.startswith("link.")], name


def test_no_text_stands_for_nothing() -> None:
    for target in gpus():
        for fact in target.facts.values():
            values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
            texts = {str(each).lower() for each in values}
            assert not texts & {"null", "none", "unknown", "n/a", "tbd"}, f"{target.id}: {fact.key}"


# Published measurements: target, metric, algorithm, reference
PUBLISHED = [
    ("nvidia-a100-sxm-80gb", "gemm/bf16", "dense", 271.2),
    ("nvidia-a100-sxm-80gb", "collectives/all_reduce", "ring", 234.89),
    ("nvidia-a100-sxm-80gb", "transfer/h2d", "pinned", 24.0),
    ("nvidia-a100-pcie-80gb", "gemm/bf16", "dense", 252.9),
    ("nvidia-h100-sxm", "gemm/bf16", "dense", 794.5),
    ("nvidia-h100-sxm", "gemm/fp8", "dense", 1402.6),
    ("nvidia-h100-sxm", "collectives/all_reduce", "nvls", 480.0),
    ("nvidia-h100-sxm", "collectives/all_reduce", "ring", 370.0),
    ("nvidia-h100-sxm", "collectives/all_reduce", "nvls", 460.0),
    ("nvidia-h100-sxm", "transfer/h2d", "pinned", 48.0),
    ("nvidia-h100-sxm", "transfer/p2p", "copy", 335.0),
    ("nvidia-h200-sxm", "gemm/bf16", "dense", 794.5),
    ("nvidia-h200-sxm", "gemm/fp8", "dense", 1453.4),
    ("nvidia-h200-sxm", "collectives/all_reduce", "ring", 367.61),
    ("nvidia-h200-sxm", "collectives/all_reduce", "nvls", 482.26),
    ("nvidia-h200-sxm", "transfer/h2d", "pinned", 55.43),
    ("nvidia-h200-sxm", "transfer/d2h", "pinned", 55.06),
    ("nvidia-h200-sxm", "transfer/p2p", "copy", 396.4),
    ("nvidia-gh200", "gemm/bf16", "dense", 828.6),
    ("nvidia-b200-sxm", "gemm/bf16", "dense", 1745.0),
    ("nvidia-b200-sxm", "gemm/fp8", "dense", 3432.5),
    ("nvidia-b200-sxm", "collectives/all_reduce", "ring", 682.2),
    ("nvidia-b200-sxm", "collectives/all_reduce", "nvls", 838.0),
    ("nvidia-b200-sxm", "collectives/all_reduce", "nvls", 845.67),
    ("nvidia-gb200", "gemm/bf16", "dense", 1822.0),
    ("nvidia-b300-sxm", "gemm/bf16", "dense", 1769.0),
    ("amd-mi300x", "gemm/bf16", "dense", 668.4),
    ("amd-mi300x", "transfer/h2d", "pinned", 48.0),
    ("amd-mi300x", "transfer/p2p", "copy", 44.0),
    ("amd-mi300x", "collectives/all_reduce", "unstated", 314.0),
    ("amd-mi325x", "gemm/bf16", "dense", 784.9),
    ("amd-mi355x", "gemm/bf16", "dense", 1565.0),
]


@pytest.mark.parametrize(("name", "metric", "algorithm", "reference"), PUBLISHED)
def test_a_published_measurement_is_a_hint_with_its_source(
    name: str, metric: str, algorithm: str, reference: float
) -> None:
    found = [
        each
        for each in load_target(name).expectations(metric)
        if each.algorithm == algorithm and each.reference == reference
    ]
    assert len(found) == 1, f"{name}: {metric} by {algorithm}"
    assert found[0].authority is Authority.THIRD_PARTY
    assert found[0].source


def test_a_measurement_is_below_the_peak_that_is_stated_next_to_it() -> None:
    for target in gpus():
        for each in target.all_expectations:
            if each.algorithm != "nvls":
                assert each.reference < each.limit, f"{target.id}: {each.metric}"


def test_what_is_only_believed_is_marked() -> None:
    """Products whose rate has no source: nothing may be judged by it."""
    believed = {
        name
        for name, (_, _, dtype, _, _) in PRODUCTS.items()
        if (peak := load_target(name).peak(dtype)) is not None
        and peak.confidence is Confidence.UNVERIFIED
    }
    assert believed == {
        "nvidia-a10",
        "nvidia-rtx3090",
        "nvidia-h100-nvl",
        "nvidia-b100",
        "amd-w7900",
        "amd-r9700",
    }
