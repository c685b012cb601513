"""Launches cover every element exactly once and fit the device."""

from __future__ import annotations

import random

import pytest

from portagpu.devices.sizing import Launch, Sizing

DEVICES = {
    "warp 32": Sizing(32, 132, 1024, 2048, 32),
    "warp 64": Sizing(64, 304, 1024, 2048, 32),
    "warp 1": Sizing(1, 2, 1, 1, 1),
    "one unit": Sizing(32, 1, 1024, 1024, 16),
    "many small blocks": Sizing(32, 4, 64, 2048, 8),
    "few threads": Sizing(64, 3, 128, 128, 4),
    "odd limits": Sizing(32, 5, 1000, 1500, 7),
    "blocks larger than a unit": Sizing(32, 2, 1024, 64, 1),
}


def stride_loop_visits(launch: Launch) -> list[int]:
    """How often each element is visited by the loop that the launch is meant for."""
    visits = [0] * launch.n
    for thread in range(launch.threads):
        index = thread
        for _ in range(launch.work_per_thread):
            if index < launch.n:
                visits[index] += 1
            index += launch.threads
    return visits


@pytest.mark.parametrize("device", DEVICES)
def test_small_launches_visit_every_element_once(device):
    sizing = DEVICES[device]
    seed = 20240
    numbers = random.Random(seed)  # noqa: S311 - cases of a test
    for n in [1, 2, 31, 32, 33, 63, 64, 65, *(numbers.randrange(1, 4000) for _ in range(6))]:
        visits = stride_loop_visits(sizing.launch(n))
        assert set(visits) == {1}, f"seed {seed}: n={n} on {device} misses or repeats elements"


@pytest.mark.parametrize("device", DEVICES)
def test_any_launch_covers_n_and_fits_the_device(device):
    sizing = DEVICES[device]
    seed = 7
    numbers = random.Random(seed)  # noqa: S311 - cases of a test
    cases = [int(2 ** numbers.uniform(0, 40)) for _ in range(500)]
    cases += [2**31 - 1, 2**31, 2**32 + 1, 10**15]
    for n in cases:
        launch = sizing.launch(n)
        reported = f"seed {seed}: n={n} on {device}: {launch}"
        assert launch.n == n, reported
        assert launch.threads * launch.work_per_thread >= n, f"{reported} leaves elements out"
        assert launch.threads * (launch.work_per_thread - 1) < n, f"{reported} loops once too often"
        assert launch.block % sizing.warp_size == 0, f"{reported} splits a warp"
        assert sizing.warp_size <= launch.block <= sizing.max_threads_per_block, reported
        assert (launch.grid - 1) * launch.block < n, f"{reported} has blocks without work"
        blocks_per_unit = -(-launch.grid // sizing.unit_count)
        assert blocks_per_unit <= sizing.max_blocks_per_unit, f"{reported} does not fit at once"


def test_a_large_launch_fills_the_device():
    # by hand: 2048 threads in 32 blocks are 64 a block, at least four warps are 128 and 256
    assert DEVICES["warp 32"].launch(10**9).block == 128
    assert DEVICES["warp 32"].launch(10**9).grid == 132 * 16
    assert DEVICES["warp 64"].launch(10**9).block == 256
    assert DEVICES["warp 64"].launch(10**9).grid == 304 * 8


def test_a_tiny_launch_is_one_block_of_whole_warps():
    assert DEVICES["warp 64"].launch(1) == Launch(1, 64, 1, 1, warp_size=64)
    assert DEVICES["warp 32"].launch(33) == Launch(33, 64, 1, 1, warp_size=32)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_a_launch_of_nothing(device):
    launch = DEVICES[device].launch(0)
    assert (launch.grid, launch.threads, launch.work_per_thread) == (0, 0, 0)
    assert launch.block >= 1, "a block of no threads cannot be divided by"


@pytest.mark.parametrize("n", [-1, -(10**12)])
def test_a_negative_number_of_elements_is_refused(n):
    with pytest.raises(ValueError, match=f"n is {n}; it must be at least 0"):
        DEVICES["warp 32"].launch(n)


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 1.5},
        {"n": float("nan")},
        {"n": True},
        {"n": "7"},
        {"n": 7, "item_bytes": 2.5},
        {"n": 7, "registers": 1.5},
        {"n": 7, "shared_memory": 1.5},
    ],
)
def test_what_is_not_an_integer_is_refused_with_and_without_facts(asked):
    for device in DEVICES.values():
        with pytest.raises(TypeError, match="must be an integer, not"):
            device.launch(**asked)


@pytest.mark.parametrize("asked", [{"registers": 0}, {"item_bytes": 0}, {"shared_memory": -1}])
def test_what_cannot_be_is_refused_without_facts(asked):
    with pytest.raises(ValueError, match="it must be at least"):
        DEVICES["warp 32"].launch(7, **asked)


def test_a_plan_holds_plain_integers_whatever_counts_the_elements():
    class Count:
        def __index__(self):
            return 1000

    launch = DEVICES["warp 32"].launch(Count())
    assert launch == DEVICES["warp 32"].launch(1000)
    assert {type(each) for each in (launch.n, launch.block, launch.grid)} == {int}
    assert type(DEVICES["warp 32"].reduce(Count()).n) is int
