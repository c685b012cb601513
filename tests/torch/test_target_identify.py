"""Which target a device is, by what it reports of itself."""

from __future__ import annotations

import datetime
import math

import pytest

from portagpu.base.errors import TargetNotFound
from portagpu.facts.targets import (
    Authority,
    ExpectedFailure,
    Scope,
    identify,
    load_architecture,
    load_target,
    load_targets,
    product_with_pci_id,
)
from portagpu.facts.targets.model import normalise

GIB = 2**30
MIB = 2**20

KNOWN = [
    # what nvidia-smi, torch, rocminfo, rocm-smi and amd-smi print
    ("nvidia", "sm_90", "NVIDIA H200", 143771 * MIB, 132, "nvidia-h200-sxm"),
    ("nvidia", "sm_90a", "NVIDIA H200", None, None, "nvidia-h200-sxm"),
    ("nvidia", "sm_90", "nvidia h200-sxm5-141gb", None, 132, "nvidia-h200-sxm"),
    ("amd", "gfx942:sramecc+:xnack-", "AMD Instinct MI300X", 201310208 * 1024, 304, "amd-mi300x"),
    ("amd", "gfx942", "AMD Instinct MI300X VF", 205571227648, 304, "amd-mi300x"),
    ("amd", "gfx942", "AMD Instinct(TM) MI300X OAM", None, None, "amd-mi300x"),
    ("amd", "gfx942", "MI300X-O", None, None, "amd-mi300x"),
    ("nvidia", "sm_70", "Tesla V100-SXM2-16GB", 16160 * MIB, 80, "nvidia-v100-sxm2"),
    ("nvidia", "sm_70", "Tesla V100-SXM2-32GB", 32510 * MIB, 80, "nvidia-v100-sxm2"),
    ("nvidia", "sm_75", "Tesla T4", 15360 * MIB, 40, "nvidia-t4"),
    ("nvidia", "sm_80", "NVIDIA A100-SXM4-40GB", 40960 * MIB, 108, "nvidia-a100-sxm-40gb"),
    ("nvidia", "sm_80", "NVIDIA A100-SXM4-80GB", 81920 * MIB, 108, "nvidia-a100-sxm-80gb"),
    ("nvidia", "sm_80", "NVIDIA A100 80GB PCIe", 81920 * MIB, None, "nvidia-a100-pcie-80gb"),
    ("nvidia", "sm_86", "NVIDIA A10", 23028 * MIB, 72, "nvidia-a10"),
    ("nvidia", "sm_86", "NVIDIA GeForce RTX 3090", 24575 * MIB, 82, "nvidia-rtx3090"),
    ("nvidia", "sm_89", "NVIDIA L4", 23034 * MIB, 58, "nvidia-l4"),
    ("nvidia", "sm_89", "NVIDIA L40S", 46068 * MIB, 142, "nvidia-l40s"),
    ("nvidia", "sm_89", "NVIDIA GeForce RTX 4090", 24564 * MIB, 128, "nvidia-rtx4090"),
    ("nvidia", "sm_90", "NVIDIA H100 80GB HBM3", 81559 * MIB, 132, "nvidia-h100-sxm"),
    ("nvidia", "sm_90", "NVIDIA H100 80GB HBM3", 81082 * MIB, 132, "nvidia-h100-sxm"),
    ("nvidia", "sm_90", "NVIDIA H100 PCIe", 81008 * MIB, 114, "nvidia-h100-pcie"),
    ("nvidia", "sm_90", "NVIDIA H100 NVL", 95830 * MIB, 132, "nvidia-h100-nvl"),
    ("nvidia", "sm_90", "NVIDIA GH200 120GB", 97871 * MIB, 132, "nvidia-gh200"),
    ("nvidia", "sm_90", "NVIDIA GH200 144G HBM3e", 146831 * MIB, 132, "nvidia-gh200"),
    ("nvidia", "sm_100", "NVIDIA B200", 183359 * MIB, 148, "nvidia-b200-sxm"),
    ("nvidia", "sm_100a", "NVIDIA B200", 182642 * MIB, 148, "nvidia-b200-sxm"),
    ("nvidia", "sm_100", "NVIDIA GB200", 189471 * MIB, None, "nvidia-gb200"),
    ("nvidia", "sm_103", "NVIDIA B300 SXM6 AC", 275040 * MIB, 148, "nvidia-b300-sxm"),
    ("nvidia", "sm_120", "NVIDIA GeForce RTX 5090", 32607 * MIB, 170, "nvidia-rtx5090"),
    ("amd", "gfx906:sramecc+:xnack-", "AMD Instinct MI60 / MI50", 32752 * MIB, 60, "amd-mi50"),
    ("amd", "gfx908", "AMD Instinct MI100", 32752 * MIB, 120, "amd-mi100"),
    ("amd", "gfx90a:sramecc+:xnack-", "AMD Instinct MI210", 67092480 * 1024, 104, "amd-mi210"),
    ("amd", "gfx90a", "AMD Instinct MI250X / MI250", 65520 * MIB, 110, "amd-mi250x"),
    ("amd", "gfx90a", "AMD Instinct MI250X/MI250", 65520 * MIB, 110, "amd-mi250x"),
    ("amd", "gfx942", "AMD Instinct MI300A", None, 228, "amd-mi300a"),
    ("amd", "gfx942", "AMD Instinct MI325X", 256 * GIB, 304, "amd-mi325x"),
    ("amd", "gfx950:sramecc+:xnack-", "AMD Instinct MI350X", None, 256, "amd-mi350x"),
    ("amd", "gfx950", "AMD Instinct MI355X", 288 * GIB, 256, "amd-mi355x"),
    # HIP counts workgroup processors, KFD and rocminfo count compute units
    ("amd", "gfx1100", "Radeon RX 7900 XTX", 24560 * MIB, 48, "amd-rx7900xtx"),
    ("amd", "gfx1100", "AMD Radeon RX 7900 XTX", 24560 * MIB, 96, "amd-rx7900xtx"),
    ("amd", "gfx1100", "AMD Radeon PRO W7900", None, 96, "amd-w7900"),
    ("amd", "gfx1201", "AMD Radeon RX 9070 XT", 16304 * MIB, 32, "amd-rx9070xt"),
    ("amd", "gfx1201", "AMD Radeon AI PRO R9700", 32 * GIB, 64, "amd-r9700"),
    # without a name: memory and units are those of one product
    ("amd", "gfx942:sramecc+:xnack-", "", 206141652992, 304, "amd-mi300x"),
    ("amd", "gfx942", None, 256 * GIB, 304, "amd-mi325x"),
    ("amd", "gfx1100", None, 24560 * MIB, 96, "amd-rx7900xtx"),
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
    ("nvidia", "sm_90", "NVIDIA H800", 81559 * MIB, 132, "a product without a file"),
    ("nvidia", "sm_90", "NVIDIA H100 80GB HBM3", 40448 * MIB, 60, "a slice of an H100"),
    ("nvidia", "sm_90", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", None, None, "a slice by its name"),
    (
        "nvidia",
        "sm_90",
        "NVIDIA H100 PCIe",
        81559 * MIB,
        132,
        "the name of one, the units of another",
    ),
    ("nvidia", "sm_80", "NVIDIA A100-SXM4-80GB", 40960 * MIB, 108, "the memory of the smaller one"),
    ("nvidia", "sm_80", "NVIDIA A100-SXM4-40GB", 4864 * MIB, 14, "a slice of an A100"),
    ("nvidia", "sm_86", "NVIDIA A10G", 22723 * MIB, 80, "a name that starts the same"),
    ("nvidia", "sm_89", "NVIDIA L40", 46068 * MIB, 142, "the sister of the L40S"),
    (
        "amd",
        "gfx90a",
        "AMD Instinct MI250X / MI250",
        65520 * MIB,
        104,
        "an MI250, which says the same",
    ),
    ("amd", "gfx906", "AMD Instinct MI60 / MI50", 32752 * MIB, 64, "an MI60, which says the same"),
    ("amd", "gfx906", "AMD Radeon Pro VII", 16 * GIB, 60, "another product of the chip"),
    ("amd", "gfx950", "AMD Instinct MI355X", 36 * GIB, 32, "one XCD of eight"),
    ("amd", "gfx1100", "AMD Radeon RX 7900 XT", 20464 * MIB, 42, "the smaller sister"),
    ("nvidia", "sm_90", None, None, None, "a device without a name"),
    ("nvidia", "sm_90", "", None, None, "a device with an empty name"),
    ("amd", "gfx942", "", 206141652992, None, "a device without a name, of which half is known"),
    ("amd", "gfx942", "", 206141652992 // 8, 38, "a partition without a name"),
    ("amd", "gfx950", "", 288 * GIB, 256, "one of two products with this memory and these units"),
    ("amd", "gfx942", "AMD Instinct MI300X", 201310208 * 1024, 38, "one XCD of eight"),
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
        ("nvidia", "sm_61"),
        ("nvidia", "sm_9"),
        ("nvidia", "gfx942"),
        ("amd", "x86_64"),
        ("amd", "sm_90"),
        ("amd", "gfx940"),
        ("intel", "xe2"),
        ("cpu", "riscv64"),
        ("", ""),
    ],
)
def test_an_unknown_architecture_is_none(vendor: str, arch: str) -> None:
    assert identify(vendor, arch, "NVIDIA H200", 143771 * MIB, 132) is None


def test_a_device_is_the_same_target_whenever_it_is_identified() -> None:
    b200 = identify("nvidia", "sm_100", "NVIDIA B200")
    assert load_targets()["nvidia-b200-sxm"] is b200 is load_target("nvidia-b200-sxm")
    assert load_targets()["cpu-aarch64"] is identify("cpu", "arm64", None)
    family = identify("nvidia", "sm_75", "something")
    assert family is not None and family is identify("nvidia", "sm_75", "other")


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
        ("nvidia-a100", "nvidia-a100-sxm-40gb"),
        ("b200", "nvidia-b200-sxm"),
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


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("sm_90", "sm_90"),
        ("sm_90a", "sm_90"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("GFX1030", "gfx1030"),
        ("amd64", "x86-64"),
    ],
)
def test_an_architecture_is_found_by_any_spelling(asked: str, found: str) -> None:
    target = load_architecture(asked)
    assert (target.arch.name, target.scope) == (found, Scope.FAMILY)
    assert target.peak("bf16") is None, "an architecture has no peaks"


@pytest.mark.parametrize("asked", ["sm_91", "gfx", "", "sm_90b", "\n"])
def test_an_unknown_architecture_names_the_known(asked: str) -> None:
    with pytest.raises(TargetNotFound, match=r"known are .*gfx942.*x86-64") as caught:
        load_architecture(asked)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "arch"),
    [("mi300x", "gfx942"), ("MI300X", "gfx942"), ("H100", "sm_90"), ("rtx 4090", "sm_89")],
)
def test_a_product_in_the_place_of_an_architecture_gets_its_own(asked: str, arch: str) -> None:
    with pytest.raises(TargetNotFound, match=f"the architecture of '{asked}' is {arch};"):
        load_architecture(asked)


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
    assert load_target("amd-mi300x").expectations("gemm/int4") == ()


def test_the_day_of_expiry_is_the_last_that_excuses() -> None:
    failure = ExpectedFailure("a/*", "known", "https://example.org/1", datetime.date(2027, 1, 31))
    assert not failure.expired(datetime.date(2027, 1, 31))
    assert failure.expired(datetime.date(2027, 2, 1))


@pytest.mark.parametrize(
    ("vendor", "device_id", "revision", "expected"),
    [
        ("nvidia", 0x2330, None, "nvidia-h100-sxm"),
        ("nvidia", 0x2330, 0xA1, "nvidia-h100-sxm"),
        ("amd", 0x74A1, 0, "amd-mi300x"),
        ("amd", 0x744C, 0xC8, "amd-rx7900xtx"),
        ("amd", 0x744C, 0xCC, None),
        ("amd", 0x744C, None, None),
        ("nvidia", 0x74A1, None, None),
        ("amd", 0xFFFF, None, None),
    ],
)
def test_a_pci_id_that_one_product_has_names_it(
    vendor: str, device_id: int, revision: int | None, expected: str | None
) -> None:
    found = product_with_pci_id(vendor, device_id, revision)
    assert (found.id if found is not None else None) == expected


def test_every_gpu_of_a_pci_id_is_identified_by_its_own_name() -> None:
    for target in load_targets().values():
        name = target.match.name
        assert name is None or normalise(name) in target.match.names, target.id
