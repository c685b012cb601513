"""Kernels: launches that fit the device."""

from __future__ import annotations

import dataclasses

from portagpu.suite import case, refused


@case(
    "kernels/sizing-limits",
    spec="The limits of a launch are positive and fit each other.",
    covers=("Backend.sizing",),
)
def test_sizing_limits(gpu):
    limits = gpu.sizing
    for field in dataclasses.fields(limits):
        value = getattr(limits, field.name)
        assert value >= 1, f"{field.name} is {value}"
    assert limits.max_threads_per_block >= limits.warp_size, "a block holds less than one warp"
    assert limits.max_threads_per_unit >= limits.max_threads_per_block, "a unit holds no block"


@case(
    "kernels/sizing-units",
    spec="Sizing counts the units that the device's properties state.",
    covers=("Backend.sizing",),
    traps=("M08",),
)
def test_sizing_units(gpu):
    counted, stated = gpu.sizing.unit_count, gpu.get_device_properties().multi_processor_count
    assert counted == stated, f"sizing counts {counted} units, the properties {stated}"


@case(
    "kernels/launch-covers-every-element",
    spec="A launch over n elements reaches each of them and fits the device's limits.",
    covers=("Sizing.launch", "Launch.threads"),
    params={"n": (1, 2, 31, 32, 33, 64, 65, 1000, 1 << 20, (1 << 31) + 1)},
    smoke=True,
)
def test_launch_covers_every_element(gpu, n):
    plan = gpu.sizing.launch(n)
    limits = gpu.sizing
    reached = plan.threads * plan.work_per_thread
    assert reached >= n, f"{plan} reaches {reached} of {n} elements"
    assert plan.threads == plan.block * plan.grid, f"{plan} counts {plan.threads} threads"
    assert 1 <= plan.block <= limits.max_threads_per_block, f"a block of {plan.block} does not fit"
    assert plan.block % limits.warp_size == 0, f"a block of {plan.block} is no whole warps"


@case(
    "kernels/launch-fills-the-device-once",
    spec="The grid of a launch holds no more blocks than the device runs at the same time.",
    covers=("Sizing.launch",),
    traps=("M08", "K10"),
)
def test_launch_fills_the_device_once(gpu):
    plan = gpu.sizing.launch(1 << 40)
    per_unit = gpu.sizing.max_threads_per_unit // plan.block
    most = per_unit * gpu.sizing.unit_count
    assert plan.grid <= most, f"{plan.grid} blocks are more than the {most} that run at once"


@case(
    "kernels/launch-of-nothing",
    spec="A launch over no element has no block, and one over a negative number is a ValueError.",
    covers=("Sizing.launch",),
)
def test_launch_of_nothing(gpu):
    plan = gpu.sizing.launch(0)
    assert (plan.grid, plan.threads) == (0, 0), f"a launch over nothing is {plan}"
    refused(lambda: gpu.sizing.launch(-1), ValueError, "a launch over -1 elements")
