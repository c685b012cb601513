"""The limits of launches that differ between architectures, from the targets' facts."""

from __future__ import annotations

import pytest

from portagpu.base.errors import LimitExceeded
from portagpu.devices.sizing import Sizing
from portagpu.facts.targets import load_target
from portagpu.suites.conformance import refused


def _sizing(product):
    """What a backend plans with on that product."""
    target = load_target(product)
    limits = ("unit_count", "max_threads_per_block", "max_threads_per_unit", "max_blocks_per_unit")
    return Sizing(target.arch.warp_size, *(target.value(f"exec.{name}") for name in limits), target)


def test_threads_of_a_launch() -> None:
    """One launch has less than 2^32 threads a dimension on AMD, where more are lost silently;
    NVIDIA limits the blocks alone.
    """
    blocks = (1 << 32) // 256
    amd, nvidia = _sizing("amd-mi300x"), _sizing("nvidia-h100-sxm")
    amd.check(blocks - 1, 256)
    refused(lambda: amd.check(blocks, 256), LimitExceeded, "2^32 threads on amd-mi300x")
    nvidia.check(blocks, 256)
    nvidia.check((1 << 31) - 1, 1024)
    refused(lambda: nvidia.check(1 << 31, 1), LimitExceeded, "2^31 blocks on nvidia-h100-sxm")


@pytest.mark.parametrize(
    "product", ("amd-mi300x", "amd-rx9070xt", "nvidia-h100-sxm", "nvidia-rtx4090")
)
def test_large_plans_stay_inside(product: str) -> None:
    """A plan for more elements than a launch has threads strides over them."""
    n = (1 << 32) + 1024
    plan = _sizing(product).launch(n)
    assert plan.threads < 1 << 32, f"{product}: a plan of {plan.threads} threads"
    reached = plan.threads * plan.work_per_thread
    assert reached >= n, f"{product}: the plan reaches {reached} of {n} elements"
    short = plan.threads * (plan.work_per_thread - 1)
    assert short < n, f"{product}: every thread strides once more than it needs to"


GRID = {"nvidia-h100-sxm": 65535, "amd-rx9070xt": 65536, "amd-mi300x": 65536}
"""Blocks along y: CUDA C++ Programming Guide, table of compute capabilities; HIP's own runtime."""


@pytest.mark.parametrize("product", tuple(GRID))
def test_grid_along_y(product: str) -> None:
    """A grid that is too tall is refused with the limit's name: the long dimension is x."""
    sizing, most = _sizing(product), GRID[product]
    sizing.check((1, most), 64)
    error = refused(lambda: sizing.check((1, most + 1), 64), LimitExceeded, f"{most + 1} blocks")
    assert "exec.max_grid_y" in str(error), f"the limit is not named: {error}"
    sizing.check(8 * most, 64)


@pytest.mark.parametrize("product", ("amd-mi300x", "amd-mi250x", "nvidia-h100-sxm", "amd-rx9070xt"))
def test_warps_of_a_block(product: str) -> None:
    """A block has at most 32 warps of 32 threads or 16 of 64, and 32 of 64 are refused."""
    sizing = _sizing(product)
    most = 16 if product.startswith("amd-mi") else 32
    assert sizing.max_num_warps == most, f"{product} has {sizing.max_num_warps} warps a block"
    sizing.check(1, most * sizing.warp_size)
    beyond = 32 * 64 if most == 16 else 33 * 32
    refused(lambda: sizing.check(1, beyond), LimitExceeded, f"a block of {beyond} threads")


@pytest.mark.parametrize(
    "product", ("amd-mi300x", "amd-mi250x", "nvidia-h100-sxm", "nvidia-a100-sxm-80gb")
)
def test_units_are_the_products(product: str) -> None:
    """A persistent grid has one wave of blocks of this product, not of 132 or 108 units."""
    units = {
        "amd-mi300x": 304,
        "amd-mi250x": 110,
        "nvidia-h100-sxm": 132,
        "nvidia-a100-sxm-80gb": 108,
    }[product]
    sizing = _sizing(product)
    assert sizing.unit_count == units, f"{product} has {sizing.unit_count} units, not {units}"
    grid = sizing.launch(1 << 40).grid
    assert grid % units == 0, f"{product}: {grid} blocks leave some of {units} units without work"
