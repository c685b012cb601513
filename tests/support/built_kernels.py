"""The C++ kernels as machine code, where a compiler is installed, and what is true of them.

One child with the compilers' libraries builds all of a file of tests; ``one_child`` ends it.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from portagpu.base.errors import MissingDependency
from portagpu.base.subprocesses import start_caller
from portagpu.devices.machine_code import Elf
from portagpu.facts.targets import load_architecture
from portagpu.train.kernels.cpp import KERNELS, compile_source, read_source
from portagpu_rocm_build import clang
from tests.support.owned import kept

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


_CHILD = []


@pytest.fixture(scope="module", autouse=True)
def one_child():
    """End the child that builds."""
    yield
    while _CHILD:
        _CHILD.pop().close()


def _call(module, function, arguments, *, limit_s, environment=None):
    """What ``portagpu.base.subprocesses.call`` does, in a child that stays."""
    while not _CHILD or _CHILD[0].has_left():
        with kept():
            _CHILD[:] = [start_caller(environment)[0]]
    _CHILD[0].begin(module, function, arguments, limit_s)
    return _CHILD[0].wait(limit_s)


MISSING = {}
"""Architecture -> why nothing that is installed builds for it: a process finds that out once."""


def built(source, arch):
    """The kernels, or a skipped test where nothing that is installed builds for it."""
    if arch not in MISSING:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("portagpu.train.kernels.cpp.sources.call", _call)
                return compile_source(source, arch)
        except MissingDependency as error:
            MISSING[arch] = str(error)
    pytest.skip(MISSING[arch])


@functools.cache
def kernels_of(name, arch):
    return built(read_source(name), arch)


def check_kernel(name, arch):
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


def check_shared_memory(arch):
    warps = 1024 // load_architecture(arch).arch.warp_size
    taken = {kernel.name: kernel.shared_memory for kernel in kernels_of("block_reduce", arch)}
    assert taken["partial_sum_f32"] == 4 * warps
    assert taken["partial_sum_f64"] == taken["partial_sum_i32"] == 8 * warps


def check_header(arch):
    target = load_architecture(arch)
    source = FACTS.format(
        warp_size=target.arch.warp_size, max_block=target.value("exec.max_threads_per_block")
    )
    (kernel,) = built(source, arch)
    assert kernel.name == "facts"


def check_launch_bounds(arch, blocks):
    target = load_architecture(arch)
    if blocks * 256 > target.value("exec.max_threads_per_unit"):
        pytest.skip(f"a unit of {arch} never holds {blocks} blocks of 256 threads")
    (kernel,) = built(HUNGRY.replace("BLOCKS", str(blocks)), arch)
    assert kernel.occupancy(256).blocks >= blocks


def check_block(arch):
    for name in KERNELS:
        for kernel in kernels_of(name, arch):
            assert kernel.max_threads == (1024 if name == "block_reduce" else 256)


def check_with_cuobjdump(arch, tmp_path):
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


def check_waves(arch, tmp_path):
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
