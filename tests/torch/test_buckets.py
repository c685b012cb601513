"""Bucket sizes: torch's own assignment as the oracle, and steps worked by hand."""

from __future__ import annotations

import random

import pytest

from portagpu.devices.collectives.buckets import MIB, choose_ddp, choose_fsdp, ddp_buckets
from tests.support.looped import looped


def linear(alpha_us, gbs):
    return lambda operation, size_bytes: alpha_us + size_bytes / (gbs * 1e3)


@pytest.mark.torch
@looped("cap", [None, 1, 4, 25, 100])
@looped("seed", range(5))
def test_buckets_are_those_that_torch_fills(cap, seed):
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    draw = random.Random(seed)  # noqa: S311 - no secret
    counts = [draw.choice([1, 100, 10_000, 300_000, 2_000_000]) for _ in range(60)]
    # a reducer that rebuilds its buckets has the parameters in the order of their gradients
    ready = [torch.empty(count, device="meta") for count in reversed(counts)]
    first = 1 << 20 if cap is None else cap * MIB
    limits = [first, (25 if cap is None else cap) * MIB]
    indices, _ = dist._compute_bucket_assignment_by_size(
        ready, limits, [False] * len(ready), list(range(len(ready)))
    )
    expected = tuple(sum(4 * ready[index].numel() for index in bucket) for bucket in indices)
    assert ddp_buckets([4 * count for count in counts], cap) == expected
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == 1 << 20


def test_a_given_cap_holds_for_the_first_bucket_too():
    sizes = [MIB] * 60
    assert ddp_buckets(sizes)[:2] == (MIB, 25 * MIB)
    assert ddp_buckets(sizes, 25)[:2] == (25 * MIB, 25 * MIB)


def test_a_parameter_that_passes_the_cap_stays_in_its_bucket():
    assert ddp_buckets([3 * MIB, 30 * MIB, 2 * MIB], 4) == (32 * MIB, 3 * MIB)


def test_a_step_worked_by_hand():
    # 4 parameters of 10 MiB, 100 us each; 10 MiB take 50 us. The default: 1 MiB is passed by the
    # first (ready at 100), 25 MiB by the other three (ready at 400): 400 + 150
    sizes = [10 * MIB] * 4
    found = choose_ddp(sizes, 400.0, linear(0, 10 * MIB / 50 / 1e3))
    default = next(plan for plan in found.plans if plan.cap_mib is None)
    assert default.buckets == (10 * MIB, 30 * MIB)
    assert default.step_us == pytest.approx(550)
    assert default.exposed_us == pytest.approx(150)
    # a cap of 1 MiB reduces each by itself, and the last is what is left
    one = next(plan for plan in found.plans if plan.cap_mib == 1)
    assert one.step_us == pytest.approx(450)
    assert found.best.step_us == pytest.approx(450)
    assert found.speedup == pytest.approx(550 / 450)
    assert found.default == default


def test_latency_asks_for_large_buckets_and_bandwidth_for_small_ones():
    sizes = [MIB // 2] * 200
    slow_start = choose_ddp(sizes, 1000.0, linear(500.0, 1000.0))
    fast_start = choose_ddp(sizes, 10_000.0, linear(1.0, 10.0))
    assert len(slow_start.best.buckets) < len(slow_start.default.buckets)
    assert len(fast_start.best.buckets) > len(fast_start.default.buckets)


def test_the_default_stays_where_nothing_is_gained():
    found = choose_ddp([MIB] * 40, 1e6, linear(1.0, 1000.0))
    assert found.best.cap_mib is None
    assert found.speedup == 1.0


def test_no_plan_is_faster_than_computing_and_than_communicating_alone():
    time = linear(30.0, 50.0)
    sizes = [random.Random(3).randrange(1, 8 * MIB) for _ in range(80)]  # noqa: S311 - no secret
    for choose in (choose_ddp, choose_fsdp):
        found = choose(sizes, 3000.0, time)
        for plan in found.plans:
            assert sum(plan.buckets) == sum(sizes)
            assert plan.step_us >= 3000.0
            assert plan.step_us >= sum(time("all_reduce", each) for each in plan.buckets)
            assert plan.step_us >= found.best.step_us or plan.step_us > 0.99 * found.default.step_us


def test_a_sharded_step_worked_by_hand():
    # 2 groups of 30 MiB, 100 us each; a gather takes 20 us, a scatter 40. Gathered at 20, computed
    # from 20 to 120; meanwhile the next gather ends at 40; scatter 120 to 160; computed 120 to 220;
    # scatter 220 to 260
    times = {"all_gather": 20.0, "reduce_scatter": 40.0}
    found = choose_fsdp([30 * MIB] * 2, 200.0, lambda operation, size_bytes: times[operation])
    assert found.default.buckets == (30 * MIB, 30 * MIB)
    assert found.default.step_us == pytest.approx(260)


@pytest.mark.parametrize("choose", [choose_ddp, choose_fsdp])
@pytest.mark.parametrize(
    ("sizes", "backward", "said"),
    [
        ([], 10.0, "at least one parameter"),
        ([4, 0], 10.0, "each above 0"),
        ([4], 0.0, "more than 0 us, not 0"),
        ([4], float("inf"), "more than 0 us, not inf"),
        ([4], float("nan"), "more than 0 us, not nan"),
        ([4], 1e303, "no backward pass takes 1e\\+303 us"),
        ([10**400], 10.0, "more than 1 EiB"),
    ],
)
def test_what_makes_no_sense_is_refused(choose, sizes, backward, said):
    with pytest.raises(ValueError, match=said):
        choose(sizes, backward, linear(1.0, 1.0))


def test_without_overlap_a_step_is_the_sum():
    # by hand: 10 parameters of 5 MiB are 2 buckets of 25 MiB with a cap, each of 100 + 25 us
    sizes = [5 * MIB] * 10
    found = choose_ddp(sizes, 400.0, lambda _, size: 100.0 + size / MIB, overlap=False)
    steps = {plan.cap_mib: plan.step_us for plan in found.plans}
    assert steps[25] == pytest.approx(400 + 2 * 100 + 50)
    # 1 MiB first: 5 MiB alone, 25 MiB and 20 MiB
    assert steps[None] == pytest.approx(400 + 3 * 100 + 50)
    assert found.best.cap_mib == 50
    assert found.best.step_us == pytest.approx(400 + 100 + 50)
    sharded = choose_fsdp(sizes, 400.0, lambda _, size: 100.0 + size / MIB, overlap=False)
    assert {plan.cap_mib: plan.step_us for plan in sharded.plans}[25] == pytest.approx(
        400 + 2 * (2 * 100 + 50)
    )
