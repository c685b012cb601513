"""Identity: the current device is torch's, inside a block and out, and a handle is a device."""

from __future__ import annotations

import copy
import pickle

import portagpu as pg
from portagpu.base.errors import Unsupported
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import NotClaimed, case, refused
from portagpu.suites.conformance.cases import GUARDED
from portagpu.suites.conformance.closeness import require_contract


@case(
    "identity/current-device-is-torchs",
    spec="The current device is the one that torch has as current, where torch has one.",
    covers=("Backend.current_index", "Plugin.current_index", "portagpu.current_device"),
)
def test_current_device_is_torchs(gpu, torch):
    pg.set_device(gpu.index)
    torch.ones(1, device=gpu.device)
    if gpu.current_index is not None:
        found = (gpu.current_index(), gpu.plugin.current_index(), pg.current_device())
        assert found == (gpu.index,) * 3, f"handle, plugin and function say {found}"
    elif gpu.plugin.current_index() is not None:
        raise AssertionError("the plugin knows torch's current device, and its handles do not")


@case(
    "identity/current-device-is-an-argument",
    spec="torch takes current_device() as the device of a tensor.",
    covers=("portagpu.current_device", "Backend.current_device"),
    params={"call": ("method", "function")},
    smoke=True,
)
def test_current_device_is_an_argument(gpu, torch, call):
    if gpu.device.type == "cpu":
        require_contract(gpu, 2)
    number = (gpu if call == "method" else pg).current_device()
    made = torch.zeros(2, device=number)
    assert made.device.type == gpu.device.type, f"current_device() made a tensor on {made.device}"
    moved = torch.ones(2).to(number)
    assert moved.device == made.device, f".to(current_device()) moved it to {moved.device}"


@case(
    "identity/device-index-is-a-block",
    spec="A block of device_index() has that device as the current one, and restores the former, "
    "also after an error; None and -1 change nothing.",
    covers=("portagpu.device_index",),
)
def test_device_index_is_a_block(backend):
    before = pg.backend()
    for index in range(backend.device_count()):
        with pg.device_index(index):
            found = pg.current_device()
        assert found == index, f"in the block of device {index} the current one is {found}"
    for nothing in (None, -1):
        with pg.device_index(nothing):
            assert pg.backend() is before, f"device_index({nothing}) changed the device"

    def broken():
        with pg.device_index(backend.device_count() - 1):
            raise KeyError("on purpose")

    refused(broken, KeyError, "an error inside the block")
    assert pg.backend() is before, f"after the blocks the device is {pg.backend()!r}"


@case(
    "identity/device-of-a-tensor",
    spec="A block of device_of() has the tensor's device as the current one; a tensor of another "
    "type of device changes nothing.",
    covers=("portagpu.device_of",),
)
def test_device_of_a_tensor(gpu, torch):
    before = pg.backend()
    for tensor in (torch.ones(1, device=gpu.device), torch.ones(1, device="meta")):
        with pg.device_of(tensor):
            assert pg.backend() is before, f"of {tensor.device} the device is {pg.backend()!r}"


@case(
    "identity/is-initialized",
    spec="init() opens a device, after which is_initialized() is True.",
    covers=("portagpu.is_initialized", "portagpu.init"),
)
def test_is_initialized(backend):
    pg.init()
    assert pg.is_initialized() is True, "a device is open, and is_initialized() does not say True"


@case(
    "identity/supports-is-what-is-claimed",
    spec="supports() is True for each claimed capability and False for the others; another word "
    "is a ValueError.",
    covers=("Backend.supports", "portagpu.supports"),
    params={"call": ("method", "function")},
    smoke=True,
)
def test_supports_is_what_is_claimed(backend, call):
    supports = (backend if call == "method" else pg).supports
    for each in Capability:
        claimed = each in backend.capabilities
        assert supports(each.value) is claimed, f"supports({each.value!r}) is not {claimed}"
    refused(lambda: supports("teleport"), ValueError, "a capability that is none")


@case(
    "identity/device-capability-is-a-pair",
    spec="get_device_capability() is two numbers, or is refused with Unsupported.",
    covers=("Backend.get_device_capability", "portagpu.get_device_capability"),
    traps=("E01",),
)
def test_device_capability_is_a_pair(backend):
    found = []
    for call in (backend.get_device_capability, pg.get_device_capability):
        try:
            found.append(call())
        except Unsupported:
            found.append("refused")
    assert found[0] == found[1], f"method and function give {found}"
    if found[0] != "refused":
        assert isinstance(found[0], tuple), f"the capability is {found[0]!r}, no pair"
        numbers = all(type(each) is int and each >= 0 for each in found[0])
        assert len(found[0]) == 2, f"the capability {found[0]} is not a pair"
        assert numbers, f"the capability {found[0]} is not of whole numbers"


@case(
    "identity/peers-are-told",
    spec="can_device_access_peer() is a bool for every pair of devices.",
    covers=("Backend.can_device_access_peer", "portagpu.can_device_access_peer"),
)
def test_peers_are_told(backend):
    for index in range(backend.device_count()):
        if index != backend.index:
            try:
                backend.can_device_access_peer(index)
            except pg.Unsupported as error:
                raise NotClaimed(str(error)) from None
            found = (
                backend.can_device_access_peer(index),
                pg.can_device_access_peer(backend.index, index),
            )
            assert found in ((True, True), (False, False)), f"to device {index} it says {found}"


@case(
    "identity/handle-is-pickled",
    spec="A handle that is pickled or copied deeply is the handle of the same device.",
    covers=("portagpu.backend",),
)
def test_handle_is_pickled(backend):
    again = pickle.loads(pickle.dumps(backend))  # noqa: S301 - its own text
    assert again is pg.backend(backend.name, backend.index), (
        f"the pickled handle came back as {again!r}"
    )
    assert copy.deepcopy(backend) is again, "a deep copy of the handle is another one"


def _enter(block):
    with block:
        pass


_CALLS = {
    "Stream": lambda on, file: on.Stream(),
    "stream": lambda on, file: _enter(on.stream(object())),
    "current_stream": lambda on, file: on.current_stream(),
    "set_stream": lambda on, file: on.set_stream(object()),
    "default_stream": lambda on, file: on.default_stream(),
    "Event": lambda on, file: on.Event(),
    "Graph": lambda on, file: on.Graph(),
    "graph": lambda on, file: _enter(on.graph(object())),
    "graph_pool_handle": lambda on, file: on.graph_pool_handle(),
    "reset_peak_memory_stats": lambda on, file: on.reset_peak_memory_stats(),
    "pin": lambda on, file: on.pin(None),
    "autocast": lambda on, file: _enter(on.autocast()),
    "GradScaler": lambda on, file: on.GradScaler(),
    "ExternalStream": lambda on, file: on.ExternalStream(0),
    "ipc_collect": lambda on, file: on.ipc_collect(),
    "memory_snapshot": lambda on, file: on.memory_snapshot(),
    "record_memory_history": lambda on, file: on.record_memory_history(None),
    "dump_memory_snapshot": lambda on, file: on.dump_memory_snapshot(file),
    "MemPool": lambda on, file: on.MemPool(),
    "use_mem_pool": lambda on, file: _enter(on.use_mem_pool(object())),
    "set_per_process_memory_fraction": lambda on, file: on.set_per_process_memory_fraction(1.0),
}


@case(
    "identity/unclaimed-calls-are-refused",
    spec="Each call of a capability that is not claimed raises Unsupported, from method and "
    "function.",
    covers=("Backend.capabilities",),
    params={"call": tuple(_CALLS)},
)
def test_unclaimed_calls_are_refused(backend, tmp_path, call):
    capability = GUARDED[call]
    if capability in backend.capabilities:
        raise NotClaimed(f"{backend.name} claims {capability}, which other cases judge")
    file = tmp_path / "snapshot.pickle"
    for source, on in (("method", backend), ("function", pg)):
        refused(lambda on=on: _CALLS[call](on, file), Unsupported, f"the {source} {call}")


@case(
    "identity/vendor-is-the-archs",
    spec="The plugin's vendor is the one of the architecture; a CPU's plugin may name none.",
    covers=("Plugin.vendor", "Backend.arch"),
)
def test_vendor_is_the_archs(backend):
    stated = backend.plugin.vendor
    fits = stated == backend.arch.vendor or (not stated and backend.device.type == "cpu")
    assert fits, f"the plugin is of {stated!r}, the architecture of {backend.arch.vendor!r}"
