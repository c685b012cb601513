"""Portable kernels beside torch's operators: what is timed, checked and held to, without a GPU.

The kernels run in Triton's interpreter, in a child whose times say nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from portagpu.bench.cases import BenchCase
from portagpu.bench.judge import judge
from portagpu.bench.suite import plan
from portagpu.results.run import Verdict
from portagpu.stats import summarise
from portagpu.target import load_target
from tests.test_bench_suite import CPU, GPU


def test_a_cpu_has_none_and_says_so() -> None:
    for case in plan(["kernels"], CPU, "quick", 1, None):
        assert case.absent is not None
        assert case.absent.verdict is Verdict.SKIP
        assert case.absent.reason == "Triton launches nothing on cpu"


def test_a_gpu_has_each_kernel_and_what_it_is_held_to() -> None:
    found = {case.id: case.least for case in plan(["kernels"], GPU, "quick", 1, None)}
    by_memory = ("copy", "triad", "sum", "softmax", "rms_norm", "quantize_fp8")
    expected = {f"kernels/{name}[copy]": 0.9 for name in by_memory}
    expected |= dict.fromkeys([f"kernels/{name}[torch]" for name in by_memory[3:]], 0.95)
    assert found == {**expected, "kernels/matmul[4096]": None}
    (full,) = plan(["kernels/matmul"], GPU, "full", 1, None)
    assert full.id == "kernels/matmul[8192]"


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


def _measured(kernel: str, dtype: str, fault: str = "none") -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, kernel, dtype, fault],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


SHARES = {"copy": 1.0, "triad": 1.5, "sum": 0.5, "softmax": 1.0, "rms_norm": 1.0}
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
        (point,) = reading["points"]  # type: ignore[misc]
        assert point["work"] == work
        assert len(point["seconds"]) >= 5
        assert min(point["seconds"]) > 0


@pytest.mark.torch
def test_a_kernel_is_timed_as_a_graph_where_the_device_has_graphs() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    first, second = _measured("sum", "float32", "graphs")
    for reading, captures in ((first, 2), (second, 4)):
        assert (reading["wrong"], reading["skip"]) == ("", "")
        notes, (point,) = reading["notes"], reading["points"]  # type: ignore[misc]
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
