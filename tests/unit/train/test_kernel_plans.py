"""How kernels in Triton are cut into blocks for hardware that is not here, by facts."""

from __future__ import annotations

from importlib.resources import files

import pytest

from portagpu.facts.targets import load_target
from portagpu.train.kernels import plan
from portagpu.train.kernels.plan import VARIANTS

# B a block can have: CUDA C++ Programming Guide, table of compute capabilities (227 and 99 KiB);
# LLVM, AMDGPUUsage, and AMD's CDNA 4 ISA guide for gfx950 (64 and 160 KiB)
SHARED = {
    "nvidia-h100-sxm": 232448,
    "nvidia-a100-sxm-80gb": 166912,
    "nvidia-rtx4090": 101376,
    "amd-mi300x": 65536,
    "amd-mi355x": 163840,
    "amd-rx9070xt": 65536,
}


def _tiles(product):
    """The configs of a matrix product on that hardware, the default first."""
    return plan.candidates("matmul", plan.Limits.of_target(load_target(product)))


@pytest.mark.parametrize("product", tuple(SHARED))
def test_tiles_fit_shared_memory(product: str) -> None:
    """Every tile of a product fits the shared memory of a block, 64 KiB on most of AMD's GPUs,
    and one that fills 227 KiB is for those that have it.
    """
    tiles, most = _tiles(product), SHARED[product]
    assert tiles, f"{product}: no tile fits {most} B of shared memory"
    for each in tiles:
        sizes = dict(each.blocks)
        sides = sizes["BLOCK_M"] + sizes["BLOCK_N"]
        needed = each.stages * sizes["DEPTH_BYTES"] * sides
        assert needed <= most, f"{product}: a tile keeps {needed} B in {most} B of shared memory"
    # 3 stages of 128 x 128 B and 256 x 128 B
    largest = 3 * 128 * (128 + 256)
    has = any(each.block("BLOCK_N") == 256 and each.stages == 3 for each in tiles)
    assert has == (largest <= most), (
        f"{product}: a tile of {largest} B is {'' if has else 'not '}tried"
    )


# "ocp", "fnuz" or none: AMD's CDNA 3 and 4 ISA guides, CUDA's PTX ISA (mma of .e4m3)
FLAVOURS = {
    "nvidia-h100-sxm": "ocp",
    "nvidia-rtx4090": "ocp",
    "nvidia-a100-sxm-80gb": None,
    "amd-mi300x": "fnuz",
    "amd-mi355x": "ocp",
    "amd-rx9070xt": "ocp",
    "amd-mi210": None,
    "amd-rx7900xtx": None,
}


@pytest.mark.parametrize("product", tuple(FLAVOURS))
def test_fp8_of_the_architecture(product: str) -> None:
    """Kernels take an fp8 where the matrix unit has that flavour, and no other: a compiler may
    accept the rest and leave the unit.
    """
    target, flavour = load_target(product), FLAVOURS[product]
    taken = {each.dtype for each in VARIANTS if each.needs == "fp8" and not each.why_not(target)}
    due = {
        "ocp": {"float8_e4m3fn", "float8_e5m2"},
        "fnuz": {"float8_e4m3fnuz", "float8_e5m2fnuz"},
        None: set(),
    }[flavour]
    assert taken == due, f"{product} is given {sorted(taken)}, and has {sorted(due) or 'no fp8'}"


OPTIONS = {"num_warps", "num_stages"}
"""Of Triton's own options, those that every vendor's backend has."""


OF_ONE_VENDOR = (
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "kpack",
    "schedule_hint",
    "maxnreg",
    "num_ctas",
    "warp_specialize",
)


@pytest.mark.parametrize("kind", ("stream", "sum", "row", "matmul"))
def test_no_options_of_one_vendor(kind: str) -> None:
    """A config is blocks, threads and stages, and no kernel has an option that one vendor's
    Triton alone takes: the other one's raises.
    """
    for product in SHARED:
        limits = plan.Limits.of_target(load_target(product))
        for config in plan.candidates(kind, limits):
            names = set(plan.constants(config, 2)) | OPTIONS
            foreign = sorted(names & set(OF_ONE_VENDOR))
            assert not foreign, f"{kind} on {product} is given {', '.join(foreign)}"
            threads = config.warps(limits.warp_size) * limits.warp_size
            assert threads == config.threads, f"{config} has {threads} threads on {product}"
    for file in files("portagpu.train.kernels.source").iterdir():
        if file.name.endswith(".py"):
            text = file.read_text("utf-8")
            foreign = [word for word in OF_ONE_VENDOR if word in text]
            assert not foreign, f"{file.name} has {', '.join(foreign)}"


MIN_SIDE = 16
"""Below, NVIDIA's backend refuses tl.dot, and AMD's computes it without the matrix unit."""


@pytest.mark.parametrize("product", tuple(SHARED))
def test_tiles_fill_the_matrix_unit(product: str) -> None:
    """Every tile of a product is whole matrix instructions, and at least 16 a side."""
    target = load_target(product)
    for config in _tiles(product):
        for dtype, element_bytes in (("fp16", 2), ("bf16", 2), ("int8", 1)):
            blocks = plan.constants(config, element_bytes)
            tile = tuple(blocks[f"BLOCK_{side}"] for side in "MNK")
            named = "x".join(map(str, tile))
            assert min(tile) >= MIN_SIDE, f"{product}: a tile of {named} has a side below 16"
            sides = [int(side) for side in target.value(f"matrix.tile.{dtype}").split("x")]
            rest = [whole % part for whole, part in zip(tile, sides, strict=True)]
            assert not any(rest), f"{product}: {named} is not whole instructions of {dtype}"
