"""The functions of the module: the backend's methods under torch's names and with its arguments."""

from __future__ import annotations

import inspect
import threading

import pytest

pytest.importorskip("torch")

import torch

import portagpu as pg
from portagpu.base.lazy import stub_names
from portagpu.devices import registry
from portagpu.devices.contract import Backend
from tests.support.fake_plugins import FakePlugin
from tests.support.looped import looped
from tests.support.registry_state import forget, use_plugins

pytestmark = pytest.mark.torch

PUBLIC = sorted(
    name
    for name, home in stub_names(pg.__spec__).items()
    if home in {"portagpu.devices.annotations", "portagpu.devices.functions"}
    and name not in {"default_generators", "CUDAGraph"}
)

COUNTERPARTS = {
    "is_available": "registry: whether backend() opens",
    "device": "the handle's attribute of that name",
    "set_device": "registry: which handle is the default",
    "manual_seed_all": "manual_seed of every handle",
    "get_rng_state_all": "get_rng_state of every handle",
    "set_rng_state_all": "set_rng_state of every handle",
    "device_index": "set_device, inside a block",
    "device_of": "set_device, inside a block",
    "init": "backend()",
    "region": "profiler_start and profiler_stop, around a block",
}
"""Functions over several devices, or about choosing one, which one device's handle cannot have."""

OF_ONE_DEVICE = {
    "attached_profiler",
    "labelled_block",
    "listens",
    "dtype_support",
    "float32_arithmetic",
    "is_oom",
    "random_wave",
    "scaled_matmul",
    "set_float32_precision",
}
"""Methods without a torch.cuda counterpart; is_oom is a function in a module of its own, and
annotate's labels are those of labelled_block."""

DEVIATIONS = {
    "autocast": "has torch.autocast's order, dtype first, not torch.cuda.amp.autocast's",
    "Event": "has no external=, which only the capture of CUDA graphs uses",
    "graph": "has no option that torch.cuda.graph has not had since 2.1",
    "device": "is a torch.device, not torch.cuda.device's context manager: device_index",
    "device_of": "is a function, which names its argument as torch's class does",
    "init": "takes nothing",
    "memory_snapshot": "has no include_traces, which torch has had since 2.10",
    "MemPool": "hands torch whatever torch's takes",
    "set_device": "does not take None, which torch refuses too",
}
"""Where the signature is not torch.cuda's, and why."""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    forget(monkeypatch)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")


def test_every_function_is_public():
    assert set(PUBLIC) <= set(pg.__all__), "a function is not exported"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_function_has_its_method(name):
    if name in COUNTERPARTS:
        assert name == "device" or not hasattr(Backend, name), f"{name} is a method after all"
    else:
        assert callable(getattr(Backend, name, None)), f"a backend has no method {name}"
        assert inspect.getdoc(getattr(Backend, name)), f"the method {name} says nothing"
    assert inspect.getdoc(getattr(pg, name)), f"the function {name} says nothing"


def test_every_method_of_the_surface_has_its_function():
    methods = {
        name
        for name, value in inspect.getmembers(Backend, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - set(PUBLIC) == {"activate", "generator", *OF_ONE_DEVICE}


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - set(COUNTERPARTS)))
def test_a_function_takes_what_its_method_takes(name):
    method = list(inspect.signature(getattr(Backend, name)).parameters.values())[1:]
    function = list(inspect.signature(getattr(pg, name)).parameters.values())
    if name == "annotate":
        function = [each for each in function if each.name not in {"domain", "color", "labels"}]
    without_device = [parameter for parameter in function if parameter.name != "device"]
    theirs = [(p.kind, p.default) for p in method]
    ours = [(p.kind, p.default) for p in without_device]
    assert ours == theirs, f"{name} and its method take different arguments"


def torchs(name: str):
    """What training code calls on CUDA in place of the function, or None."""
    if name in {"range_push", "range_pop", "mark"}:
        return getattr(torch.cuda.nvtx, name)
    if name in {"autocast", "GradScaler"}:
        return getattr(torch.cuda.amp, name).__init__
    found = getattr(torch.cuda, name, None)
    return found.__new__ if name in {"Event", "Stream", "ExternalStream"} else found


def test_the_grad_scaler_has_torchs_defaults():
    theirs = list(inspect.signature(torch.amp.GradScaler).parameters.values())[1:]
    ours = inspect.signature(pg.GradScaler).parameters.values()
    assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]


@pytest.mark.parametrize("name", [name for name in PUBLIC if torchs(name) is not None])
def test_calls_written_for_torch_cuda_fit(name):
    theirs = [
        (parameter.name, parameter.default is not inspect.Parameter.empty)
        for parameter in inspect.signature(torchs(name)).parameters.values()
        if parameter.name not in {"cls", "self"}
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    ours = list(inspect.signature(getattr(pg, name)).parameters.values())
    names = [parameter.name for parameter in ours]
    optional = [parameter.default is not inspect.Parameter.empty for parameter in ours]
    same = names == [n for n, _ in theirs] and all(
        mine or not its for mine, (_, its) in zip(optional, theirs, strict=True)
    )
    assert same or name in DEVIATIONS, f"pg.{name}({names}) is torch's {name}({theirs})"


UNSUPPORTED = {
    *("Graph", "graph", "graph_pool_handle", "pin", "ExternalStream", "get_device_capability"),
    *("MemPool", "use_mem_pool", "set_per_process_memory_fraction"),
    *("memory_snapshot", "record_memory_history", "dump_memory_snapshot"),
}


DEVICE_FUNCTIONS = [
    name
    for name in PUBLIC
    if "device" in inspect.signature(getattr(pg, name)).parameters
    and name
    not in {
        *("set_device", "set_rng_state", "reset_peak_memory_stats", "Stream", "device_index"),
        *("can_device_access_peer", *UNSUPPORTED),
    }
]


@looped("name", DEVICE_FUNCTIONS)
@looped("device", [None, 0, 3, "cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 1)])
def test_functions_take_what_torch_takes_as_a_device(name, device):
    getattr(pg, name)(device)
    getattr(pg, name)(device=device)


@looped("name", [*DEVICE_FUNCTIONS, "set_device"])
@looped(
    "device,error,message",
    [
        ("cuda:0", ValueError, "cuda:0 is not a device of the cpu backend"),
        ("cuda", ValueError, "cuda is not a device of the cpu backend"),
        (torch.device("meta"), ValueError, "meta is not a device of the cpu backend"),
        (True, TypeError, "a device index is an int, not True"),
        ("gpu", RuntimeError, "gpu"),
        ("", RuntimeError, "empty"),
        (1.5, TypeError, "float"),
    ],
)
def test_a_device_of_another_kind_is_a_clear_error(name, device, error, message):
    with pytest.raises(error, match=message):
        getattr(pg, name)(device)


def test_a_negative_index_is_an_error_but_for_set_device():
    with pytest.raises(IndexError, match="no device -1"):
        pg.memory_allocated(-1)
    pg.set_device(-1)


def test_a_device_is_a_plain_torch_device():
    assert pg.device() == torch.device("cpu")
    assert pg.device(0) == torch.device("cpu")
    assert torch.ones(1, device=pg.device(5)).device.type == "cpu"


def test_available_exactly_when_a_backend_opens(monkeypatch):
    assert pg.is_available() is True
    forget(monkeypatch)
    monkeypatch.setenv("PORTAGPU_BACKEND", "nonsense")
    assert pg.is_available() is False
    with pytest.raises(pg.BackendNotFound):
        pg.backend()


def test_a_script_that_loops_over_devices_trains_on_the_cpu():
    assert pg.device_count() == 1
    assert pg.current_device() == 0
    for rank in range(4):
        pg.set_device(rank % pg.device_count())
    pg.set_device(f"{pg.device().type}:0")
    assert pg.get_device_name() == pg.get_device_properties().name


def test_all_devices_are_seeded():
    pg.manual_seed_all(11)
    first = torch.rand(3)
    states = pg.get_rng_state_all()
    assert len(states) == pg.device_count()
    second = torch.rand(3)
    pg.set_rng_state_all(iter(states))
    assert torch.equal(torch.rand(3), second), "the states do not bring the numbers back"
    pg.manual_seed(11)
    assert torch.equal(torch.rand(3), first), "manual_seed_all did not seed this device"
    assert pg.initial_seed() == 11


def test_functions_follow_the_device_that_was_set(monkeypatch):
    forget(monkeypatch)
    plugin = FakePlugin("fake", automatic=True)
    use_plugins(monkeypatch, plugin)
    assert pg.device_count() == 2
    assert pg.current_device() == 0
    pg.set_device(1)
    assert pg.current_device() == 1
    assert pg.device() is registry.backend("fake", 1).device
    assert pg.device(0) is registry.backend("fake", 0).device
    assert pg.device() is registry.backend("fake", 1).device, "looking at a device chose it"


def test_a_training_step_runs_on_the_functions_alone():
    pg.manual_seed(0)
    model = torch.nn.Linear(8, 1).to(pg.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = pg.GradScaler()
    start, end = pg.Event(enable_timing=True), pg.Event(enable_timing=True)
    data, wanted = torch.randn(64, 8, device=pg.device()), torch.zeros(64, 1, device=pg.device())
    losses = []
    start.record()
    for _ in range(20):
        with pg.annotate("step"), pg.autocast(dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(data), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    end.record()
    pg.synchronize()
    assert losses[-1] < losses[0] / 2, f"the loss did not fall: {losses}"
    assert start.elapsed_time(end) > 0
    assert pg.max_memory_allocated() >= pg.memory_allocated() > 0


def test_streams_of_the_functions_nest_and_belong_to_their_thread():
    side = pg.Stream()
    side.wait_stream(pg.current_stream())
    seen = []
    with pg.stream(side):
        assert pg.current_stream() is side
        thread = threading.Thread(target=lambda: seen.append(pg.current_stream()))
        thread.start()
        thread.join(60)
        with pg.stream(None):
            assert pg.current_stream() is side
    pg.current_stream().wait_stream(side)
    assert seen, "the thread did not run"
    assert seen[0] is not side, "another thread's work moved"
