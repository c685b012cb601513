"""The C++ kernels as machine code of some architectures, where a compiler for it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from portagpu.base.errors import MissingDependency, TargetNotFound, Unsupported
from portagpu.base.patience import Limits
from portagpu.devices.machine_code import CompilerEnded
from portagpu.devices.sizing import Sizing
from portagpu.facts.targets import load_targets
from portagpu.train.kernels.cpp import KERNELS, CompileError, compile_kernel, compile_source
from portagpu_cuda_build import nvrtc
from portagpu_rocm_build import clang
from tests.support import built_kernels
from tests.support.built_kernels import FACTS, HUNGRY, built
from tests.support.built_kernels import one_child as one_child
from tests.support.fake_clang import write_clang

SOME_NVIDIA = ("sm_75", "sm_90", "sm_120")
SOME_AMD = ("gfx90a", "gfx942", "gfx1201")
SOME = SOME_NVIDIA + SOME_AMD
"""The oldest, the newest and one between; tests/full builds for all."""


@pytest.mark.parametrize("arch", SOME)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_built_for_every_architecture(name, arch):
    built_kernels.check_kernel(name, arch)


@pytest.mark.parametrize("arch", SOME)
def test_shared_memory_follows_the_number_of_warps(arch):
    built_kernels.check_shared_memory(arch)


@pytest.mark.parametrize("arch", SOME)
def test_the_header_says_what_the_facts_say(arch):
    built_kernels.check_header(arch)


@pytest.mark.parametrize("blocks", [1, 4, 6])
@pytest.mark.parametrize("arch", SOME)
def test_launch_bounds_leave_room_for_the_blocks_that_they_name(arch, blocks):
    built_kernels.check_launch_bounds(arch, blocks)


@pytest.mark.parametrize("arch", SOME)
def test_the_code_states_the_block_that_its_source_bounds(arch):
    built_kernels.check_block(arch)


@pytest.mark.parametrize("arch", SOME_NVIDIA)
def test_cuobjdump_reads_the_same_of_a_cubin(arch, tmp_path):
    built_kernels.check_with_cuobjdump(arch, tmp_path)


@pytest.mark.parametrize("arch", SOME_AMD)
def test_clang_counts_the_same_waves(arch, tmp_path):
    built_kernels.check_waves(arch, tmp_path)


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
    reported = {
        key: int(value) for key, value in re.findall(r"\.(\w+): +(\d+)$", said, re.MULTILINE)
    }
    assert (kernel.registers, kernel.accumulators) == (
        reported["vgpr_count"],
        reported.get("agpr_count", 0),
    )
    assert kernel.scalar_registers == reported["sgpr_count"]
    assert kernel.spills == reported["vgpr_spill_count"]
    assert kernel.scalar_spills == reported["sgpr_spill_count"]
    assert kernel.stack == reported["private_segment_fixed_size"]
    assert kernel.shared_memory == reported["group_segment_fixed_size"]
    assert kernel.wave_size == reported["wavefront_size"]


def test_a_wrong_warp_size_in_a_source_does_not_compile():
    for arch, wrong in (("sm_90", 64), ("gfx942", 32), ("gfx1100", 64)):
        with pytest.raises(CompileError, match="warp size"):
            built(FACTS.format(warp_size=wrong, max_block=1024), arch)


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
    with pytest.raises(LookupError, match="unknown kernel 'sum': known are warp_reduce"):
        compile_kernel("sum", "sm_90")
    with pytest.raises(TargetNotFound):
        compile_kernel("histogram", "gfx942x")
    with pytest.raises(Unsupported, match="not run CUDA or HIP"):
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
        "portagpu.train.kernels.cpp.sources.LIMITS", Limits(compile_s=3.0)
    )  # allowed: what it limits never ends
    with pytest.raises(CompileError, match=r"built for gfx942: .* did not answer within 3 s"):
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


def test_what_a_clang_says_next_to_its_answer_is_not_its_linker(only):
    path = write_clang(only, "true")
    path.write_text(path.read_text().replace("case", "echo warning: odd >&2\ncase", 1))
    assert not isinstance(clang.survey(["gfx942"])["gfx942"], str)


def test_a_clang_that_writes_nothing_is_reported(only):
    write_clang(only, "true")
    with pytest.raises(CompilerEnded, match=r"clang 99\.1\.2 wrote no code: .*clang-99"):
        compile_source("", "gfx942")


def test_options_of_the_environment_do_not_reach_clang(only, monkeypatch):
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "# +-O0")
    write_clang(only, 'echo "received: $CCC_OVERRIDE_OPTIONS." >&2; exit 1')
    with pytest.raises(CompileError, match=r"received: \."):
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
        "portagpu.train.kernels.cpp.sources.call", lambda *_, **__: (None, "it ended with SIGABRT")
    )
    with pytest.raises(CompilerEnded, match="no code was built for sm_90: it ended with SIGABRT"):
        compile_source("", "sm_90")


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
