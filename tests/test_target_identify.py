"""Which target a device is, by what it reports of itself."""

from __future__ import annotations

import datetime
import math

import pytest

from portagpu.errors import TargetNotFound
from portagpu.target import Authority, ExpectedFailure, Scope, identify, load_target

GIB = 2**30
MIB = 2**20

KNOWN = [
    # what nvidia-smi, torch, rocminfo, rocm-smi and amd-smi print for the same two products
    ("nvidia", "sm_90", "NVIDIA H200", 143771 * MIB, 132, "nvidia-h200-sxm"),
    ("nvidia", "sm_90a", "NVIDIA H200", None, None, "nvidia-h200-sxm"),
    ("nvidia", "sm_90", "nvidia h200-sxm5-141gb", None, 132, "nvidia-h200-sxm"),
    ("amd", "gfx942:sramecc+:xnack-", "AMD Instinct MI300X", 201310208 * 1024, 304, "amd-mi300x"),
    ("amd", "gfx942", "AMD Instinct MI300X VF", 205571227648, 304, "amd-mi300x"),
    ("amd", "gfx942", "AMD Instinct(TM) MI300X OAM", None, None, "amd-mi300x"),
    ("amd", "gfx942", "MI300X-O", None, None, "amd-mi300x"),
    ("cpu", "x86-64", "AMD EPYC 9534 64-Core Processor", 128 * GIB, 64, "cpu-x86-64"),
    ("cpu", "x86_64", None, None, None, "cpu-x86-64"),
    ("cpu", "aarch64", "Neoverse-V2", None, 72, "cpu-aarch64"),
    ("cpu", "arm64", None, None, None, "cpu-aarch64"),
]


@pytest.mark.parametrize(("vendor", "arch", "product", "memory", "units", "target"), KNOWN)
def test_a_known_product_is_recognised(
    vendor: str, arch: str, product: str | None, memory: int | None, units: int | None, target: str
) -> None:
    found = identify(vendor, arch, product, memory, units)
    assert found is load_target(target)
    assert found.scope is Scope.PRODUCT


FAMILY_ONLY = [
    ("nvidia", "sm_90", "NVIDIA H200", 80 * GIB, 132, "an H200 with 80 GiB"),
    ("nvidia", "sm_90", "NVIDIA H200", 143771 * MIB, 16, "a slice that kept the name"),
    ("nvidia", "sm_90", "NVIDIA H200 MIG 1g.18gb", None, None, "a slice with a name of its own"),
    ("nvidia", "sm_90", "NVIDIA H200 NVL", 143771 * MIB, 132, "another product of a similar name"),
    ("nvidia", "sm_90", "NVIDIA H100 80GB HBM3", 81559 * MIB, 132, "a product without a file"),
    ("nvidia", "sm_90", None, None, None, "a device without a name"),
    ("nvidia", "sm_90", "", None, None, "a device with an empty name"),
    ("amd", "gfx942", "AMD Instinct MI300X", 201310208 * 1024, 38, "one XCD of eight"),
    ("amd", "gfx942", "AMD Instinct MI325X", 256 * GIB, 304, "the next product of the family"),
    ("amd", "gfx942", "NVIDIA H200", None, None, "a name of another vendor"),
]


@pytest.mark.parametrize(("vendor", "arch", "product", "memory", "units", "what"), FAMILY_ONLY)
def test_an_unknown_member_of_a_known_family_gets_the_familys_facts_only(
    vendor: str, arch: str, product: str | None, memory: int | None, units: int | None, what: str
) -> None:
    found = identify(vendor, arch, product, memory, units)
    assert found is not None, what
    assert found.scope is Scope.FAMILY, f"{what} is not a product that we know"
    assert found.id == f"{arch} family"
    assert found.product is None
    assert found.value("exec.max_threads_per_block") == 1024, "the family's facts are there"
    assert {fact.scope for fact in found.facts.values()} == {Scope.FAMILY}
    assert found.peak("bf16") is None, f"{what} has no peak"
    assert found.value("memory.size") is None
    assert found.value("exec.unit_count") is None
    assert found.all_expectations == ()


@pytest.mark.parametrize(
    ("vendor", "arch"),
    [
        ("nvidia", "sm_75"),
        ("nvidia", "gfx942"),
        ("amd", "sm_90"),
        ("amd", "gfx940"),
        ("intel", "xe2"),
        ("cpu", "riscv64"),
        ("", ""),
    ],
)
def test_an_unknown_architecture_is_none(vendor: str, arch: str) -> None:
    assert identify(vendor, arch, "NVIDIA H200", 143771 * MIB, 132) is None


def test_facts_of_a_product_say_which_are_the_familys() -> None:
    h200 = load_target("nvidia-h200-sxm")
    count, warp = h200.fact("exec.unit_count"), h200.fact("exec.wave_size_default")
    assert count is not None and count.scope is Scope.PRODUCT
    assert warp is not None and warp.scope is Scope.FAMILY
    assert h200.arch.warp_size == warp.value == 32
    assert load_target("amd-mi300x").arch.warp_size == 64
    assert h200.fact("exec.nothing") is None


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ("h200", "nvidia-h200-sxm"),
        ("nvidia-h200", "nvidia-h200-sxm"),
        ("AMD-MI300X", "amd-mi300x"),
        ("amd-mi300", "amd-mi300x"),
        ("cpu", "cpu-x86-64"),
        ("", "amd-mi300x"),
        ("zzzzzz", "amd-mi300x"),
        ("sm_90 family", "nvidia-h200-sxm"),
    ],
)
def test_an_unknown_id_offers_the_closest(asked: str, offered: str) -> None:
    with pytest.raises(TargetNotFound) as caught:
        load_target(asked)
    message = str(caught.value)
    assert offered in message, message
    assert "\n" not in message


# dtypes and peaks


@pytest.mark.parametrize("spelling", ["torch.bfloat16", "bfloat16", "bf16", "BF16"])
def test_a_dtype_may_be_spelled_as_torch_does_or_short(spelling: str) -> None:
    peak = load_target("nvidia-h200-sxm").peak(spelling)
    assert peak is not None and peak.dtype == "bf16"


@pytest.mark.torch
def test_a_torch_dtype_is_accepted() -> None:
    torch = pytest.importorskip("torch")
    h200, mi300x = load_target("nvidia-h200-sxm"), load_target("amd-mi300x")
    peak = h200.peak(torch.bfloat16)
    assert peak is not None and (peak.value, peak.unit) == (989.4, "TFLOPS")
    int8 = h200.peak(torch.int8)
    assert int8 is not None and int8.unit == "TOPS"
    assert h200.peak(torch.complex64) is None
    assert h200.peak(torch.bool) is None
    # each product runs one flavour of fp8; in the other there is no native rate
    assert h200.peak(torch.float8_e4m3fn) == h200.peak("fp8") is not None
    assert h200.peak(torch.float8_e4m3fnuz) is None
    assert mi300x.peak(torch.float8_e4m3fnuz) == mi300x.peak("fp8") is not None
    assert mi300x.peak(torch.float8_e5m2) is None
    assert load_target("cpu-x86-64").peak(torch.float32) is None


def test_a_peak_is_of_the_faster_unit_unless_one_is_asked_for() -> None:
    h200 = load_target("nvidia-h200-sxm")
    fastest, vector = h200.peak("float64"), h200.peak("float64", matrix=False)
    assert fastest is not None and fastest.matrix and fastest.value == 66.9
    assert vector is not None and not vector.matrix and vector.value == 33.5
    assert h200.peak("float32", matrix=True) is None, "there is no fp32 in the tensor cores"


def test_sparse_peaks_are_given_only_when_asked_for() -> None:
    h200 = load_target("nvidia-h200-sxm")
    dense, sparse = h200.peak("fp16"), h200.peak("fp16", sparse=True)
    assert dense is not None and sparse is not None
    assert not dense.sparse and sparse.sparse
    assert sparse.value == pytest.approx(2 * dense.value, rel=1e-3)
    assert h200.peak("fp64", sparse=True) is None


# expectations


@pytest.mark.parametrize(
    ("value", "side"),
    [
        (367.61, "inside"),
        (330.9, "inside"),
        (330.8, "below"),
        (404.3, "inside"),
        (404.4, "above"),
        (0.0, "below"),
        (-1.0, "below"),
        (math.nan, "not a number"),
        (math.inf, "not a number"),
    ],
)
def test_a_value_is_judged_on_both_sides(value: float, side: str) -> None:
    """367.61 GB/s, 10 % either way: 330.849 to 404.371."""
    ring = next(
        each
        for each in load_target("nvidia-h200-sxm").expectations("collectives/all_reduce")
        if each.algorithm == "ring"
    )
    judgement = ring.judge(value)
    assert judgement.side == side
    assert judgement.inside == (side == "inside")
    assert judgement.low == pytest.approx(330.849)
    assert judgement.high == pytest.approx(404.371)
    assert ring.authority is Authority.THIRD_PARTY


def test_a_floor_has_no_upper_end_and_includes_its_value() -> None:
    (floor,) = load_target("amd-mi300x").expectations("memory/triad")
    assert floor.high is None
    assert floor.judge(floor.reference).inside
    assert floor.judge(9999.0).inside
    assert not floor.judge(floor.reference - 0.01).inside


def test_a_metric_without_expectation_has_none() -> None:
    assert load_target("amd-mi300x").expectations("gemm/fp64") == ()


def test_the_day_of_expiry_is_the_last_that_excuses() -> None:
    failure = ExpectedFailure("a/*", "known", "https://example.org/1", datetime.date(2027, 1, 31))
    assert not failure.expired(datetime.date(2027, 1, 31))
    assert failure.expired(datetime.date(2027, 2, 1))
