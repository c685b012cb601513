"""Occupancy by hand-worked cases, by what must hold of any kernel, and by what is refused."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from portagpu.base.errors import LimitExceeded, TargetNotFound, Unsupported
from portagpu.base.paths import matrix_dir
from portagpu.devices.sizing import occupancy
from portagpu.devices.sizing.calculator import curve, with_changes
from portagpu.devices.sizing.rules import largest_registers
from portagpu.facts.arch import Arch
from portagpu.facts.targets import load_architecture, load_target

NVIDIA = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]
AMD = ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"]
SEED = 11


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "memory", "blocks", "waves", "limited"),
    [
        # 12 KiB and the reserved 1 KiB are 13,312 B, of which 228 KiB hold 17, not 19
        ("sm_90", 32, 8, 12288, 17, 17, ("shared memory",)),
        # 65 registers are 72 x 32 = 2304 a warp, x 32 warps = 73,728 of 65,536
        ("sm_90", 1024, 65, 0, 0, 0, ("registers",)),
        # 168 x 32 = 5376 a warp: 3 in each of 4 partitions of 16,384, 12 warps in one block of 12
        ("sm_90", 384, 168, 0, 1, 12, ("registers",)),
        ("sm_120", 128, 64, 49152, 2, 8, ("shared memory",)),
        ("sm_75", 256, 32, 0, 4, 32, ("waves",)),
        # 72 of 512 VGPRs a wave: 7 waves in each of 4 SIMDs, in blocks of 4
        ("gfx942", 256, 72, 0, 7, 28, ("registers",)),
        # 32,769 B are 33,280 allocated: one block of 65,536
        ("gfx942", 256, 8, 32769, 1, 4, ("shared memory",)),
        # 16 workgroups with barriers, of 2 waves each: 32 waves
        ("gfx90a", 128, 8, 0, 16, 32, ("waves", "block slots")),
    ],
)
def test_hand_worked_cases(arch, threads, registers, memory, blocks, waves, limited):
    found = occupancy(arch, threads, registers, memory)
    assert (found.blocks, found.waves, found.limited_by) == (blocks, waves, limited)


@pytest.mark.parametrize(
    ("arch", "memory", "compiler", "hardware"),
    [
        # of 65,536 B the compiler counts 5 x 13,107; 13,312 are allocated, of which 4 fit
        ("gfx90a", 13107, 5, 4),
        ("gfx950", 32767, 5, 4),
        ("gfx950", 54613, 3, 2),
        ("gfx1100", 26214, 10, 8),
        ("gfx942", 16384, 4, 4),
    ],
)
def test_shared_memory_is_rounded_by_the_hardware_and_not_by_the_compiler(
    arch, memory, compiler, hardware
):
    found = occupancy(arch, 256, 8, memory).per_simd
    assert (found.compiler, found.hardware) == (compiler, hardware)


def test_the_compiler_rounds_up_where_whole_blocks_leave_room():
    # 11 waves a block: 2 blocks are 22 of 32 waves, 5.5 a SIMD, which the compiler calls 6
    found = occupancy("gfx90a", 704, 8)
    assert (found.blocks, found.waves, found.per_simd.compiler) == (2, 22, 6)


@pytest.mark.parametrize(
    ("arch", "kernel", "per_simd"),
    [
        ("gfx908", {"registers": 64, "accumulators": 100}, 2),  # two files: the greater, 100
        ("gfx90a", {"registers": 61, "accumulators": 3}, 7),  # one file: align4(61) + 3 = 67
        ("gfx90a", {"registers": 65, "accumulators": 64}, 3),
        ("gfx942", {"registers": 8, "scalar_registers": 100}, 8),
        ("gfx942", {"registers": 8, "scalar_registers": 101}, 7),  # more than 100 SGPRs
        ("gfx906", {"registers": 8, "scalar_registers": 84}, 9),
        ("gfx1100", {"registers": 8, "scalar_registers": 106}, 16),  # never a limit
        ("gfx1100", {"registers": 49, "wave_size": 64}, 12),
        ("gfx1030", {"registers": 65}, 12),
    ],
)
def test_registers_of_every_kind_are_counted(arch, kernel, per_simd):
    assert occupancy(arch, 64, **kernel).per_simd.compiler == per_simd


def test_barriers_are_a_resource_from_hopper_on():
    assert occupancy("sm_90", 64, 16, barriers=8).blocks == 8
    assert occupancy("sm_90", 64, 16, barriers=8).limited_by == ("barriers",)
    assert occupancy("sm_80", 64, 16, barriers=8).blocks == 32
    assert occupancy("sm_103", 64, 16, barriers=2).blocks == 16, "CUDA 13.5 has 32 for it"


def test_a_carveout_is_rounded_up_to_one_that_there_is():
    # 10 % of 228 KiB are 22.8 KiB, of which the device makes 32 KiB: 3 of 9 KiB
    assert occupancy("sm_90", 32, 16, 8192, carveout=10).blocks == 3
    # a block that needs more than the carve-out gets the least that it fits into
    assert occupancy("sm_90", 32, 16, 100_000, carveout=0).blocks == 1
    assert occupancy("sm_90", 32, 16, 8192, carveout=100).blocks == 25


def random_kernels(arch: str, count: int):
    target = load_architecture(arch)
    numbers = random.Random(f"{SEED} {arch}")  # noqa: S311 - cases of a test
    most = target.value("shared_memory.per_block_optin")
    for _ in range(count):
        memory = numbers.choice([0, numbers.randint(0, most), numbers.randint(0, 8192)])
        registers = numbers.randint(1, largest_registers(target))
        yield occupancy(target, numbers.randint(1, 1024), registers, memory)


@pytest.mark.parametrize("arch", NVIDIA + AMD)
def test_asking_for_more_never_holds_more(arch):
    for found in random_kernels(arch, 150):
        kernel = found.kernel
        for field in ("registers", "shared_memory"):
            less = with_changes(found, **{field: getattr(kernel, field) - 1 or 1})
            assert less.blocks >= found.blocks, f"seed {SEED}: {kernel} with less {field}"
        wider = with_changes(found, threads=kernel.threads + kernel.wave_size)
        assert wider.blocks <= found.blocks, f"seed {SEED}: {kernel} in larger blocks"


@pytest.mark.parametrize("arch", NVIDIA + AMD)
def test_every_figure_agrees_with_the_others(arch):
    for found in random_kernels(arch, 150):
        reported = f"seed {SEED}: {found.kernel}"
        assert 0 <= found.fraction <= 1, reported
        assert found.waves <= found.max_waves, reported
        assert found.limited_by, reported
        assert all(limit.blocks >= found.blocks for limit in found.limits), reported
        assert all(found.target.fact(limit.key) is not None for limit in found.limits), reported
        if found.per_simd is not None:
            assert found.per_simd.hardware <= found.per_simd.compiler <= found.per_simd.most, (
                reported
            )
            simds = found.max_waves // found.per_simd.most
            if found.blocks:
                assert found.waves <= simds * found.per_simd.hardware, reported


@pytest.mark.parametrize("arch", NVIDIA + AMD)
def test_a_next_step_helps_and_is_the_least_that_does(arch):
    helped = 0
    for found in random_kernels(arch, 60):
        reported = f"seed {SEED}: {found.kernel}"
        for step in found.next_steps():
            changes = {
                name: value
                for name in ("registers", "shared_memory", "threads")
                if (value := getattr(step, name)) is not None
            }
            better = with_changes(found, **changes)
            assert better.waves == step.waves > found.waves, f"{reported}: {step}"
            assert better.blocks == step.blocks, f"{reported}: {step}"
            for name in changes.keys() & {"registers", "shared_memory"}:
                more = with_changes(found, **{**changes, name: changes[name] + 1})
                assert more.waves < better.waves, f"{reported}: {step} is not the most {name}"
            helped += 1
        if found.waves == found.max_waves:
            assert not found.next_steps(), reported
    assert helped > 20


def test_two_resources_that_limit_together_are_one_step():
    # 64 registers leave room for 4 blocks, and 50 KiB (51 with what is reserved) for 4
    found = occupancy("sm_90", 256, 64, 50 * 1024)
    step = found.next_steps()[0]
    assert found.limited_by == ("registers", "shared memory")
    assert (step.registers, step.blocks, step.waves) == (48, 5, 40)
    # a fifth of 233,472 B in whole 128 B is 46,592, of which 1,024 are reserved
    assert step.shared_memory == 46592 - 1024


@pytest.mark.parametrize("arch", ["sm_90", "gfx942", "gfx1100"])
@pytest.mark.parametrize("over", ["registers", "shared_memory"])
def test_a_curve_is_every_level_between_its_ends(arch, over):
    found = occupancy(arch, 256, 32, 4096)
    points = dict(curve(found, over))
    drawn = sorted(points)
    assert list(points.values()) == sorted(points.values(), reverse=True), "it never rises"
    for left, right in itertools.pairwise(drawn):
        middle = (left + right) // 2
        held = with_changes(found, **{over: middle}).waves
        assert points[right] <= held <= points[left]
        if points[left] == points[right]:
            assert held == points[left], f"{middle} {over} on a level"


def test_lines_say_what_limits_and_what_would_help():
    lines = occupancy("sm_90", 256, 64, 16384).explain()
    assert lines[1] == "4 blocks a streaming multiprocessor: 32 of 64 warps, 50%"
    assert "limited by registers" in lines
    assert "registers: room for 4 blocks; a block takes 16,384 of 65,536 registers" in lines
    assert lines[-1] == "with at most 48 registers a thread: 5 blocks, 40 of 64 warps"
    assert any("cannot be launched" in line for line in occupancy("sm_90", 1024, 65).explain())
    assert any("28 lanes" in line for line in occupancy("sm_90", 100, 65).explain())


def test_an_architecture_has_several_spellings():
    found = occupancy("sm_90", 256, 64, 16384)
    for spelling in (
        "sm_90a",
        Arch("nvidia", "sm_90", 32),
        load_target("nvidia-h200-sxm"),
        load_architecture("SM_90"),
    ):
        assert occupancy(spelling, 256, 64, 16384).residency == found.residency


@pytest.mark.parametrize("name", ["sm_91", "gfx940", "", "h100", "sm_9\n0", "x" * 1000])
def test_an_unknown_architecture_names_the_known_in_one_line(name):
    with pytest.raises(TargetNotFound, match=r"known are .*gfx942.*sm_90") as caught:
        occupancy(name, 32, 32)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_cpu_has_no_occupancy():
    with pytest.raises(Unsupported, match=r"x86-64 has no occupancy"):
        occupancy("x86-64", 1, 1)


@pytest.mark.parametrize(
    ("arch", "asked", "limit", "most"),
    [
        ("sm_90", {"threads": 1025}, "exec.max_threads_per_block", 1024),
        ("sm_90", {"registers": 256}, "register.max_per_thread", 255),
        ("sm_90", {"shared_memory": 227 * 1024 + 1}, "shared_memory.per_block_optin", 232448),
        (
            "sm_90",
            {"shared_memory": 49153, "opt_in": False},
            "shared_memory.per_block_default",
            49152,
        ),
        ("sm_90", {"barriers": 65}, "exec.max_barriers_per_unit", 64),
        ("gfx942", {"shared_memory": 65537}, "shared_memory.per_block_optin", 65536),
        ("gfx942", {"registers": 257}, "register.max_per_thread", 256),
        ("gfx942", {"registers": 10**30}, "register.max_per_thread", 512),
        ("gfx942", {"accumulators": 257}, "register.max_accumulators_per_thread", 256),
        ("gfx942", {"scalar_registers": 109}, "register.max_scalar_per_thread", 108),
        ("gfx1100", {"registers": 257}, "register.max_per_thread", 256),
    ],
)
def test_what_no_block_can_have_is_refused_with_limit_and_source(arch, asked, limit, most):
    with pytest.raises(LimitExceeded) as caught:
        occupancy(arch, **{"threads": 256, "registers": 32, **asked})
    assert (caught.value.limit, caught.value.most) == (limit, most)
    assert caught.value.source, "the limit has a source"
    for word in (limit, str(most), *caught.value.source):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("arch", "asked", "error", "said"),
    [
        ("sm_90", {"threads": 0}, ValueError, "threads is 0"),
        ("sm_90", {"threads": -32}, ValueError, "threads is -32"),
        ("sm_90", {"threads": 32.0}, TypeError, "not float"),
        ("sm_90", {"threads": True}, TypeError, "not bool"),
        ("sm_90", {"registers": 0}, ValueError, "registers is 0"),
        ("sm_90", {"shared_memory": -1}, ValueError, "shared_memory is -1"),
        ("sm_90", {"accumulators": 4}, ValueError, "no accumulation registers"),
        ("gfx1100", {"accumulators": 4}, ValueError, "no accumulation registers"),
        ("sm_90", {"scalar_registers": 4}, ValueError, "scalar registers"),
        ("sm_90", {"cu_mode": True}, ValueError, "no CU mode"),
        ("gfx942", {"carveout": 50}, ValueError, "no carve-out"),
        ("sm_90", {"carveout": 101}, ValueError, "0 to 100"),
        ("sm_90", {"wave_size": 64}, ValueError, "it has 32"),
        ("gfx942", {"wave_size": 32}, ValueError, "it has 64"),
    ],
)
def test_what_cannot_be_is_refused(arch, asked, error, said):
    with pytest.raises(error, match=said):
        occupancy(arch, **{"threads": 256, "registers": 32, **asked})


def test_the_examples_of_the_guide_run():
    pytest.importorskip("torch")
    guide = (Path(__file__).resolve().parents[2] / "docs" / "kernels.md").read_text("utf-8")
    sizing = guide[guide.index("## Sizing") :]
    examples = re.findall(r"```python\n(.*?)```", sizing, re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        exec(example, {})


def test_the_guide_names_every_architecture_that_has_occupancy():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "kernels.md").read_text("utf-8")
    row = next(line for line in guide.splitlines() if line.startswith("| `--arch`"))
    families = (path.stem for path in (matrix_dir() / "targets" / "families").glob("*.toml"))
    counted = [name for name in families if load_architecture(name).fact("exec.occupancy_rule")]
    assert sorted(counted) == sorted(NVIDIA + AMD), "and the tests above try every one"
    for name in counted:
        assert f"`{name}`" in row or f"`{re.sub('^(sm_|gfx)', '', name)}`" in row, name
