"""The C++ kernels as machine code of every architecture, where a compiler for it is installed."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from portagpu.errors import MissingDependency, TargetNotFound, Unsupported
from portagpu.kernels.cpp import KERNELS, CompileError, compile_kernel, compile_source, read_source
from portagpu.machine_code.compiled import CompilerEnded
from portagpu.machine_code.elf import Elf
from portagpu.patience import Limits
from portagpu.sizing import Sizing
from portagpu.target import load_architecture, load_targets
from portagpu_cuda_build import nvrtc
from portagpu_rocm_build import clang
from tests.support.fake_clang import write_clang

NVIDIA = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
AMD = ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
ARCHES = NVIDIA + AMD

# keeps a hundred values alive, so that a bound on registers has something to bound
HUNGRY = """
#include "portagpu.h"
extern "C" __global__ PORTAGPU_LAUNCH_BOUNDS(256, BLOCKS) void hungry(float* x, int n) {
    float v[100];
    for (int i = 0; i < 100; ++i) v[i] = x[i * 256 + pg::thread_index()];
    pg::barrier();
    for (int round = 0; round < n; ++round)
        for (int i = 0; i < 100; ++i) v[i] = v[i] * v[(i + 37) % 100] + v[(i + 61) % 100];
    pg::barrier();
    for (int i = 0; i < 100; ++i) x[i * 256 + pg::thread_index()] = v[i];
}
"""
FACTS = """
#include "portagpu.h"
static_assert(pg::warp_size == {warp_size}, "warp size");
static_assert(pg::max_block_size == {max_block}, "threads a block");
extern "C" __global__ void facts(unsigned long long* out) {{
    *out = pg::all_lanes() + pg::any(true) + pg::all(true) + pg::shuffle_down(1.0, 1);
}}
"""


MISSING = {}
"""Architecture -> why nothing that is installed builds for it: a process finds that out once."""


def built(source, arch):
    """The kernels, or a skipped test where nothing that is installed builds for it."""
    if arch not in MISSING:
        try:
            return compile_source(source, arch)
        except MissingDependency as error:
            MISSING[arch] = str(error)
    pytest.skip(MISSING[arch])


@functools.cache
def kernels_of(name, arch):
    return built(read_source(name), arch)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_built_for_every_architecture(name, arch):
    target = load_architecture(arch)
    kernels = kernels_of(name, arch)
    assert {kernel.name for kernel in kernels} == set(KERNELS[name])
    for kernel in kernels:
        assert kernel.arch == arch
        assert kernel.wave_size == target.arch.warp_size
        assert (kernel.spills, kernel.scalar_spills, kernel.stack) == (0, 0, 0), kernel
        assert 0 < kernel.registers <= target.value("register.max_per_thread")
        assert Elf(kernel.code).machine in ("EM_CUDA", "EM_AMDGPU")
        assert kernel.compiler.startswith(("NVRTC 1", "clang "))
        assert kernel.occupancy(256).blocks >= 4  # what the launch bounds ask for


@pytest.mark.parametrize("arch", ARCHES)
def test_shared_memory_follows_the_number_of_warps(arch):
    warps = 1024 // load_architecture(arch).arch.warp_size
    taken = {kernel.name: kernel.shared_memory for kernel in kernels_of("block_reduce", arch)}
    assert taken["partial_sum_f32"] == 4 * warps
    assert taken["partial_sum_f64"] == taken["partial_sum_i32"] == 8 * warps


@pytest.mark.parametrize("arch", ["gfx908", "gfx942", "gfx1201"])
def test_llvm_reads_the_same_of_a_code_object(arch, tmp_path):
    readelf = shutil.which("llvm-readelf-22") or shutil.which("llvm-readelf")
    if readelf is None:
        pytest.skip("llvm-readelf is not installed")
    (kernel,) = built(HUNGRY.replace("BLOCKS", "4"), arch)
    path = tmp_path / "kernel.co"
    path.write_bytes(kernel.code)
    said = subprocess.run(
        [readelf, "--notes", str(path)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    told = {key: int(value) for key, value in re.findall(r"\.(\w+): +(\d+)$", said, re.MULTILINE)}
    assert (kernel.registers, kernel.accumulators) == (
        told["vgpr_count"],
        told.get("agpr_count", 0),
    )
    assert kernel.scalar_registers == told["sgpr_count"]
    assert kernel.spills == told["vgpr_spill_count"]
    assert kernel.scalar_spills == told["sgpr_spill_count"]
    assert kernel.stack == told["private_segment_fixed_size"]
    assert kernel.shared_memory == told["group_segment_fixed_size"]
    assert kernel.wave_size == told["wavefront_size"]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_header_says_what_the_facts_say(arch):
    target = load_architecture(arch)
    source = FACTS.format(
        warp_size=target.arch.warp_size, max_block=target.value("exec.max_threads_per_block")
    )
    (kernel,) = built(source, arch)
    assert kernel.name == "facts"


def test_a_wrong_warp_size_in_a_source_does_not_compile():
    for arch, wrong in (("sm_90", 64), ("gfx942", 32), ("gfx1100", 64)):
        with pytest.raises(CompileError, match="warp size"):
            built(FACTS.format(warp_size=wrong, max_block=1024), arch)


@pytest.mark.parametrize("blocks", [1, 4, 6])
@pytest.mark.parametrize("arch", ARCHES)
def test_launch_bounds_leave_room_for_the_blocks_that_they_name(arch, blocks):
    target = load_architecture(arch)
    if blocks * 256 > target.value("exec.max_threads_per_unit"):
        pytest.skip(f"a unit of {arch} never holds {blocks} blocks of 256 threads")
    (kernel,) = built(HUNGRY.replace("BLOCKS", str(blocks)), arch)
    assert kernel.occupancy(256).blocks >= blocks


@pytest.mark.parametrize("arch", ["sm_90", "gfx942", "gfx1100"])
def test_a_narrower_bound_costs_registers_or_spills(arch):
    (wide,) = built(HUNGRY.replace("BLOCKS", "1"), arch)
    (narrow,) = built(HUNGRY.replace("BLOCKS", "8"), arch)
    assert wide.spills == 0
    assert narrow.registers < wide.registers
    assert narrow.spills > 0
    assert narrow.stack > 0


def test_half_precision_atomics_do_not_compile():
    half = (
        '#include "portagpu.h"\nextern "C" __global__ void k(short* p) { pg::atomic_add(p, p[1]); }'
    )
    for arch in ("sm_90", "gfx942"):
        with pytest.raises(CompileError, match="delete"):
            built(half, arch)


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_a_wrong_source_is_refused_with_the_place(arch):
    source = '#include "portagpu.h"\n\nextern "C" __global__ void k() { nonsense(); }\n'
    with pytest.raises(CompileError, match=r"kernel\.cpp[:(]3") as caught:
        built(source, arch)
    assert "nonsense" in str(caught.value)


def test_what_no_compiler_is_asked_for():
    with pytest.raises(LookupError, match="there is no kernel 'sum'; there are warp_reduce"):
        compile_kernel("sum", "sm_90")
    with pytest.raises(TargetNotFound):
        compile_kernel("histogram", "gfx942x")
    with pytest.raises(Unsupported, match="no CUDA or HIP"):
        compile_kernel("histogram", "x86-64")


def test_blocks_of_every_target_fit_the_launch_bounds():
    checked = 0
    for target in load_targets().values():
        values = [
            target.value(key)
            for key in (
                "exec.max_threads_per_block",
                "exec.max_threads_per_unit",
                "exec.max_blocks_per_unit",
            )
        ]
        if None in values:
            continue
        sizing = Sizing(target.arch.warp_size, 100, *values, target)
        assert sizing.launch(10**7).block <= 256, target.id
        assert sizing.launch(10**7, shared_memory=8192).block <= 256, target.id
        assert sizing.reduce(10**7).final.block <= 1024, target.id
        checked += 1
    assert checked > 30


@pytest.fixture
def only(tmp_path, monkeypatch):
    """A path with one folder, for a clang that stands in."""
    if Path("/opt/rocm").exists():
        pytest.skip("ROCm is installed, whose clang comes first")
    for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_no_clang_says_what_to_install(only):
    with pytest.raises(MissingDependency, match=r"no clang is installed: .*apt-get install clang"):
        clang.compile("", "gfx942")
    write_clang(only, "true")
    with pytest.raises(MissingDependency, match="clang-99 cannot build for gfx1201: install"):
        clang.compile("", "gfx1201")


def test_a_clang_without_linker_says_what_to_install(only):
    write_clang(only, "true")
    path = only / "clang-99"
    path.write_text(path.read_text().replace(f"echo {path} ;;", "echo ld.lld ;;"))
    with pytest.raises(MissingDependency, match=r"has no linker ld\.lld: .*lld"):
        clang.compile("", "gfx942")


def test_a_compiler_that_hangs_is_ended(only, monkeypatch):
    write_clang(only, "exec /bin/sleep 600")
    monkeypatch.setattr(
        "portagpu.kernels.cpp.compile.LIMITS", Limits(compile_s=3.0)
    )  # allowed: what it limits never ends
    with pytest.raises(CompileError, match=r"no code for gfx942: .* did not answer within 3 s"):
        compile_source("", "gfx942")


def test_a_compiler_that_dies_is_reported(only):
    write_clang(only, "kill -9 $$")
    with pytest.raises(CompilerEnded, match=r"clang 99\.1\.2 ended with exit code -9"):
        compile_source("", "gfx942")
    write_clang(only, "echo LLVM ERROR: no >&2; exit 70")
    with pytest.raises(CompilerEnded, match="ended with exit code 70: LLVM ERROR: no"):
        compile_source("", "gfx942")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/nonexistent/clang"),
        lambda path: path.write_text("no program"),
        lambda path: (path.write_text("no program"), path.chmod(0o755)),
        lambda path: (path.write_text("#!/nonexistent/sh"), path.chmod(0o755)),
    ],
    ids=["folder", "dangling link", "not executable", "no program", "no interpreter"],
)
def test_what_only_has_the_name_of_a_clang_hides_no_other(only, make):
    good = write_clang(only, "true").rename(only / "clang-98")
    good.write_text(good.read_text().replace("clang-99", "clang-98"))
    make(only / "clang-99")
    found = clang.survey(["gfx942"])["gfx942"]
    assert not isinstance(found, str), found
    assert found.version == "99.1.2"


def test_what_a_clang_says_beside_its_answer_is_not_its_linker(only):
    path = write_clang(only, "true")
    path.write_text(path.read_text().replace("case", "echo warning: odd >&2\ncase", 1))
    assert not isinstance(clang.survey(["gfx942"])["gfx942"], str)


def test_a_clang_that_writes_nothing_is_reported(only):
    write_clang(only, "true")
    with pytest.raises(CompilerEnded, match=r"clang 99\.1\.2 wrote no code: .*clang-99"):
        compile_source("", "gfx942")


def test_options_of_the_environment_do_not_reach_clang(only, monkeypatch):
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "# +-O0")
    write_clang(only, 'echo "told: $CCC_OVERRIDE_OPTIONS." >&2; exit 1')
    with pytest.raises(CompileError, match=r"told: \."):
        compile_source("", "gfx942")


def test_nvrtc_that_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc, "libraries", lambda _: iter(["libnvrtc-none.so.1"]))
    wanted = "NVRTC is not installed: pip install nvidia-cuda-nvrtc"
    with pytest.raises(MissingDependency, match=wanted):
        nvrtc.compile("", "sm_90")
    assert nvrtc.compilers(["sm_90"])["sm_90"].startswith(wanted)


@pytest.mark.parametrize(
    ("numbers", "arch", "said"),
    [
        ((75, 90, 120), "sm_70", "NVRTC 13.9 cannot build for sm_70: pip install .*-nvrtc-cu12"),
        (
            (70, 90),
            "sm_120",
            r"NVRTC 13.9 cannot build for sm_120: pip install \S+-nvrtc \(CUDA 13",
        ),
    ],
)
def test_nvrtc_that_is_too_new_or_too_old_says_which_to_install(monkeypatch, numbers, arch, said):
    class Library:
        name = "NVRTC 13.9"
        architectures = numbers

    monkeypatch.setattr(nvrtc, "_loadable", lambda: iter([Library()]))
    with pytest.raises(MissingDependency, match=said):
        nvrtc.compile("", arch)


def test_a_child_that_aborts_is_reported(monkeypatch):
    monkeypatch.setattr(
        "portagpu.kernels.cpp.compile.call", lambda *_, **__: (None, "it ended with SIGABRT")
    )
    with pytest.raises(CompilerEnded, match="no code for sm_90: it ended with SIGABRT"):
        compile_source("", "sm_90")


@pytest.mark.parametrize("arch", ARCHES)
def test_the_code_states_the_block_that_its_source_bounds(arch):
    for name in KERNELS:
        for kernel in kernels_of(name, arch):
            assert kernel.max_threads == (1024 if name == "block_reduce" else 256)


@pytest.mark.parametrize("arch", NVIDIA)
def test_cuobjdump_reads_the_same_of_a_cubin(arch, tmp_path):
    spec = importlib.util.find_spec("triton")
    if spec is None:
        pytest.skip("cuobjdump is not installed: pip install 'portagpu[compile]'")
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    reserved = load_architecture(arch).value("shared_memory.reserved_per_block") or 0
    for name in KERNELS:
        kernels = {kernel.name: kernel for kernel in kernels_of(name, arch)}
        path = tmp_path / "kernel.cubin"
        path.write_bytes(next(iter(kernels.values())).code)
        said = subprocess.run(
            [tool, "-res-usage", path], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        rows = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", said)
        assert {row[0] for row in rows} == set(kernels)
        for function, registers, stack, shared in rows:
            kernel = kernels[function]
            assert (kernel.registers, kernel.stack) == (int(registers), int(stack))
            # from Hopper on it counts what the driver reserves
            assert int(shared) - kernel.shared_memory in (0, reserved)


def best_waves(kernel):
    """LLVM states the most waves that a block of any size within the source's bound comes to."""
    sizes = range(kernel.wave_size, kernel.max_threads + 1, kernel.wave_size)
    return max(kernel.occupancy(size).per_simd.compiler for size in sizes)


@pytest.mark.parametrize("arch", AMD)
def test_clang_counts_the_same_waves(arch, tmp_path):
    program = next(clang.compilers(), None)
    if program is None:
        pytest.skip("clang is not installed")
    for name in KERNELS:
        kernels = {kernel.name: kernel for kernel in kernels_of(name, arch)}
        source, text = tmp_path / "kernel.cpp", tmp_path / "kernel.s"
        source.write_text(read_source(name))
        words = [word for word in clang._WORDS if word != "-c"]
        subprocess.run(
            [program, *words, "-S", f"--offload-arch={arch}", source, "-o", text],
            capture_output=True,
            timeout=100,
            check=True,
        )
        parts = re.split(r"^\t\.amdhsa_kernel (\w+)$", text.read_text(), flags=re.MULTILINE)[1:]
        waves = {
            kernel: int(re.search(r"; Occupancy: (\d+)", about)[1])
            for kernel, about in zip(parts[::2], parts[1::2], strict=True)
        }
        assert waves == {kernel.name: best_waves(kernel) for kernel in kernels.values()}


def test_nvrtc_is_looked_for_in_wheels_then_toolkits_then_by_name(tmp_path, monkeypatch):
    wheel, toolkit = tmp_path / "site", tmp_path / "cuda"
    for path in (
        wheel / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        wheel / "nvidia/cu13/lib/libnvrtc.so.13",
        toolkit / "lib64/libnvrtc.so.12.4.127",
    ):
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    found = [Path(path).name for path in nvrtc.libraries([str(wheel), str(wheel)])]
    assert found == [
        "libnvrtc.so.13",
        "libnvrtc.so.12",
        "libnvrtc.so.12.4.127",
        "libnvrtc.so.13",
        "libnvrtc.so.12",
    ]
