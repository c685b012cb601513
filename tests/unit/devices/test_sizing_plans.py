"""Plans for every target: inside its limits, refused beyond them, and explained."""

from __future__ import annotations

import dataclasses

import pytest

from portagpu.base.errors import LimitExceeded, Unsupported
from portagpu.devices.sizing import Sizing
from portagpu.facts.targets import Target, load_target, load_targets
from tests.support.looped import looped

CPU = Sizing(1, 8, 1, 1, 1)


def sizing(target: Target | str) -> Sizing:
    """What a backend makes of a device of that target."""
    target = load_target(target) if isinstance(target, str) else target
    return Sizing(
        target.arch.warp_size,
        target.value("exec.unit_count"),
        target.value("exec.max_threads_per_block"),
        target.value("exec.max_threads_per_unit"),
        target.value("exec.max_blocks_per_unit"),
        target,
    )


# a device always says how many units it has; a target may not
GPUS = {
    name: sizing(target)
    for name, target in load_targets().items()
    if target.vendor != "cpu" and target.fact("exec.unit_count") is not None
}
H200, MI300X, MI355X = (GPUS[n] for n in ("nvidia-h200-sxm", "amd-mi300x", "amd-mi355x"))


def test_a_reduction_whose_accumulators_do_not_fit_is_refused():
    # the partial results are in blocks of 4 warps, the final launch in one of 32: 32 x 8 KiB
    with pytest.raises(LimitExceeded, match="262144 bytes of shared memory") as caught:
        H200.reduce(10**6, item_bytes=8192)
    assert caught.value.limit == "shared_memory.per_block_optin"
    assert H200.reduce(10**6, item_bytes=4096).final is not None


def test_vectors_are_as_wide_as_an_access_and_no_thread_goes_idle_for_them():
    assert MI300X.launch(10**9, item_bytes=2).vector_width == 8, "16 B"
    assert GPUS["nvidia-b200-sxm"].launch(10**9, item_bytes=2).vector_width == 16, "32 B"
    assert MI300X.launch(10**9, item_bytes=32).vector_width == 1, "wider than an access"
    assert MI300X.launch(1000, item_bytes=2).vector_width == 1, "a small launch stays wide"
    assert MI300X.launch(10**9).vector_width == 1, "nothing was said of the elements"


def test_registers_and_shared_memory_leave_room_for_fewer_blocks():
    whole = MI300X.launch(10**9)
    less = MI300X.launch(10**9, registers=100, shared_memory=20_000)
    assert (whole.grid, less.grid) == (304 * 8, 304 * 3)
    assert less.occupancy.limited_by == ("shared memory",)
    # 200 VGPRs leave 2 waves to each SIMD: 1,024 threads do not fit, 512 do
    assert MI300X.launch(10**9, block=512, registers=200).occupancy.blocks == 1
    with pytest.raises(LimitExceeded, match="no block of 1024 threads fits"):
        MI300X.launch(10**9, block=1024, registers=200)


@pytest.mark.parametrize(
    ("device", "refused", "limit"),
    [
        # 32 warps are 1,024 threads on one vendor and 2,048 on the other
        (MI300X, lambda d: d.launch(10, block=32 * d.warp_size), "exec.max_threads_per_block"),
        (MI300X, lambda d: d.launch(2**32, work_per_thread=1), "exec.max_threads_per_dimension"),
        (MI300X, lambda d: d.check((1, 65537), 64), "exec.max_grid_y"),
        (H200, lambda d: d.check((1, 65536), 64), "exec.max_grid_y"),
        (H200, lambda d: d.check((1, 1, 65536), 64), "exec.max_grid_z"),
        (H200, lambda d: d.launch(2**42, block=1024, work_per_thread=1), "exec.max_grid_x"),
        (H200, lambda d: d.check(1, (32, 32, 2)), "exec.max_threads_per_block"),
        (MI300X, lambda d: d.check(1, 64, shared_memory=65537), "shared_memory.per_block_optin"),
        (H200, lambda d: d.check(1, 64, shared_memory=232449), "shared_memory.per_block_optin"),
        (MI300X, lambda d: d.launch(10, shared_memory=65537), "shared_memory.per_block_optin"),
        (H200, lambda d: d.launch(10, registers=256), "register.max_per_thread"),
        (MI300X, lambda d: d.matmul(10**8, 10**8, 64, "fp16"), "exec.max_grid_x"),
        (H200, lambda d: d.matmul(64, 64, 64, "fp16", batch=65536), "exec.max_grid_y"),
        (CPU, lambda d: d.check(1, 2), "exec.max_threads_per_block"),
    ],
)
def test_a_launch_beyond_a_limit_names_it(device, refused, limit):
    with pytest.raises(LimitExceeded) as caught:
        refused(device)
    assert caught.value.limit == limit
    assert limit in str(caught.value)
    assert "source" in str(caught.value) or "device reports" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_launch_inside_a_limit_passes():
    assert H200.launch(10, block=32 * H200.warp_size).num_warps == 32
    assert (H200.max_num_warps, MI300X.max_num_warps, CPU.max_num_warps) == (32, 16, 1)
    assert MI300X.launch(2**32 - 256, block=256, work_per_thread=1).threads == 2**32 - 256
    assert H200.launch(2**33, work_per_thread=1).threads >= 2**33, "no such limit there"
    MI300X.check((1, 65536, 65536), (64, 16), shared_memory=65536)
    MI355X.check(1, 64, shared_memory=163840)
    H200.check((2**31 - 1, 65535, 65535), 1024, shared_memory=232448)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"block": 100}, "block must be a multiple of the warp size .*, not 100"),
        ({"block": -64}, "at least 1"),
        ({"work_per_thread": 0}, "at least 1"),
        ({"item_bytes": 0}, "at least 1"),
        ({"shared_memory": -1}, "at least 0"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        H200.launch(10**6, **asked)
    with pytest.raises(ValueError, match="dimensions"):
        H200.check((1, 1, 1, 1), 32)


@looped("name", [*GPUS, "cpu"])
@looped("n", [0, 1, 63, 1000, 10**7, 2**40])
def test_a_reduction_reaches_every_element_and_leaves_one(name, n):
    device = GPUS.get(name, CPU)
    plan = device.reduce(n, item_bytes=2)
    assert plan.partials.threads * plan.partials.work_per_thread >= n
    assert plan.shared_memory == plan.partials.num_warps * 4, "one 32-bit accumulator a warp"
    assert 2**plan.shuffle_steps == device.warp_size
    if plan.partials.grid > 1:
        assert plan.final.grid == 1
        assert plan.final.threads * plan.final.work_per_thread >= plan.partials.grid
    else:
        assert plan.final is None
    assert plan.explain()


def planned(device: Sizing):
    """A plan for each dtype whose tile is known, and sizes from a vector to the largest square."""
    for dtype in (
        "fp64",
        "fp32",
        "tf32",
        "xf32",
        "fp16",
        "bf16",
        "fp8",
        "fp6",
        "fp4",
        "int8",
        "int4",
    ):
        for m, n, k in ((8192, 8192, 8192), (512, 512, 4096), (1, 4096, 4096), (300, 70, 17)):
            try:
                yield device.matmul(m, n, k, dtype)
            except Unsupported:
                known = device.target.value(f"matrix.tile.{dtype}")
                assert known is None, f"{dtype} has the tile {known}"


@pytest.mark.parametrize("name", GPUS)
def test_a_product_covers_the_result_in_whole_instructions(name):
    device, count = GPUS[name], 0
    for plan in planned(device):
        reported = f"{name}: {plan}"
        high, wide = plan.tile
        tiles, products, _ = plan.grid
        assert tiles * high * wide >= plan.m * plan.n, reported
        assert products == plan.batch == 1, reported
        assert plan.num_warps <= device.max_num_warps, reported
        assert plan.shared_memory <= device.target.value("shared_memory.per_block_optin"), reported
        assert plan.occupancy.blocks >= 1, reported
        assert plan.stages >= 2, reported
        threads = plan.num_warps * plan.warp_size
        words = 2 if plan.dtype == "fp64" else 1
        assert plan.accumulators * threads >= high * wide * words, reported
        if plan.instruction is not None:
            m, n, k = plan.instruction
            assert (high % m, wide % n, plan.step % k) == (0, 0, 0), reported
            stated = device.target.value(f"matrix.tile.{plan.dtype}")
            assert stated == "x".join(str(side) for side in plan.instruction), reported
        count += 1
    assert count >= 12, f"{name} has few dtypes"


@pytest.mark.parametrize("name", ["nvidia-h200-sxm", "amd-mi300x", "amd-rx7900xtx", "nvidia-t4"])
def test_a_product_has_a_tile_for_every_unit_or_the_smallest_tiles(name):
    device = GPUS[name]
    large, small = device.matmul(8192, 8192, 8192, "fp16"), device.matmul(512, 512, 512, "fp16")
    assert large.grid[0] >= device.unit_count
    assert large.tile[0] * large.tile[1] > small.tile[0] * small.tile[1]
    assert max(small.tile) <= 64


def test_products_by_hand():
    # 256 x 256 in 32 x 32 x 8: 65,536 words in 256 threads are 256 accumulators; two stages of
    # (256 + 256) x 32 x 2 B are all of the 64 KiB
    plan = MI300X.matmul(8192, 8192, 8192, "bf16")
    assert (plan.tile, plan.num_warps, plan.accumulators) == ((256, 256), 4, 256)
    assert (plan.stages, plan.shared_memory, plan.grid) == (2, 65536, (1024, 1, 1))
    # 255 registers a thread leave 128 to accumulators: half the tile, four stages of 24 KiB
    plan = H200.matmul(8192, 8192, 8192, "bf16", batch=3)
    assert (plan.tile, plan.num_warps, plan.accumulators) == ((256, 128), 8, 128)
    assert (plan.stages, plan.shared_memory, plan.grid) == (4, 98304, (2048, 3, 1))
    assert plan.vector_width == 8


@pytest.mark.parametrize(
    ("device", "dtype", "error", "said"),
    [
        (H200, "tf8", ValueError, "is not a dtype of matrix products"),
        (H200, "float8_e4m3fnuz", Unsupported, "flavour fnuz"),
        (MI300X, "float8_e4m3fn", Unsupported, "flavour ocp"),
        (MI300X, "tf32", Unsupported, "source L-LLVM22"),
        (H200, "fp4", Unsupported, "matrix.dtypes"),
        (CPU, "fp32", Unsupported, "shared memory"),
    ],
)
def test_a_product_that_no_fact_describes_is_refused(device, dtype, error, said):
    with pytest.raises(error, match=said):
        device.matmul(64, 64, 64, dtype)


@pytest.mark.parametrize("sides", [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_a_product_of_nothing_is_refused(sides):
    with pytest.raises(ValueError, match="must be at least 1"):
        H200.matmul(*sides, "fp16")


def test_plans_explain_themselves():
    assert MI300X.launch(10**9, item_bytes=2, shared_memory=20_000).explain() == (
        "1,000,000,000 elements: 912 blocks of 256 threads (num_warps=4)",
        "a thread handles up to 4,288 elements, 8 at once",
        "20,000 B of shared memory a block",
        "3 blocks a compute unit: 12 of 32 wavefronts, 38%",
        "limited by shared memory",
    )
    lines = MI300X.matmul(8192, 8192, 8192, "bf16").explain()
    assert "blocks of 256 threads (4 of 64); num_warps=4, num_stages=2 in Triton" in lines
    assert any("then 1 block" in line for line in MI300X.reduce(10**8).explain())
    assert CPU.launch(0).explain() == ("no element: no launch",)


def test_without_facts_only_what_the_device_states_is_checked():
    bare = dataclasses.replace(MI300X, target=None)
    assert bare.launch(10**9, registers=100).occupancy is None
    bare.check((1, 10**6), 64, shared_memory=10**6)
    with pytest.raises(LimitExceeded, match="as the device reports"):
        bare.check(1, 1025)
