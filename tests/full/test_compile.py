"""``portagpu compile``: readers of machine code, verdicts, the cache, compilers that misbehave."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import portagpu
from portagpu.runs.results import run as results
from portagpu.runs.results.run import Verdict, read_json
from portagpu.train.kernels.plan import VARIANTS, variants_by_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: pip install 'portagpu[compile]'",
)


@needs_triton
def test_targets_build_pass_and_are_kept(child: Callable[..., Child], tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TRITON_INTERPRET": "1"}
    archs = ("sm_80", "sm_90", "gfx942", "gfx1100")
    words = [word for arch in archs for word in ("--arch", arch)]
    for cached in (False, True):
        file = tmp_path / f"{cached}.json"
        ended = child(
            "-m", "portagpu", "compile", *words, "--json", str(file), environment=environment
        )
        run = read_json(file)
        assert (ended.code, run.verdict) in ((0, Verdict.PASS), (3, Verdict.INCONCLUSIVE))
        open_ones = [r for r in run.results if r.verdict is Verdict.INCONCLUSIVE]
        assert all(r.id == "kernels/cpp" and "install" in r.reason for r in open_ones)
        results.validate(json.loads(file.read_text("utf-8")))
        assert run.info.versions["triton"]
        built = [r for r in run.results if r.verdict is Verdict.PASS]
        assert {r.device for r in built} == set(archs)
        assert all(r.extra["cached"] is cached for r in built)
        triton = [r for r in run.results if r.id.removeprefix("kernels/") in variants_by_id()]
        assert len(triton) == len(archs) * len(VARIANTS)
        matrix = {(r.device, r.id): r.extra["matrix"] for r in built}
        assert any("HGMMA" in each for each in matrix["sm_90", "kernels/matmul[float16]"])
        fp8 = matrix["gfx942", "kernels/matmul[float8_e4m3fnuz]"]
        assert any("fp8_fp8" in each for each in fp8)
        assert not matrix["gfx1100", "kernels/copy[int32]"]


@needs_triton
def test_real_code_that_is_bad_fails(child: Callable[..., Child]) -> None:
    """A block too large for gfx1100's registers, and an fp8 that gfx942 only emulates."""
    script = """
from portagpu.suites.compile.judge import judge_code
from portagpu.devices.discovery import toolchain_for
from portagpu.suites.compile.worker import build
from portagpu.train.kernels.plan import variants_by_id
from portagpu.train.kernels.plan import Config
from portagpu.facts.targets import identify, load_target
def verdict(arch, variant, *blocks):
    target = identify("amd", arch, None)
    names = ("BLOCK_M", "BLOCK_N", "DEPTH_BYTES", "GROUP_M")
    config = Config(tuple(zip(names, blocks)), 256, 2)
    _, reader = toolchain_for("amd")
    each = variants_by_id()[variant]
    code = build(each, config, reader, arch, target.arch.warp_size)
    given = {"matrix": each.matrix, "compiler": "x 1", "duration_s": 0, "extra": {}}
    result = judge_code(variant, target, code, **given)
    print(arch, result.verdict, result.reason)
verdict("gfx1100", "matmul[float16]", 128, 128, 128, 8)
verdict("gfx942", "matmul[float8_e4m3fn]", 128, 128, 64, 8)
verdict("gfx942", "matmul[float8_e4m3fnuz]", 128, 128, 64, 8)
"""
    said = child("-c", script, environment={"TRITON_DEFAULT_FP_FUSION": "1"}).ok().splitlines()
    spilled, emulated, right = said
    assert spilled.startswith("gfx1100 FAIL spill ")
    assert emulated.startswith("gfx942 FAIL matrix 0 instructions")
    assert "the code has v_mfma_f32_32x32x8_f16" in emulated
    assert right.strip() == "gfx942 PASS"


@needs_triton
@pytest.mark.parametrize(
    ("file", "old", "new", "verdict", "said"),
    [
        ("streams.py", "def copy_kernel(", "def copy_kernel((", "FAIL", "SyntaxError"),
        ("streams.py", "tl.load(source + at", "tl.lode(source + at", "FAIL", "lode"),
        ("streams.py", "import triton\n", "import os\nos.abort()\n", "ERROR", "SIGABRT"),
    ],
    ids=["syntax", "unknown", "abort"],
)
def test_a_broken_kernel_is_named_and_the_others_are_built(
    child: Callable[..., Child],
    tmp_path: Path,
    file: str,
    old: str,
    new: str,
    verdict: str,
    said: str,
) -> None:
    package = tmp_path / "copy" / "portagpu"
    shutil.copytree(Path(portagpu.__file__).parent, package)
    # as in a checkout: an installed wheel has a record, by which this one would be damaged
    matrix = tmp_path / "copy" / "matrix"
    if (package / "_matrix").exists():
        (package / "_matrix").rename(matrix)
    else:
        root = Path(portagpu.__file__).parents[1]
        shutil.copytree(root / "matrix", matrix, ignore=shutil.ignore_patterns("res*"))
    source = package / "train" / "kernels" / "source" / file
    text = source.read_text("utf-8")
    assert old in text
    source.write_text(text.replace(old, new, 1), "utf-8")
    out = tmp_path / "result.json"
    ended = child(
        "-m",
        "portagpu",
        "compile",
        *("--arch", "gfx942", "--no-cache", "--json", str(out)),
        path=[tmp_path / "copy"],
    )
    assert ended.code == 1
    found = {r.id: r for r in read_json(out).results}
    assert str(found["kernels/copy[int32]"].verdict) == verdict
    assert said in found["kernels/copy[int32]"].reason
    assert found["kernels/softmax[bfloat16]"].verdict is Verdict.PASS
