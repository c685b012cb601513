"""Streams, events, ranges and custom gradients as scripts use them: as types, and as decorators."""

from __future__ import annotations

import importlib
import runpy

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu.devices import registry
from tests.conftest import ROOT
from tests.support.registry_state import forget


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    forget(monkeypatch)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")


def test_the_typed_script_runs():
    """mypy checks it too (pyproject.toml)."""
    assert runpy.run_path(str(ROOT / "tests/support/typed_script.py"))["number"] == 1


def test_instances_are_of_their_types():
    assert isinstance(pg.Event(), pg.Event)
    assert isinstance(pg.Stream(), pg.Stream)
    assert isinstance(pg.current_stream(), pg.Stream)
    assert not isinstance(pg.Event(), pg.Stream | pg.Graph)
    assert not isinstance(torch.ones(1), pg.Event)
    assert not isinstance(None, pg.Event | pg.Stream | pg.Graph)


def test_torchs_own_classes_are_of_the_types():
    for ours, theirs in (
        (pg.Event, torch.cuda.Event),
        (pg.Stream, torch.cuda.Stream),
        (pg.Graph, torch.cuda.CUDAGraph),
    ):
        assert issubclass(theirs, ours)
        assert not any(
            issubclass(theirs, other) for other in {pg.Event, pg.Stream, pg.Graph} - {ours}
        )


def test_decorating_opens_no_device(child):
    done = child(
        "-c",
        "import portagpu as pg\n"
        "@pg.annotate('step')\n"
        "def step(x): return x\n"
        "@pg.custom_fwd\n"
        "def forward(ctx, x): return x\n"
        "@pg.amp.custom_bwd\n"
        "def backward(ctx, x): return x\n"
        "from portagpu.devices import registry\n"
        "import sys\n"
        "print(registry._handles, 'torch' in sys.modules)\n",
    )
    assert done.ok().strip() == "{} False"


def test_a_decorated_function_is_marked_at_every_call():
    @pg.annotate("decorated")
    def twice(n):
        return 2 * n

    with torch.profiler.profile(acc_events=True) as profile:
        assert [twice(n) for n in (1, 2, 3)] == [2, 4, 6]
    marks = {event.key: event.count for event in profile.key_averages()}
    assert marks.get("decorated") == 3, f"three calls are {marks.get('decorated')} marks"


class Scaled(torch.autograd.Function):
    @staticmethod
    @pg.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.seen = x.dtype
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    @pg.custom_bwd
    def backward(ctx, grad):
        return grad * 3


def test_custom_gradients_follow_autocast():
    x = torch.ones(2, requires_grad=True)
    with pg.autocast(torch.bfloat16):
        low = (x.reshape(1, 2) @ torch.ones(2, 2)).reshape(-1)
        assert low.dtype == torch.bfloat16
        assert Scaled.apply(low).dtype == torch.float32, "the inputs were not cast"
    Scaled.apply(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_amp_has_the_order_of_torch_cuda_amp():
    with pg.amp.autocast(True, torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with pg.amp.autocast(False):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert pg.amp.GradScaler is pg.GradScaler


def test_the_modules_have_torchs_names():
    for module, names in (
        (pg.nvtx, ("range_push", "range_pop", "range", "mark")),
        (pg.profiler, ("start", "stop", "profile")),
        (pg.amp, ("autocast", "GradScaler", "custom_fwd", "custom_bwd")),
        (pg.memory, ("_record_memory_history", "_dump_snapshot", "memory_stats", "MemPool")),
    ):
        theirs = importlib.import_module(f"torch.cuda.{module.__name__.rpartition('.')[2]}")
        for name in names:
            assert hasattr(theirs, name), f"{theirs.__name__} has no {name}"
            assert hasattr(module, name), f"{module.__name__} has no {name}"
    with pg.profiler.profile(), pg.nvtx.range("x"):
        pg.nvtx.mark("here")
    assert pg.cudart().cudaProfilerStart() == pg.cudart().cudaProfilerStop() == 0


def test_the_scaler_refuses_a_device_at_once():
    with pytest.raises(TypeError, match="leave 'cuda' out"):
        pg.GradScaler("cuda")
    with pytest.raises(TypeError, match="leave 'cpu' out"):
        pg.backend().GradScaler("cpu", enabled=False)


@pytest.mark.parametrize(("word", "meant"), [("nvidia", "cuda"), ("AMD", "rocm"), ("cude", "cuda")])
def test_a_vendors_name_suggests_its_backend(word, meant):
    with pytest.raises(pg.BackendNotFound, match=f"did you mean '{meant}'"):
        pg.backend(word)


def _marked(x):
    with pg.annotate("block"):
        x = x + 1
    return decorated(x)


@pg.annotate("decorated")
def decorated(x):
    pg.nvtx.mark("here")
    return x * 2


@pytest.mark.parametrize("kind", ["cpu", "cuda", "rocm"])
def test_annotated_code_compiles_whole(monkeypatch, kind):
    torch._dynamo.reset()
    if kind != "cpu":
        module = importlib.import_module(f"portagpu_{kind}.backend")

        def pushed(name):
            raise RuntimeError(f"NVTX was given {name}")

        monkeypatch.setattr(torch.cuda.nvtx, "range_push", pushed)
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/tool.so")
        monkeypatch.setenv("ROCP_TOOL_LIBRARIES", "/tool.so")
        module.attached.cache_clear()
        base = module.CudaBackend if kind == "cuda" else module.RocmBackend
        handle = object.__new__(type("Marking", (base,), {"current_index": None}))
        monkeypatch.setattr(registry, "_current", handle)
        with pytest.raises(RuntimeError, match="NVTX"):
            _marked(torch.ones(2))
    compiled = torch.compile(_marked, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]


def test_a_stream_is_set_for_its_thread():
    side = pg.Stream()
    before = pg.current_stream()
    assert before is pg.default_stream()
    pg.set_stream(side)
    try:
        assert pg.current_stream() is side
        with pg.stream(None):
            assert pg.current_stream() is side
    finally:
        pg.set_stream(before)
    assert pg.default_stream() is before
