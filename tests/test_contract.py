"""The contract: small, versioned, documented, and impossible to fulfil by leaving things out."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from portagpu.collectives.comm import Comm
from portagpu.contract import CONTRACT, Backend, Capability, Description, Plugin, Status
from portagpu.errors import PortagpuError, Unsupported
from portagpu.precision import Fp8, Precision, Support
from portagpu.training import Training
from tests.fake_plugins import FakePlugin, handle


def test_the_contract_stays_small():
    primitives = sorted(Backend.__abstractmethods__)
    assert len(primitives) <= 15, f"{len(primitives)} primitives: {primitives}"
    assert Plugin.__abstractmethods__ == {"status", "count", "open"}


def test_the_version_is_two_whole_numbers():
    assert [type(number) for number in CONTRACT] == [int, int]
    assert Plugin.contract == CONTRACT


@pytest.mark.parametrize("kind", [Backend, Plugin, Training])
def test_every_public_member_says_what_it_does(kind):
    silent = [
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_") and inspect.isfunction(value) and not inspect.getdoc(value)
    ]
    assert not silent, f"{kind.__name__} has members without a docstring: {silent}"


def test_a_backend_that_leaves_a_primitive_out_cannot_be_opened():
    class Half(Backend):
        def synchronize(self):
            """Nothing to wait for."""

    with pytest.raises(TypeError, match="abstract"):
        Half(FakePlugin(), None)


def test_a_plugin_that_leaves_something_out_cannot_be_made():
    class Half(Plugin):
        name = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half()


def test_a_handle_carries_its_description():
    plugin = FakePlugin()
    gpu = handle(plugin, "fake", 1)
    for field in dataclasses.fields(Description):
        assert hasattr(gpu, field.name), f"the handle has no {field.name}"
    assert gpu.plugin is plugin
    assert repr(gpu).startswith("<fake backend on ")


def test_handles_compare_by_identity():
    plugin = FakePlugin()
    one, other = handle(plugin, "fake", 0), handle(plugin, "fake", 0)
    assert one != other
    assert len({one, other, one}) == 2


@pytest.mark.parametrize(
    "value", [Status(True, "fine"), Comm("x", "X", None, "x"), Precision({}), Fp8(1, 2)]
)
def test_data_cannot_be_changed(value):
    field = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)
    assert not hasattr(value, "__dict__"), "data has slots"


def test_what_a_backend_does_not_override_is_unsupported():
    gpu = handle(FakePlugin(), "fake", 0)
    for call in (gpu.Graph, lambda: gpu.pin(None)):
        with pytest.raises(Unsupported, match="the fake backend"):
            call()
    assert issubclass(Unsupported, NotImplementedError)
    assert issubclass(Unsupported, PortagpuError)


def test_capabilities_are_named_as_they_are_written():
    assert [str(capability) for capability in Capability] == [c.value for c in Capability]
    assert Capability("graphs") is Capability.GRAPHS
    assert all(value == value.lower() for value in Capability)


def test_an_unlisted_dtype_is_not_supported():
    one, other = object(), object()
    precision = Precision({one: Support.NATIVE})
    assert precision.support(one) is Support.NATIVE
    assert precision.support(other) is Support.NONE
    assert precision.fp8 is None


@pytest.mark.parametrize(
    ("device_type", "name", "expected"),
    [
        ("cpu", "gloo", "gloo"),
        ("cpu", "mpi", "mpi"),
        ("cuda", "nccl", "cpu:gloo,cuda:nccl"),
        ("xpu", "xccl", "cpu:gloo,xpu:xccl"),
    ],
)
def test_cpu_tensors_always_have_a_library(device_type, name, expected):
    assert Comm(name, "any", None, device_type).init_string == expected


def test_telemetry_is_empty_where_nothing_is_shown():
    assert dict(FakePlugin().telemetry(0)) == {}
