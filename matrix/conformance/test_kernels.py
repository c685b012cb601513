"""Kernels: launches that fit the device."""

from __future__ import annotations

import dataclasses

from portagpu.devices.machine_code import CodeError
from portagpu.suites.conformance import NotClaimed, case, refused


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
