"""Identity: the current device is torch's, inside a block and out; a handle is a device; and what
distinguishes vendors of the same names and numbers, and their variables.
"""

from __future__ import annotations

import copy
import importlib.metadata
import operator
import os
import pickle

import portagpu as pg
from portagpu.base.errors import Unsupported
from portagpu.devices.contract import Capability
from portagpu.facts.arch import Arch
from portagpu.facts.torchbuild import torch_build
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


@case(
    "identity/architectures-have-no-order",
    spec="Architectures are equal or not; none is newer than another, of another vendor least.",
    covers=("Backend.arch",),
    traps=("E01",),
)
def test_architectures_have_no_order(backend):
    for other in (Arch("nvidia", "sm_90", 32), Arch("amd", "gfx90a", 64)):
        for compare in (operator.lt, operator.ge):
            sign = compare.__name__
            refused(lambda c=compare, o=other: c(backend.arch, o), TypeError, f"{sign} of {other}")
    numbers = [name for name in ("major", "minor", "capability") if hasattr(backend.arch, name)]
    assert not numbers, f"an architecture has a {numbers[0]}, which vendors count differently"


@case(
    "identity/build-fits-the-backend",
    spec="The torch that runs is the one whose files were read, and was built for this backend.",
    covers=("Backend.versions", "Plugin.status"),
    traps=("E02", "I01"),
)
def test_build_fits_the_backend(backend, torch):
    build = torch_build()
    stated = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else build.kind
    assert build.kind == stated, f"its files say {build.kind}, torch says {stated}"
    needed = getattr(getattr(backend.plugin, "need", None), "kind", None)
    if needed is not None:
        assert build.kind == needed, f"the {backend.name} backend runs on a {build.kind} build"


@case(
    "identity/libraries-are-the-vendors",
    spec="Versions are under the names of the libraries that run, not under those that torch uses "
    "for every vendor.",
    covers=("Backend.versions",),
    traps=("E11",),
)
def test_libraries_are_the_vendors(backend):
    others = {
        "nvidia": ("hip", "rocm", "rccl", "miopen", "hipblas"),
        "amd": ("cuda", "nccl", "cudnn", "cublas"),
        "cpu": ("cuda", "hip", "nccl", "rccl", "cudnn", "miopen"),
    }
    alien = others.get(backend.arch.vendor, ())
    wrong = [name for name in backend.versions if name.split(" ")[0] in alien]
    assert not wrong, f"a {backend.arch.vendor} device has the version of {', '.join(wrong)}"


@case(
    "identity/dlpack-device",
    spec="DLPack calls the device by its vendor's code, and a tensor passed through it is shared, "
    "not copied.",
    covers=("Backend.device",),
    traps=("G04",),
)
def test_dlpack_device(gpu, torch):
    # dlpack.h: kDLCPU, kDLCUDA, kDLROCM
    codes = {"cpu": 1, "nvidia": 2, "amd": 10}
    expected = codes.get(gpu.arch.vendor)
    if expected is None:
        raise NotClaimed(f"no case knows the code of DLPack for {gpu.arch.vendor}")
    tensor = torch.zeros(4, device=gpu.device)
    kind, index = tensor.__dlpack_device__()
    assert kind == expected, f"DLPack calls a device of {gpu.arch.vendor} {kind}, not {expected}"
    assert index == (gpu.device.index or 0), f"DLPack gives it the index {index}"
    other = torch.from_dlpack(tensor)
    other.fill_(3.0)
    assert tensor.cpu().tolist() == [3.0] * 4, "a tensor that went through DLPack is a copy"


PACKAGES = ("flash_attn", "xformers", "apex", "transformer_engine", "deep_gemm", "cupy", "numba")


@case(
    "identity/packages-of-one-vendor",
    spec="Which packages are here whose meaning depends on the vendor they were built for.",
    outcome="undefined",
    traps=("I02", "I03", "I04"),
)
def test_packages_of_one_vendor(installed, record):
    here = [name for name in PACKAGES if installed(name)]
    record(f"installed: {', '.join(here) or 'none'}")
    if "flash_attn" in here:
        chosen = os.environ.get("FLASH_ATTENTION_TRITON_AMD_ENABLE", "not set")
        version = importlib.metadata.version("flash-attn")
        record(f"flash-attn {version}, FLASH_ATTENTION_TRITON_AMD_ENABLE is {chosen}")


@case(
    "identity/tuners-say-their-state",
    spec="Each tuning back end that is listed has a name of its own, and says whether it is on.",
    covers=("Plugin.tuners",),
)
def test_tuners_say_their_state(backend, torch):
    tuners = backend.plugin.tuners()
    names = [each.name for each in tuners]
    assert len(set(names)) == len(names), f"two tuning back ends have one name: {names}"
    for each in tuners:
        state = each.state()
        assert type(state.on) is bool, f"{each.name} says that on is {state.on!r}"


@case(
    "identity/direct-storage-says-what-proves-it",
    spec="Direct storage that is named has a library, a proof, variables of text and counts.",
    covers=("Plugin.direct_storage",),
)
def test_direct_storage_says_what_proves_it(backend, torch):
    storage = backend.plugin.direct_storage()
    if storage is None:
        return
    assert storage.library.strip(), "direct storage names no library"
    assert storage.proof.strip(), "direct storage says nothing that proves it"
    variables = [*storage.environment, *storage.environment.values()]
    assert all(type(each) is str for each in variables), f"no text: {storage.environment}"
    counts = storage.counters()
    assert all(type(each) is int for each in counts.values()), f"no counts: {counts}"


@case(
    "identity/variables-are-not-set",
    spec="Asking for an environment writes none, and every name and value of it is text.",
    covers=("Plugin.variables",),
)
def test_variables_are_not_set(backend):
    before = dict(os.environ)
    variables = backend.plugin.variables
    found = {**variables.for_debugging(), **variables.for_job("/scratch/one")}
    strange = {name: value for name, value in found.items() if not (name and str(value) == value)}
    assert not strange, f"{strange} is not an environment"
    assert dict(os.environ) == before, "the process's own environment was changed"
