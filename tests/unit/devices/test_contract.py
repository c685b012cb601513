"""The contract: small, versioned, documented, and impossible to fulfil by leaving things out."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter

import pytest

from portagpu.base.errors import PortagpuError, Unsupported
from portagpu.devices.collectives.comm import Comm
from portagpu.devices.contract import CONTRACT, Backend, Capability, Description, Plugin, Status
from portagpu.devices.machine_code import Toolchain
from portagpu.devices.optional import OptionalCalls
from portagpu.devices.precision import Fp8, Precision, Support
from portagpu.devices.training import Training
from tests.conftest import ROOT
from tests.support.fake_plugins import FakeBackend, FakePlugin, handle


def test_the_contract_stays_small():
    primitives = sorted(Backend.__abstractmethods__)
    assert len(primitives) <= 15, f"{len(primitives)} primitives: {primitives}"
    assert Plugin.__abstractmethods__ == {"status", "count", "open"}


ROW = re.compile(
    r"^\| `(Plugin|Toolchain|Description|Backend)`(?: \([\d.]+\))? \| ([^|]+) \| (.+) \|$",
    re.MULTILINE,
)


def documented() -> dict[tuple[str, str], list[str]]:
    """The members in the table of docs/new-vendors.md, by class and by whether required."""
    text = (ROOT / "docs/new-vendors.md").read_text("utf-8")
    rows = ROW.findall(text.partition("## Add a backend")[2].partition("\n## ")[0])
    return {(of, how.strip()): re.findall(r"`(\w+)`", members) for of, how, members in rows}


def public(kind) -> set[str]:
    """Its own members that have a docstring or a default; the slots are those of Description."""
    slots = set(getattr(kind, "__slots__", ()))
    return {name for name in vars(kind) if not name.startswith("_")} - slots


def test_contributing_has_each_member_once_and_says_which_are_required():
    members = {
        "Plugin": public(Plugin) | {"name"},
        "Backend": public(Backend) | public(OptionalCalls),
        "Toolchain": public(Toolchain) | {"vendor"},
    }
    members["Description"] = {field.name for field in dataclasses.fields(Description)}
    listed = documented()
    for of, expected in members.items():
        found = Counter(name for (kind, _), names in listed.items() if kind == of for name in names)
        assert set(found) == expected, f"the table of {of} is off by {set(found) ^ expected}"
        twice = [name for name, times in found.items() if times > 1]
        assert not twice, f"the table of {of} has {twice} twice"
    abstract = {"Plugin": Plugin.__abstractmethods__ | {"name", "contract"}}
    abstract["Backend"] = Backend.__abstractmethods__
    abstract["Toolchain"] = Toolchain.__abstractmethods__ | {"vendor"}
    for of, expected in abstract.items():
        rows = [names for (kind, how), names in listed.items() if kind == of and "required" in how]
        required = {name for names in rows for name in names} - public(OptionalCalls)
        assert required == expected, f"{of} requires {sorted(expected)}, not {sorted(required)}"


def test_each_capability_names_the_calls_that_it_requires():
    text = inspect.getsource(Capability)
    required = documented()["Backend", "required with its capability"]
    missing = [name for name in required if f"``{name}``" not in text]
    assert not missing, f"no capability names {missing}"


def test_only_what_the_table_says_may_be_none():
    optional = {f.name for f in dataclasses.fields(Description) if "None" in str(f.type)}
    optional -= {"versions"}  # its values may be
    assert optional == set(
        documented()["Description", "None where there is none or it is not known"]
    )


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


def test_a_device_s_library_says_what_the_device_says():
    class Early(FakeBackend):
        """As a plugin may be written: it sets attributes before and after it is opened."""

        def __init__(self, plugin, description):
            self.index = description.index
            uuid = f"GPU-{self.index}"
            super().__init__(plugin, dataclasses.replace(description, uuid=uuid))
            self.product = "Early 1"

    plugin = FakePlugin("early")
    plain = handle(plugin, "early", 3)
    names = (each.name for each in dataclasses.fields(Description))
    gpu = Early(plugin, Description(**{name: getattr(plain, name) for name in names}))
    assert (gpu.index, gpu.comm.device_identity, gpu.comm.target) == (3, "GPU-3", None)
    assert gpu.comm.machine.product == "Early 1"
    gpu.uuid, gpu.pci = None, "0000:01:00.0"
    assert gpu.comm.device_identity == "0000:01:00.0"
    alone = Comm("fake", "Fake", None, "fake")
    stated = alone.cost_model, alone.target, alone.device_identity, alone.machine
    assert stated == (None,) * 4
