"""The example of a third-party backend: built as its own wheel, discovered, and used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.process.test_third_party_example import demo as demo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child
pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def test_example_passes_the_conformance_suite(child: Callable[..., Child], demo: Path) -> None:
    # with little of random programs: what they ask is the CPU's, which has its own run
    chosen = ("--level", "smoke", "--seed", "0")
    words = ("-m", "portagpu", "conform", "--backend", "demo", *chosen, "--json", "-")
    ended = child(*words, path=[demo], limit_s=600)
    assert ended.out.startswith("{"), f"conform wrote no result: {ended.err}"
    run = json.loads(ended.out)
    judged = {result["id"]: result for result in run["results"]}
    failed = [f"{name}: {result['reason']}" for name, result in judged.items() if _bad(result)]
    assert not failed, "\n".join(failed)
    assert ended.code == 0, ended.err
    assert run["run"]["backend"] == "demo"
    assert judged["streams/random-programs"]["verdict"] == "SKIP", "it does not claim STREAMS"


def test_example_passes_among_the_tests_of_its_own_project(
    child: Callable[..., Child], demo: Path
) -> None:
    # the others are in the run above
    chosen = "(identity or rng or streams or graphs) and not random"
    plugin = ("-p", "portagpu.suites.conformance.user_plugin")
    words = ("-m", "pytest", "-p", "no:cacheprovider", *plugin, "-q", "-rs", "-k", chosen)
    ended = child(*words, "--portagpu-backend", "demo", path=[demo], limit_s=600)
    assert " passed" in ended.ok()
    assert "failed" not in ended.out
    assert "demo does not claim graphs" in ended.out


def _bad(result: dict[str, str]) -> bool:
    return result["verdict"] not in {"PASS", "SKIP"}


def test_example_trains_under_its_own_name(child: Callable[..., Child], demo: Path) -> None:
    code = """
import warnings
warnings.simplefilter("error")
import torch, portagpu
gpu = portagpu.backend("demo")
assert gpu.name == "demo" and gpu is portagpu.backend("demo", index=0)
gpu.manual_seed(0)
model = torch.nn.Linear(4, 1).to(gpu.device)
rate = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(64, 4, device=gpu.device)
wanted = data.sum(dim=1, keepdim=True)
losses = []
start, end = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)
start.record()
for _ in range(50):
    with gpu.annotate("step"), gpu.autocast(enabled=False):
        loss = torch.nn.functional.mse_loss(model(data), wanted)
    rate.zero_grad()
    loss.backward()
    rate.step()
    losses.append(loss.item())
end.record()
gpu.synchronize()
assert start.elapsed_time(end) > 0
assert losses[-1] < losses[0] / 10, losses
assert gpu.max_memory_allocated() >= gpu.memory_allocated() > 0
for missing in (gpu.Stream, gpu.current_stream, gpu.Graph, gpu.reset_peak_memory_stats):
    try:
        missing()
    except portagpu.Unsupported:
        continue
    raise SystemExit(f"{missing} must raise Unsupported")
print("trained")
"""
    assert child("-c", code, path=[demo]).ok().strip() == "trained"


def test_info_lists_the_example_as_usable(child: Callable[..., Child], demo: Path) -> None:
    ended = child("-m", "portagpu", "info", "--json", "-", path=[demo])
    backends = {entry["name"]: entry for entry in json.loads(ended.ok())["backends"]}
    assert backends["demo"]["usable"] is True, backends
    assert backends["demo"]["reason"] == "the demo device is the host's CPU"
