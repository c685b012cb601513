"""The index of a CPU device: a number for Python, and the CPU for torch."""

from __future__ import annotations

import copy
import io
import operator
import pickle

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu_cpu.backend import CpuIndex


@pytest.fixture
def index(monkeypatch):
    monkeypatch.setenv("PORTAGPU_SHARED_DEVICES", "4")
    pg.backend("cpu", 3)
    return pg.backend("cpu", 3).current_device()


def _in_block(device):
    with torch.device(device):
        return torch.ones(2)


AS_DEVICE = {
    "a factory": lambda d: torch.zeros(2, device=d),
    "a tensor of data": lambda d: torch.tensor([1.0, 2.0], device=d),
    "like another": lambda d: torch.empty_like(torch.ones(2), device=d),
    "of another": lambda d: torch.ones(2).new_zeros(2, device=d),
    "to": lambda d: torch.ones(2).to(d),
    "to by keyword": lambda d: torch.ones(2).to(device=d, dtype=torch.float64),
    "a module": lambda d: torch.nn.Linear(2, 2).to(d).weight,
    "a module's parameters": lambda d: torch.nn.Linear(2, 2, device=d).weight,
    "a device": lambda d: torch.ones(2, device=torch.device(d)),
    "a generator": lambda d: torch.rand(2, generator=torch.Generator(d)),
    "a parameter": lambda d: torch.nn.Parameter(torch.ones(2, device=d)),
    "a block": _in_block,
}


@pytest.mark.parametrize("form", AS_DEVICE)
def test_torch_takes_it_for_the_cpu(index, form):
    assert AS_DEVICE[form](index).device == torch.device("cpu")


def test_a_checkpoint_is_mapped_to_it(index):
    file = io.BytesIO()
    torch.save({"x": torch.ones(2)}, file)
    file.seek(0)
    assert torch.load(file, map_location=index)["x"].device.type == "cpu"


def test_our_functions_take_it(index):
    gpu = pg.backend("cpu", 3)
    assert pg.device(index) == gpu.device
    assert pg.get_device_name(index) == gpu.get_device_name()
    assert pg.memory_allocated(index) > 0
    before = pg.backend()
    pg.set_device(index)
    assert pg.backend() is gpu, "another device than the index says"
    pg.set_device(before.index)


@pytest.mark.parametrize("value", [0, 1, 3])
def test_it_counts_as_its_number(value):
    index = CpuIndex(value)
    for other in (0, 1, 2, 7):
        for name in ("add", "sub", "mul", "lt", "le", "eq", "ne", "gt", "ge", "and_", "or_", "xor"):
            call = getattr(operator, name)
            assert call(index, other) == call(value, other), f"{name}({value}, {other})"
            assert call(other, index) == call(other, value), f"{name}({other}, {value})"
        if other:
            assert (index // other, index % other) == divmod(value, other)
            assert index / other == value / other
    assert (int(index), float(index), bool(index), -index) == (value, value, bool(value), -value)
    assert [10, 11, 12, 13][index] == 10 + value
    assert {value: "x"}[index] == "x"
    assert {index: "x"}[value] == "x"
    assert list(range(index)) == list(range(value))
    assert f"{index} {index:02d}" == f"{value} {value:02d}"
    assert (str(index), repr(index)) == ("cpu", "'cpu'"), "compiled code has another device"
    assert "%d" % index == str(value)  # noqa: UP031 - a script's own way
    assert index == "cpu"
    assert index != "cuda"
    assert CpuIndex(value) == index
    assert CpuIndex(value + 1) > index
    assert CpuIndex(2) + index == 2 + value


def test_it_is_copied_and_pickled_as_itself(index):
    for again in (copy.deepcopy(index), copy.copy(index), pickle.loads(pickle.dumps(index))):  # noqa: S301
        assert type(again) is CpuIndex
        assert again == 3
        assert torch.zeros(1, device=again).device.type == "cpu"
