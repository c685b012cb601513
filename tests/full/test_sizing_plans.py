"""Plans for every target: inside its limits, refused beyond them, and explained."""

from __future__ import annotations

import random

import pytest

from tests.unit.devices.test_sizing_plans import GPUS

SEED = 5


@pytest.mark.parametrize("name", GPUS)
def test_a_launch_covers_n_in_whole_vectors_and_fits(name):
    device, numbers = GPUS[name], random.Random(SEED)  # noqa: S311 - cases of a test
    for _ in range(60):
        n = int(2 ** numbers.uniform(0, 40))
        item = numbers.choice([1, 2, 4, 8, 16])
        memory = numbers.randint(0, 40_000)
        plan = device.launch(
            n, item_bytes=item, registers=numbers.randint(16, 64), shared_memory=memory
        )
        reported = f"seed {SEED}: {n} of {item} B on {name}: {plan}"
        assert plan.threads * plan.work_per_thread >= n, reported
        assert plan.work_per_thread % plan.vector_width == 0, reported
        assert plan.vector_width * item <= max(item, device.target.value("exec.max_access")), (
            reported
        )
        assert plan.num_warps * device.warp_size == plan.block, reported
        assert plan.occupancy is not None, reported
        assert plan.grid <= device.unit_count * plan.occupancy.blocks, reported
        device.check(plan.grid, plan.block, shared_memory=memory)
