"""Kernels: how Triton's are cut into blocks, by facts where the hardware is not here."""

from __future__ import annotations

import importlib.util
from importlib.resources import files

from portagpu import kernels
from portagpu.errors import MissingDependency, Unsupported
from portagpu.kernels import cpp, plan, reference
from portagpu.kernels.catalogue import VARIANTS
from portagpu.sizing import occupancy
from portagpu.suite import NotClaimed, NotHere, case, refused
from portagpu.target import load_architecture, load_target

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


@case(
    "kernels/tiles-fit-shared-memory",
    spec="Every tile of a product fits the shared memory of a block, 64 KiB on most of AMD's GPUs, "
    "and one that fills 227 KiB is for those that have it.",
    traps=("K07",),
    params={"product": tuple(SHARED)},
)
def test_tiles_fit_shared_memory(product):
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


@case(
    "kernels/fp8-of-the-architecture",
    spec="Kernels take an fp8 where the matrix unit has that flavour, and no other: a compiler may "
    "accept the rest and leave the unit.",
    traps=("K14",),
    params={"product": tuple(FLAVOURS)},
)
def test_fp8_of_the_architecture(product):
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


@case(
    "kernels/no-options-of-one-vendor",
    spec="A config is blocks, threads and stages, and no kernel has an option that one vendor's "
    "Triton alone takes: the other one's raises.",
    traps=("K15",),
    params={"kind": ("stream", "sum", "row", "matmul")},
)
def test_no_options_of_one_vendor(kind):
    for product in SHARED:
        limits = plan.Limits.of_target(load_target(product))
        for config in plan.candidates(kind, limits):
            names = set(plan.constants(config, 2)) | OPTIONS
            foreign = sorted(names & set(OF_ONE_VENDOR))
            assert not foreign, f"{kind} on {product} is given {', '.join(foreign)}"
            threads = config.warps(limits.warp_size) * limits.warp_size
            assert threads == config.threads, f"{config} has {threads} threads on {product}"
    for file in files("portagpu.kernels.source").iterdir():
        if file.name.endswith(".py"):
            text = file.read_text("utf-8")
            foreign = [word for word in OF_ONE_VENDOR if word in text]
            assert not foreign, f"{file.name} has {', '.join(foreign)}"


LEAST_SIDE = 16
"""Below, NVIDIA's backend refuses tl.dot, and AMD's computes it without the matrix unit."""


@case(
    "kernels/tiles-fill-the-matrix-unit",
    spec="Every tile of a product is whole matrix instructions, and at least 16 a side.",
    traps=("K16",),
    params={"product": tuple(SHARED)},
)
def test_tiles_fill_the_matrix_unit(product):
    target = load_target(product)
    for config in _tiles(product):
        for dtype, element_bytes in (("fp16", 2), ("bf16", 2), ("int8", 1)):
            blocks = plan.constants(config, element_bytes)
            tile = tuple(blocks[f"BLOCK_{side}"] for side in "MNK")
            named = "x".join(map(str, tile))
            assert min(tile) >= LEAST_SIDE, f"{product}: a tile of {named} has a side below 16"
            sides = [int(side) for side in target.value(f"matrix.tile.{dtype}").split("x")]
            rest = [whole % part for whole, part in zip(tile, sides, strict=True)]
            assert not any(rest), f"{product}: {named} is not whole instructions of {dtype}"


def _runs_triton(gpu, torch):
    """Go on where Triton's kernels run; elsewhere they have to say that they do not."""
    if gpu.plugin.toolchain() is None:
        ones = torch.ones(2, 2, device=gpu.device)
        refused(lambda: kernels.softmax(ones), Unsupported, "a kernel in Triton")
        raise NotClaimed(f"the {gpu.name} backend runs no Triton; kernels raised Unsupported")
    if importlib.util.find_spec("triton") is None:
        raise NotHere("triton is not installed")


@case(
    "kernels/every-config-is-right",
    spec="Each config that is tried on the device runs there, and its product is the exact one.",
    traps=("K07", "K15", "K16"),
    params={"dtype": ("float16", "bfloat16", "int8")},
    timeout_s=180.0,
)
def test_every_config_is_right(gpu, torch, dtype):
    _runs_triton(gpu, torch)
    draw = torch.Generator().manual_seed(16)
    # small whole numbers: sums of 80 products are exact in any order, in every one of these dtypes
    a, b = (
        torch.randint(-1, 2, shape, generator=draw).to(getattr(torch, dtype))
        for shape in ((129, 80), (80, 130))
    )
    exact = a.double() @ b.double()
    for config in plan.candidates("matmul", plan.Limits.of_device(gpu)):
        found = kernels.matmul(a.to(gpu.device), b.to(gpu.device), config=config)
        wrong = int((found.cpu().double() != exact).sum())
        assert not wrong, f"{wrong} of {exact.numel()} elements are wrong with {config}"


@case(
    "kernels/fp8-product",
    spec="A product of the device's own fp8 is within its bound, and the other fp8 is refused.",
    outcome="bounded: (k * 2^-24 + 2^-11) * sum |a||b|, plus the output's rounding",
    traps=("K14",),
    timeout_s=120.0,
)
def test_fp8_product(gpu, torch):
    _runs_triton(gpu, torch)
    own = gpu.precision.fp8
    pairs = ("float8_e4m3fn", "float8_e4m3fnuz")
    draw = torch.Generator().manual_seed(14)
    values = [torch.randn(64, 64, generator=draw) for _ in range(2)]
    for name in pairs:
        dtype = getattr(torch, name)
        a, b = (each.to(dtype).to(gpu.device) for each in values)
        if own is None or dtype is not own.e4m3:
            refused(lambda a=a, b=b: kernels.matmul(a, b), Unsupported, f"a product of {name}")
            continue
        found = kernels.matmul(a, b).double()
        off = (found - reference.matmul(a, b)).abs() > reference.matmul_bound(a, b)
        assert not bool(off.any()), f"{int(off.sum())} elements of a product of {name} are wrong"


@case(
    "kernels/portable-kernels",
    spec="Each kernel in Triton is within its bound of float64 on the device, over rows that are "
    "no whole blocks.",
    outcome="bounded: by portagpu.kernels.reference, for each kernel its own",
    traps=("K01", "K05"),
    params={"kernel": ("copy", "triad", "sum", "softmax", "rms_norm", "quantize_fp8")},
    timeout_s=120.0,
)
def test_portable_kernels(gpu, torch, kernel):
    _runs_triton(gpu, torch)
    if kernel == "quantize_fp8" and gpu.precision.fp8 is None:
        ones = torch.ones(2, 2, device=gpu.device)
        refused(lambda: kernels.quantize_fp8(ones), Unsupported, "an fp8 that is not there")
        raise NotClaimed(f"{gpu.arch} has no fp8 of its own")
    draw = torch.Generator().manual_seed(1)
    for rows, columns in ((1, 1), (3, 33), (5, 1000), (2, 5000)):
        x, y = (torch.randn(rows, columns, generator=draw).bfloat16() for _ in range(2))
        here = x.to(gpu.device)
        if kernel == "quantize_fp8":
            values, scale = kernels.quantize_fp8(here)
            found = values.cpu().double() * scale.cpu().double().unsqueeze(-1)
            exact, bound = x.double(), reference.quantize_fp8_bound(x, values.dtype)
        else:
            more = {"triad": (y, 3.0), "rms_norm": (y[0],)}.get(kernel, ())
            there = [each.to(gpu.device) if hasattr(each, "to") else each for each in more]
            found = getattr(kernels, kernel)(here, *there).cpu().double()
            exact = getattr(reference, kernel)(x, *more).double()
            measure = getattr(reference, f"{kernel}_bound", None)
            bound = torch.zeros_like(exact) if measure is None else measure(x, *more)
        off = int(((found - exact).abs() > bound).sum())
        assert not off, f"{kernel} of {rows} x {columns}: {off} elements are beyond their bound"


def _builds_cpp(gpu):
    toolchain = gpu.plugin.toolchain()
    return toolchain is not None and toolchain.cupy is not None


@case(
    "kernels/portable-kernels-in-cpp",
    spec="Each kernel in C++ gives exact sums, prefix sums, ranks and counts on the device, over "
    "rows that are no whole warps.",
    traps=("K01", "K02", "K03", "K05"),
    params={"n": (1, 31, 33, 63, 65, 1000)},
    timeout_s=120.0,
)
def test_portable_kernels_in_cpp(gpu, torch, n):
    draw = torch.Generator().manual_seed(n)
    values = torch.randint(0, 100, (5, n), generator=draw, dtype=torch.int32)
    here = values.to(gpu.device)
    if not _builds_cpp(gpu):
        refused(lambda: cpp.sum_rows(here, gpu=gpu), Unsupported, "a kernel in C++")
        raise NotClaimed(f"the {gpu.name} backend runs no C++; kernels raised Unsupported")
    try:
        sums = cpp.sum_rows(here, gpu=gpu)
    except MissingDependency as error:
        raise NotClaimed(str(error)) from error
    odd = values % 2 == 1
    ranks = odd.cumsum(1) - odd.long()
    pairs = {
        "sums": (sums, values.long().sum(1)),
        "prefix sums": (cpp.scan_rows(here, gpu=gpu), values.long().cumsum(1)),
        "ranks": (cpp.rank_rows(here % 2 == 1, gpu=gpu), ranks),
        "the sum": (cpp.sum_all(here, gpu=gpu), values.long().sum()),
        "counts": (
            cpp.histogram(here.flatten(), 100, gpu=gpu),
            torch.bincount(values.flatten(), minlength=100),
        ),
    }
    for what, (found, exact) in pairs.items():
        wrong = int((found.cpu() != exact).sum())
        assert not wrong, f"{what} of rows of {n}: {wrong} of {exact.numel()} are wrong"


@case(
    "kernels/occupancy-is-the-drivers",
    spec="The blocks that a unit holds of each kernel in C++ are as many as the driver says, for "
    "the registers and the shared memory that it states.",
    traps=("K09",),
    params={"source": tuple(cpp.KERNELS), "threads": (64, 256)},
    timeout_s=120.0,
)
def test_occupancy_is_the_drivers(gpu, source, threads):
    first = cpp.KERNELS[source][0]
    if not _builds_cpp(gpu):
        refused(lambda: cpp.loaded(source, first, threads, gpu=gpu), Unsupported, "its occupancy")
        raise NotClaimed(f"the {gpu.name} backend runs no C++; occupancy raised Unsupported")
    for function in cpp.KERNELS[source]:
        try:
            found = cpp.loaded(source, function, threads, gpu=gpu)
        except MissingDependency as error:
            raise NotClaimed(str(error)) from error
        target = gpu.target or load_architecture(gpu.arch.name)
        ours = occupancy(target, threads, max(found.registers, 1), found.shared_memory)
        told = f"{function} in blocks of {threads} threads with {found.registers} registers"
        assert ours.blocks == found.blocks, (
            f"{told}: {ours.blocks} blocks a unit by our rule, {found.blocks} by the driver's"
        )
