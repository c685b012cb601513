"""The current device is torch's: whoever changed it, in every thread, and inside torch.compile."""

from __future__ import annotations

import copy
import importlib
import pickle
import threading

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu.base.errors import PortagpuError
from portagpu.devices import functions, registry
from tests.support import fake_torch
from tests.support.fake_plugins import FakePlugin
from tests.support.recorded_gpus import ALL
from tests.support.registry_state import forget, use_plugins

GPUS = {gpu.id: gpu for gpu in ALL}
either = pytest.mark.parametrize("gpu", [GPUS["h200"], GPUS["mi300x-spx"]], ids=["cuda", "rocm"])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    forget(monkeypatch)
    for name in ("PORTAGPU_SHARED_DEVICES", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def gpus(monkeypatch, gpu, count=4):
    """A fake build with that many devices, whose backend is the default."""
    driver = fake_torch.install(monkeypatch, gpu.kind, [gpu] * count)
    module = importlib.import_module(f"portagpu_{gpu.kind}.plugin")
    plugin = module.CudaPlugin() if gpu.kind == "cuda" else module.RocmPlugin()
    use_plugins(monkeypatch, plugin)
    monkeypatch.setenv("PORTAGPU_BACKEND", gpu.kind)
    monkeypatch.setattr(type(plugin), "status", lambda self: pg.Status(True, "a fake build"))
    monkeypatch.setattr(type(plugin), "count", lambda self: count)
    return driver


@either
def test_a_framework_that_sets_torchs_device_sets_ours(monkeypatch, gpu):
    gpus(monkeypatch, gpu)
    assert pg.device() == torch.device("cuda", 0)
    torch.cuda.set_device(2)
    assert pg.device() == torch.device("cuda", 2), "the rank would compute on device 0"
    assert pg.current_device() == 2
    assert pg.backend() is pg.backend(gpu.kind, 2)
    with torch.cuda.device(3):
        assert pg.backend().index == 3
    assert pg.backend().index == 2
    pg.set_device(1)
    assert torch.cuda.current_device() == pg.current_device() == 1


@either
def test_the_first_call_opens_torchs_current_device_and_no_other(monkeypatch, gpu):
    driver = gpus(monkeypatch, gpu)
    torch.cuda.init()
    torch.cuda.set_device(3)
    opened = []
    kind = type(registry.plugin(gpu.kind))
    real = kind.open
    monkeypatch.setattr(kind, "open", lambda self, i: (opened.append(i), real(self, i))[1])
    assert pg.current_device() == 3
    assert opened == [3], f"the devices {opened} were opened"
    assert driver.current == 3


def test_each_thread_has_torchs_current_device(monkeypatch):
    gpus(monkeypatch, GPUS["h200"])
    current = threading.local()
    monkeypatch.setattr(
        torch._C, "_accelerator_getDeviceIndex", lambda: getattr(current, "index", 0)
    )
    assert pg.backend().index == 0
    found = []

    def other():
        current.index = 2
        found.append(pg.backend().index)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(60)
    assert (found, pg.backend().index) == ([2], 0)


def test_a_device_that_torch_opened_counts_as_initialized(monkeypatch):
    gpus(monkeypatch, GPUS["h200"])
    assert registry.is_initialized() is False
    assert registry._handles == {}, "asking opened a device"
    torch.cuda.init()
    assert registry.is_initialized() is True
    forget(monkeypatch)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    assert registry.is_initialized() is False
    pg.backend()
    assert registry.is_initialized() is True


def test_is_initialized_raises_nothing(monkeypatch):
    monkeypatch.setenv("PORTAGPU_BACKEND", "nonsense")
    assert registry.is_initialized() is False


def test_a_backend_of_an_earlier_contract_keeps_the_last_choice(monkeypatch):
    use_plugins(monkeypatch, FakePlugin("fake", automatic=True))
    pg.set_device(1)
    assert pg.backend().index == 1


def test_a_handle_pickles_and_copies_as_the_device_it_names(monkeypatch):
    gpu = pg.backend("cpu")
    assert pickle.loads(pickle.dumps(gpu)) is gpu  # noqa: S301 - its own text
    assert copy.deepcopy(gpu) is gpu
    assert copy.copy(gpu) is gpu
    module = torch.nn.Linear(1, 1)
    module.gpu = gpu
    assert copy.deepcopy(module).gpu is gpu
    plugin = FakePlugin("fake", automatic=True)
    use_plugins(monkeypatch, plugin)
    second = pg.backend("fake", 1)
    text = pickle.dumps(second)
    registry._handles.clear()
    again = pickle.loads(text)  # noqa: S301 - its own text
    assert (again.name, again.index, plugin.opened) == ("fake", 1, [1, 1])


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        ({"PORTAGPU_SHARED_DEVICES": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": "3"}, 3),
        ({"PORTAGPU_SHARED_DEVICES": "2", "LOCAL_WORLD_SIZE": "3"}, 2),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
    ],
)
def test_a_cpu_counts_as_often_as_it_has_ranks(monkeypatch, variables, count):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    assert pg.device_count() == pg.backend().device_count() == count
    for index in range(count):
        pg.set_device(index)
        assert pg.current_device() == index, "ranks cannot distinguish their devices"
        assert pg.device() == torch.device("cpu")
        assert pg.backend().index == index
        assert torch.zeros(2, device=pg.current_device()).device.type == "cpu"
    pg.set_device(count)
    assert pg.current_device() == 0, "an index past the last is not the one device"
    assert len(pg.get_rng_state_all()) == count
    pg.manual_seed_all(5)
    assert pg.initial_seed() == 5


@pytest.mark.parametrize("text", ["0", "-1", "two", "1e3", "9" * 5000, "٣", " 2"])
def test_a_wrong_number_of_shared_devices_is_one_line(monkeypatch, text):
    monkeypatch.setenv("PORTAGPU_SHARED_DEVICES", text)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    with pytest.raises(PortagpuError, match="PORTAGPU_SHARED_DEVICES must be a") as e:
        pg.device_count()
    assert "\n" not in str(e.value)


def test_gpus_are_not_counted_by_ranks(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    gpus(monkeypatch, GPUS["h200"], count=2)
    assert functions.device_count() == 2
