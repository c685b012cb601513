"""The portable kernels: their numbers in Triton's interpreter, their limits, what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import ROOT
from tests.process.test_kernels import (
    needs_triton,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

NUMERICS: Final = ROOT / "tests/support/kernel_numerics.py"


LIMIT_S: Final = 240


@pytest.fixture(scope="module")
def numerics() -> dict[str, str]:
    """What every case of kernel_numerics.py found, by case."""
    pytest.importorskip("torch")
    import os

    ended = subprocess.run(
        [sys.executable, str(NUMERICS)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    return {line["case"]: line["problem"] for line in lines}


@needs_triton
@pytest.mark.torch
@pytest.mark.parametrize(
    ("check", "least"),
    [
        ("copy", 100),
        ("triad", 30),
        ("sum", 70),
        ("softmax", 60),
        ("rms_norm", 30),
        ("adamw_step", 120),
        ("adamw_step-as-torch", 8),
        ("adamw_step-and-autograd", 1),
        ("not-finite", 7),
        ("quantize_fp8", 120),
        ("quantize_fp8-fp32", 4),
        ("matmul", 80),
    ],
)
def test_kernel_agrees_with_float64(numerics: dict[str, str], check: str, least: int) -> None:
    mine = {case: what for case, what in numerics.items() if case.startswith(f"{check}[")}
    if "without-fnuz" in numerics and check in ("quantize_fp8", "matmul"):
        least //= 2
    assert len(mine) >= least, "cases are missing"
    wrong = {case: what for case, what in mine.items() if what}
    assert not wrong, wrong


BUILD: Final = """
import json
from types import SimpleNamespace
from portagpu.devices.machine_code import MachineCode
from portagpu.devices.discovery import toolchain_for
from portagpu.suites.compile.worker import build
from portagpu.train.kernels.plan import variants_by_id
from portagpu.train.kernels.plan import OPTIN, Limits, candidates, shared_estimate
from portagpu.facts.targets import architecture_names, load_architecture
product = variants_by_id()["matmul[float16]"]
# nothing of the code is read
unread = MachineCode(
    wave_size=0, threads=None, registers=0, spills=0, spill_unit="B", shared_bytes=0, matrix={}
)
for target in map(load_architecture, architecture_names()):
    if "triton" in (target.value("compile.routes") or ()):
        _, tools = toolchain_for(target.vendor)
        tools = SimpleNamespace(triton_target=tools.triton_target, inspect=lambda *_, **__: unread)
        config = max(candidates("matmul", Limits.of_target(target)), key=shared_estimate)
        code = build(product, config, tools, target.arch.name, target.arch.warp_size)
        print(json.dumps([target.id, code.shared_bytes, target.value(OPTIN)]))
"""


@needs_triton
def test_largest_product_that_fits_is_built_to_fit(child: Callable[..., Child]) -> None:
    """What the compiler asks for, where the estimate has chosen: it knows nothing of padding."""
    said = child("-c", BUILD, environment={"TRITON_CACHE_DIR": "built"}).ok()
    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) >= 13, "architectures are missing"
    assert not [each for each in found if not 0 < each[1] <= each[2]]
