"""The shim catches what kernels written for warps of 32 get wrong, where it is wrong."""

from __future__ import annotations

import random
from array import array

import pytest

from tests.support import lane_shim

pytestmark = pytest.mark.skipif(
    lane_shim.COMPILER is None, reason="neither g++ nor clang++ is here"
)

SEED = 20261121
ROWS, COLUMNS, BLOCK = 7, 333, 128


def address(values: array) -> int:
    return values.buffer_info()[0]


def sums(module, name, warp_size):
    """What a kernel makes of random rows, and their sums."""
    numbers = random.Random(SEED)  # noqa: S311 - reproducible, not secret
    values = array("q", (numbers.randint(-100, 100) for _ in range(ROWS * COLUMNS)))
    found = array("q", [0] * ROWS)
    grid = -(-ROWS * warp_size // BLOCK)
    module.launch(name, grid, BLOCK, [address(values), address(found), ROWS, COLUMNS])
    rows = (values[i : i + COLUMNS] for i in range(0, len(values), COLUMNS))
    return found.tolist(), [sum(row) for row in rows]


def ranks(module, name, warp_size):
    """What a kernel makes of random flags, and how many are set before each in its row."""
    numbers = random.Random(SEED)  # noqa: S311 - reproducible, not secret
    flags = array("B", (numbers.random() < 0.4 for _ in range(ROWS * COLUMNS)))
    found = array("q", [-1] * len(flags))
    grid = -(-ROWS * warp_size // BLOCK)
    module.launch(name, grid, BLOCK, [address(flags), address(found), ROWS, COLUMNS])
    starts = (i - i % COLUMNS for i in range(len(flags)))
    return found.tolist(), [sum(flags[start:i]) for i, start in enumerate(starts)]


def total(module, name, warp_size, *, block=1024, backward=False):
    """What a kernel makes of random numbers in three blocks, and their sum."""
    del warp_size
    numbers = random.Random(SEED)  # noqa: S311 - reproducible, not secret
    values = array("q", (numbers.randint(-100, 100) for _ in range(ROWS * COLUMNS)))
    found = array("q", [0] * 3)
    arguments = [address(values), address(found), len(values)]
    module.launch(name, 3, block, arguments, backward=backward)
    return sum(found), sum(values)


@pytest.mark.parametrize("warp_size", lane_shim.WARP_SIZES)
@pytest.mark.parametrize(
    ("name", "run"),
    [("row_sum_i64", sums), ("row_rank", ranks), ("partial_sum_i64", total)],
)
def test_the_kernels_are_right_where_the_broken_ones_are_not(name, run, warp_size):
    found, expected = run(lane_shim.kernels(warp_size), name, warp_size)
    assert found == expected


def test_a_mask_of_32_lanes_is_refused_at_64():
    found, expected = ranks(lane_shim.broken(32), "mask_of_32_lanes", 32)
    assert found == expected
    with pytest.raises(RuntimeError, match="lane 32 is not in its own mask 0xffffffff"):
        ranks(lane_shim.broken(64), "mask_of_32_lanes", 64)


def test_an_array_for_warps_of_64_is_overrun_at_32():
    found, expected = total(lane_shim.broken(64), "array_for_64", 64)
    assert found == expected
    with pytest.raises(RuntimeError, match="index 16 is outside its array"):
        total(lane_shim.broken(32), "array_for_64", 32)


@pytest.mark.parametrize("warp_size", lane_shim.WARP_SIZES)
def test_a_missing_barrier_shows_in_one_order_of_threads(warp_size):
    module = lane_shim.broken(warp_size)
    outcomes = set()
    for backward in (False, True):
        found, expected = total(module, "no_barrier", warp_size, backward=backward)
        outcomes.add(found == expected)
    assert False in outcomes


@pytest.mark.parametrize("warp_size", lane_shim.WARP_SIZES)
def test_lanes_that_miss_a_shuffle_are_named(warp_size):
    with pytest.raises(
        RuntimeError, match="thread 1 waits at a shuffle and thread 3 is at its end"
    ):
        total(lane_shim.broken(warp_size), "diverged", warp_size)


@pytest.mark.parametrize("warp_size", lane_shim.WARP_SIZES)
def test_a_block_of_broken_warps_is_refused(warp_size):
    with pytest.raises(RuntimeError, match="not a multiple of warps"):
        total(lane_shim.kernels(warp_size), "partial_sum_i64", warp_size, block=warp_size + 1)
