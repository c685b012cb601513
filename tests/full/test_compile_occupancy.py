"""Occupancy of Triton's kernels against LLVM's figure, and what it is made from against ptxas."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

import pytest

from portagpu.suites.compile.run import CompileOptions
from portagpu.train.kernels.plan import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.facts.targets import Target
    from tests.conftest import Child

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed: pip install 'portagpu[compile]'",
    ),
]

BUILT = """
import json, re, subprocess, sys
from importlib.util import find_spec
from pathlib import Path
from portagpu.devices.discovery import toolchain_for
from portagpu.suites.compile.worker import build
from portagpu.train.kernels.plan import VARIANTS
from portagpu.train.kernels.plan import Limits, candidates
from portagpu.devices.sizing import occupancy_of_code
from portagpu.facts.targets import load_architecture

target = load_architecture(sys.argv[1])
_, real = toolchain_for(target.vendor)

class Kept:
    triton_target = staticmethod(real.triton_target)
    unit_reading = staticmethod(real.unit_reading)
    def inspect(self, code, threads, warps, *, matrix):
        self.code = code
        return real.inspect(code, threads, warps, matrix=matrix)

def built():
    for variant in VARIANTS:
        if not variant.why_not(target):
            kept, warp = Kept(), target.arch.warp_size
            config = candidates(variant.kind, Limits.of_target(target))[0]
            yield variant.id, build(variant, config, kept, target.arch.name, warp), kept.code
"""
LLVM = """
found = {}
for name, code, stages in built():
    text = stages["amdgcn"]
    stated = {
        key: int(re.search(rf"; {key}: (\\d+)", text)[1])
        for key in ("Occupancy", "LDSByteSize")
    }
    ours = occupancy_of_code(
        target, code.threads, registers=code.registers, accumulators=code.accumulators,
        scalar_registers=code.scalar_registers, shared_memory=stated["LDSByteSize"],
        wave_size=code.wave_size,
    )
    found[name] = [ours.per_simd.compiler, stated["Occupancy"]]
print(json.dumps(found))
"""
PTXAS = """
tools = Path(find_spec("triton").origin).parent / "backends/nvidia/bin"

def report(ptx):
    Path("kernel.ptx").write_text(ptx)
    chip = re.search(r"\\.target (\\w+)", ptx)[1]
    # the option is Triton's own; without it ptxas 13 gives a product for sm_100 fewer registers
    words = ["-v", "--regAllocOptLevel=2", f"--gpu-name={chip}", "kernel.ptx", "-o", "kernel.cubin"]
    for tool in ("ptxas", "ptxas-blackwell"):
        ended = subprocess.run([tools / tool, *words], capture_output=True, text=True)
        if not ended.returncode:
            return ended.stderr
    raise SystemExit(ended.stderr)

found = {}
for name, code, stages in built():
    log = report(stages["ptx"])
    stack = re.search(r"(\\d+) bytes stack frame, (\\d+) bytes.*, (\\d+) bytes", log).groups()
    registers = int(re.search(r"Used (\\d+) registers", log)[1])
    found[name] = [[code.registers, code.spills], [registers, sum(map(int, stack))]]
print(json.dumps(found))
"""


def built_for(vendor: str) -> list[str]:
    return [
        target.arch.name
        for target in CompileOptions().targets()
        if target.vendor == vendor and "triton" in target.value("compile.routes")
    ]


def names_for(target: Target) -> set[str]:
    return {variant.id for variant in VARIANTS if not variant.why_not(target)}


@pytest.mark.parametrize("arch", built_for("amd"))
def test_our_rule_and_llvm_count_the_same_waves(
    child: Callable[..., Child], tmp_path: object, arch: str
) -> None:
    """Both without the shared memory that Triton asks for at a launch, which LLVM does not see."""
    environment = {"TRITON_CACHE_DIR": f"{tmp_path}/triton", "TRITON_DEFAULT_FP_FUSION": "1"}
    found = json.loads(child("-c", BUILT + LLVM, arch, environment=environment).ok())
    assert set(found) == names_for(CompileOptions(archs=[arch]).targets()[0])
    assert {name: ours for name, (ours, _) in found.items()} == {
        name: llvm for name, (_, llvm) in found.items()
    }


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_ptxas_reports_the_registers_that_the_cubin_states(
    child: Callable[..., Child], tmp_path: object, arch: str
) -> None:
    environment = {"TRITON_CACHE_DIR": f"{tmp_path}/triton", "TRITON_DEFAULT_FP_FUSION": "1"}
    found = json.loads(child("-c", BUILT + PTXAS, arch, environment=environment).ok())
    assert set(found) == names_for(CompileOptions(archs=[arch]).targets()[0])
    assert {name: read for name, (read, _) in found.items()} == {
        name: said for name, (_, said) in found.items()
    }
