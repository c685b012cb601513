"""Portable kernels beside torch's operators: what is timed, checked and held to, without a GPU.

The kernels run in Triton's interpreter, in a child whose times say nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from portagpu.bench.cases import BenchCase
from portagpu.bench.judge import judge
from portagpu.bench.suite import plan
from portagpu.results.run import Verdict
from portagpu.stats import summarise
from portagpu.target import load_target
from tests.process.test_bench_suite import CPU, GPU


def test_a_cpu_has_none_and_says_so() -> None:
    for case in plan(["kernels"], CPU, "quick", 1, None):
        assert case.absent is not None
        assert case.absent.verdict is Verdict.SKIP
        assert case.absent.reason == "Triton launches nothing on cpu"


def test_a_gpu_has_each_kernel_and_what_it_is_held_to() -> None:
    found = {case.id: case.least for case in plan(["kernels"], GPU, "quick", 1, None)}
    by_memory = ("copy", "triad", "sum", "softmax", "rms_norm", "quantize_fp8", "adamw_step")
    expected = {f"kernels/{name}[copy]": 0.9 for name in by_memory}
    expected |= dict.fromkeys([f"kernels/{name}[torch]" for name in by_memory[3:]], 0.95)
    assert found == {**expected, "kernels/matmul[4096]": None}
    (full,) = plan(["kernels/matmul"], GPU, "full", 1, None)
    assert full.id == "kernels/matmul[8192]"


def test_arrays_are_of_one_size_in_every_dtype() -> None:
    for case in plan(["kernels"], replace(GPU, triton=True), "full", 1, None):
        assert case.absent is None
        if case.metric == "kernels/matmul":
            continue
        assert isinstance(case.shape, dict)
        given = case.arguments
        width = {"float32": 4, "bfloat16": 2}[given["dtype"]]
        assert given["rows"] * given["columns"] * width == case.shape["array_bytes"]
        assert (given["dtype"] == "float32") == (given["kernel"] == "adamw_step")


def test_kernels_stand_beside_torchs_operators() -> None:
    """In one table, over the same bytes; a CPU has torch's alone."""
    for device, runs in ((CPU, False), (replace(GPU, triton=True), True)):
        found = {case.id: case for case in plan(["operators"], device, "quick", 1, None)}
        for ours, theirs in (("adamw", "adamw[fused]"), ("rms_norm", "rms_norm")):
            own, other = found[f"operators/{ours}[portable]"], found[f"operators/{theirs}"]
            assert (own.metric, own.unit, own.shape) == (other.metric, other.unit, other.shape)
            assert other.absent is None
            assert (own.absent is None) == runs
        assert "operators/sgd[portable]" not in found


@pytest.mark.parametrize("target", [None, "nvidia-h200-sxm"])
@pytest.mark.parametrize(
    ("value", "verdict", "said"),
    [(0.96, Verdict.PASS, "at least 0.95"), (0.5, Verdict.FAIL, "0.5 is below 0.95")],
)
def test_a_kernel_is_held_to_its_least_on_any_hardware(
    target: str | None, value: float, verdict: Verdict, said: str
) -> None:
    case = BenchCase(
        id="kernels/x[torch]", metric="kernels/x", area="kernels", unit="1", function="", least=0.95
    )
    found = judge(case, summarise([value] * 5), load_target(target) if target else None)
    assert found.verdict is verdict
    assert said in found.reason
    assert found.expected is not None
    assert (found.expected["reference"], found.expected["upper"]) == (0.95, None)


CHILD = """
import json, sys, time
from types import SimpleNamespace
import torch
import portagpu as pg
from portagpu import kernels
from portagpu.bench.suite import load_area

kernel, dtype, fault = sys.argv[1:4]
area = load_area("kernels")
gpu = pg.backend("cpu")
if fault == "wrong":
    right = getattr(kernels, kernel)
    def broken(*given, **options):
        found = right(*given, **options)
        found.reshape(-1)[-1:].add_(1.0)
        return found
    setattr(kernels, kernel, broken)
if fault == "rate":
    right_step = kernels.adamw_step
    kernels.adamw_step = lambda *given, lr, **more: right_step(*given, lr=lr * 1.01, **more)
if fault == "unfused":
    from torch.optim import adam
    def refuse(parameter):
        raise RuntimeError("`fused=True` requires another device")
    adam._device_dtype_check_for_fused = refuse
if fault == "graphs":
    from contextlib import contextmanager
    from portagpu.contract import Capability

    class Graph:
        # it replays nothing: the result is that of the capture
        replays = captures = 0
        def replay(self):
            Graph.replays += 1
            time.sleep(1e-4)

    class Graphs(type(gpu)):
        __slots__ = ()
        def Graph(self):
            return Graph()
        @contextmanager
        def graph(self, graph):
            Graph.captures += 1
            yield graph

    gpu.__class__ = Graphs
    gpu.capabilities |= {Capability.GRAPHS}
rank = SimpleNamespace(gpu=gpu, step=lambda name: None)
for other in ("torch", "copy") if kernel != "matmul" else ("torch",):
    found = area.compare(
        rank, effort="quick", kernel=kernel, other=other, dtype=dtype, rows=64, columns=64)
    if fault == "graphs":
        found["notes"] |= {"captures": Graph.captures, "replays": Graph.replays}
    print(json.dumps(found))
"""


def _measured(kernel: str, dtype: str, fault: str = "none") -> list[dict[str, Any]]:
    return _run(CHILD, kernel, dtype, fault)


def _run(program: str, *words: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


SHARES = {
    "copy": 1.0,
    "triad": 1.5,
    "sum": 0.5,
    "softmax": 1.0,
    "rms_norm": 1.0,
    # parameter, gradient and two moments read, all but the gradient written
    "adamw_step": 3.5,
}
"""Bytes that a kernel reads and writes over those of a copy."""


@pytest.mark.torch
@pytest.mark.parametrize("kernel", [*SHARES, "matmul"])
def test_a_kernel_is_timed_beside_torchs(kernel: str) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    dtype = "float16" if kernel == "matmul" else "float32"
    readings = _measured(kernel, dtype)
    works = [1.0] if kernel == "matmul" else [1.0, SHARES[kernel]]
    for reading, work in zip(readings, works, strict=True):
        assert (reading["wrong"], reading["skip"]) == ("", "")
        (point,) = reading["points"]
        assert point["work"] == work
        assert len(point["seconds"]) >= 5
        assert min(point["seconds"]) > 0
    if kernel == "adamw_step":
        assert readings[0]["notes"]["torch_form"] == "fused"


@pytest.mark.torch
def test_a_step_is_timed_beside_torchs_foreach_where_none_is_fused() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    with_torch, with_copy = _measured("adamw_step", "float32", "unfused")
    assert with_torch["notes"]["torch_form"] == "foreach"
    assert with_torch["points"]
    assert "torch_form" not in with_copy["notes"]


@pytest.mark.torch
def test_a_step_at_another_rate_keeps_no_time() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    for reading in _measured("adamw_step", "float32", "rate"):
        assert reading["points"] == []
        assert "elements are further off than their bound" in reading["wrong"]


OPERATORS = """
import json, sys
from types import SimpleNamespace
import portagpu as pg
from portagpu import kernels
from portagpu.bench.suite import load_area

name, fault = sys.argv[1:3]
rank = SimpleNamespace(gpu=pg.backend("cpu"), step=lambda name: None)
area = load_area("operators")
if fault == "wrong":
    normalise, make = area.normalise, area.make
    area.normalise = lambda *given: normalise(*given[:3], given[3] * 1.01)
    def make_faster(*given):
        found = make(*given)
        found.keywords["lr"] *= 1.01
        return found
    area.make = make_faster
sizes = {"elements": 50} if name == "adamw" else {"rows": 64, "columns": 32}
run = area.step if name == "adamw" else area.norm
print(json.dumps(run(rank, effort="quick", name=name, form="portable", **sizes)))
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "flops", "moved"),
    # 28 bytes for each of 16 parts of 50 numbers; 8 bytes for each of 64 x 32
    [("adamw", 14 * 800, 28 * 800), ("rms_norm", 5 * 2048, 8 * 2048)],
)
def test_a_kernel_is_measured_as_torchs_operators_are(name: str, flops: int, moved: int) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    (reading,) = _run(OPERATORS, name, "none")
    assert (reading["wrong"], reading["skip"]) == ("", "")
    (point,) = reading["points"]
    assert (point["flops"], point["bytes"], point["work"]) == (flops, moved, moved)
    (broken,) = _run(OPERATORS, name, "wrong")
    assert broken["points"] == []
    assert broken["wrong"]


@pytest.mark.torch
def test_a_kernel_is_timed_as_a_graph_where_the_device_has_graphs() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    first, second = _measured("sum", "float32", "graphs")
    for reading, captures in ((first, 2), (second, 4)):
        assert (reading["wrong"], reading["skip"]) == ("", "")
        notes, (point,) = reading["notes"], reading["points"]
        assert notes["captures"] == captures, "ours and theirs are captured once each"
        assert notes["replays"] > 2 * len(point["seconds"]), "a sample replays no graph"


@pytest.mark.torch
@pytest.mark.parametrize("kernel", ["copy", "softmax"])
def test_a_kernel_that_computes_wrong_keeps_no_time(kernel: str) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    for reading in _measured(kernel, "float32", "wrong"):
        assert reading["points"] == []
        assert "elements are further off than their bound" in str(reading["wrong"])
