"""Kernels: launches that fit the device, and the kernels of this package in Triton and C++, as they
run on it.
"""

from __future__ import annotations

import dataclasses
import importlib.util

from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.devices.machine_code import CodeError
from portagpu.devices.sizing import occupancy
from portagpu.facts.targets import load_architecture
from portagpu.suites.conformance import NotClaimed, NotHere, case, refused
from portagpu.train import kernels
from portagpu.train.kernels import cpp, plan, reference


@case(
    "kernels/sizing-limits",
    spec="The limits of a launch are positive and fit each other; without blocks they are 1.",
    covers=("Backend.sizing",),
)
def test_sizing_limits(backend):
    limits = backend.sizing
    for field in dataclasses.fields(limits):
        value = getattr(limits, field.name)
        assert field.name == "target" or value >= 1, f"{field.name} is {value}"
    assert limits.target in (None, backend.target), (
        "sizing plans for another target than the device's"
    )
    assert limits.max_threads_per_block >= limits.warp_size, "a block holds less than one warp"
    assert limits.max_threads_per_unit >= limits.max_threads_per_block, "a unit holds no block"
    if limits.max_threads_per_block == 1:
        most = limits.max_threads_per_unit, limits.max_blocks_per_unit
        assert most == (1, 1), f"without blocks a unit has (threads, blocks) of {most}, not (1, 1)"


@case(
    "kernels/sizing-units",
    spec="Sizing counts the units that the device's properties state.",
    covers=("Backend.sizing",),
    traps=("M08",),
)
def test_sizing_units(backend):
    counted = backend.sizing.unit_count
    stated = backend.get_device_properties().multi_processor_count
    assert counted == stated, f"sizing counts {counted} units, the properties {stated}"


@case(
    "kernels/launch-covers-every-element",
    spec="A launch over n elements reaches each of them and fits the device's limits.",
    covers=("Sizing.launch", "Launch.threads"),
    params={"n": (1, 2, 31, 32, 33, 64, 65, 1000, 1 << 20, (1 << 31) + 1)},
    smoke=True,
)
def test_launch_covers_every_element(backend, n):
    plan = backend.sizing.launch(n)
    limits = backend.sizing
    reached = plan.threads * plan.work_per_thread
    assert reached >= n, f"{plan} reaches {reached} of {n} elements"
    assert plan.threads == plan.block * plan.grid, f"{plan} counts {plan.threads} threads"
    assert 1 <= plan.block <= limits.max_threads_per_block, f"a block of {plan.block} does not fit"
    assert plan.block % limits.warp_size == 0, (
        f"a block of {plan.block} is not a multiple of a warp"
    )


@case(
    "kernels/launch-fills-the-device-once",
    spec="The grid of a launch holds no more blocks than the device runs at the same time.",
    covers=("Sizing.launch",),
    traps=("M08", "K10"),
)
def test_launch_fills_the_device_once(backend):
    plan = backend.sizing.launch(1 << 40)
    per_unit = backend.sizing.max_threads_per_unit // plan.block
    most = per_unit * backend.sizing.unit_count
    assert plan.grid <= most, f"{plan.grid} blocks are more than the {most} that run at once"


@case(
    "kernels/launch-has-whole-warps",
    spec="num_warps counts the warps of a block, and no block has more than the device's largest.",
    covers=("Launch.num_warps", "Sizing.max_num_warps"),
    traps=("K06",),
)
def test_launch_has_whole_warps(backend):
    plan, limits = backend.sizing.launch(1 << 20), backend.sizing
    assert plan.num_warps * limits.warp_size == plan.block, f"{plan} has {plan.num_warps} warps"
    assert 1 <= plan.num_warps <= limits.max_num_warps, f"{plan.num_warps} warps do not fit"
    most = limits.max_num_warps * limits.warp_size
    assert most <= limits.max_threads_per_block, f"{most} threads do not fit a block"


@case(
    "kernels/launch-beyond-a-limit",
    spec="A block of more threads than the device has is refused with the limit's name.",
    covers=("Sizing.check",),
    traps=("K06", "K10", "K11"),
)
def test_launch_beyond_a_limit(backend):
    most = backend.sizing.max_threads_per_block
    backend.sizing.check(1, most)
    refused(lambda: backend.sizing.check(1, most + 1), ValueError, "exec.max_threads_per_block")


@case(
    "kernels/reduce-leaves-one-result",
    spec="The second launch of a reduction reaches the partial result of every block of the first.",
    covers=("Sizing.reduce",),
    params={"n": (0, 1, 1000, (1 << 31) + 1)},
    traps=("K05",),
)
def test_reduce_leaves_one_result(backend, n):
    plan = backend.sizing.reduce(n)
    assert plan.partials.threads * plan.partials.work_per_thread >= n, f"{plan} leaves elements out"
    if plan.partials.grid > 1:
        assert plan.final is not None, f"{plan.partials.grid} partial results are left"
        assert plan.final.grid == 1, f"{plan.final.grid} results are left"
        reached = plan.final.threads * plan.final.work_per_thread
        assert reached >= plan.partials.grid, f"{reached} of {plan.partials.grid} are reached"


@case(
    "kernels/launch-of-nothing",
    spec="A launch over no element has no block, and one over a negative number is a ValueError.",
    covers=("Sizing.launch",),
)
def test_launch_of_nothing(backend):
    plan = backend.sizing.launch(0)
    assert (plan.grid, plan.threads) == (0, 0), f"a launch over nothing is {plan}"
    refused(lambda: backend.sizing.launch(-1), ValueError, "a launch over -1 elements")


@case(
    "kernels/toolchain-names-the-architecture",
    spec="What a backend brings to compile with names its device's architecture and vendor, and "
    "refuses code that is none with its own error.",
    covers=("Plugin.toolchain",),
)
def test_toolchain_names_the_architecture(backend):
    toolchain = backend.plugin.toolchain()
    if toolchain is None:
        raise NotClaimed(f"the {backend.name} backend compiles nothing")
    theirs = toolchain.vendor
    assert theirs == backend.arch.vendor, (
        f"the tools of {theirs} are those of a {backend.arch.vendor} GPU"
    )
    triton, chip = toolchain.triton_target(backend.arch.name)
    assert triton, "Triton's backend has no name"
    digits = "".join(sign for sign in backend.arch.name if sign.isdigit())
    assert digits in str(chip), f"{backend.arch.name} is called {chip!r}"
    refused(lambda: toolchain.inspect({}, 128, 4, matrix=True), CodeError, "code that is none")


def _require_triton(gpu, torch):
    """Raise NotClaimed or NotHere if Triton cannot run; kernels must then raise Unsupported."""
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
    _require_triton(gpu, torch)
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
    _require_triton(gpu, torch)
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
    "not whole blocks.",
    outcome="bounded: by portagpu.kernels.reference, for each kernel its own",
    traps=("K01", "K05"),
    params={"kernel": ("copy", "triad", "sum", "softmax", "rms_norm", "quantize_fp8")},
    timeout_s=120.0,
)
def test_portable_kernels(gpu, torch, kernel):
    _require_triton(gpu, torch)
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


@case(
    "kernels/adamw-step",
    spec="A step of AdamW in Triton is within its bound of float64 on the device, writes nothing "
    "after the end, and makes NaN of a parameter whose gradient is not finite, and of no other.",
    outcome="bounded: by portagpu.kernels.reference",
    traps=("K01", "K05"),
    params={"dtype": ("float32", "float16", "bfloat16")},
    timeout_s=120.0,
)
def test_adamw_step(gpu, torch, dtype):
    _require_triton(gpu, torch)
    draw = torch.Generator().manual_seed(2)
    settings = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    for n, step in ((1, 1), (33, 1), (1000, 2), (5000, 1000)):
        parameter, gradient, average = (torch.randn(n, generator=draw) for _ in range(3))
        square = torch.rand(n, generator=draw)
        given = [each.to(getattr(torch, dtype)) for each in (parameter, gradient)]
        given += [each * (step > 1) for each in (average, square)]
        longer = [torch.cat([each, torch.full_like(each[:1], 7)]).to(gpu.device) for each in given]
        here = [each[:n] for each in longer]
        kernels.adamw_step(*here, step=step, **settings)
        exact = reference.adamw_step(*given, step=step, **settings)
        bound = reference.adamw_step_bound(*given, step=step, **settings)
        names = ("parameters", "averages", "squares")
        for name, found, right, most in zip(names, (here[0], *here[2:]), exact, bound, strict=True):
            off = int((~((found.cpu().double() - right).abs() <= most)).sum())
            assert not off, f"step {step}: {off} of {n} {name} are beyond their bound"
        written = [place for place, each in enumerate(longer) if each[n].item() != 7]
        assert not written, f"of {n} elements argument {written[0]} was written after its end"
    here[1][:3] = torch.tensor([float("nan"), float("inf"), float("-inf")], device=gpu.device)
    kernels.adamw_step(*here, step=step + 1, **settings)
    lost = here[0].isnan().nonzero().flatten().tolist()
    assert lost == [0, 1, 2], f"gradients that are not finite at 0, 1 and 2 make NaN at {lost[:4]}"


def _builds_cpp(gpu):
    toolchain = gpu.plugin.toolchain()
    return toolchain is not None and toolchain.cupy is not None


@case(
    "kernels/portable-kernels-in-cpp",
    spec="Each kernel in C++ gives exact sums, prefix sums, ranks and counts on the device, over "
    "rows that are not whole warps.",
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
        refused(
            lambda: cpp.function_resources(source, first, threads, gpu=gpu),
            Unsupported,
            "its occupancy",
        )
        raise NotClaimed(f"the {gpu.name} backend runs no C++; occupancy raised Unsupported")
    for function in cpp.KERNELS[source]:
        try:
            found = cpp.function_resources(source, function, threads, gpu=gpu)
        except MissingDependency as error:
            raise NotClaimed(str(error)) from error
        target = gpu.target or load_architecture(gpu.arch.name)
        ours = occupancy(target, threads, max(found.registers, 1), found.shared_memory)
        what = f"{function} in blocks of {threads} threads with {found.registers} registers"
        assert ours.blocks == found.blocks, (
            f"{what}: {ours.blocks} blocks a unit by our rule, {found.blocks} by the driver's"
        )
