"""Identity: which device this is, what it claims, and that every name for it means the same one."""

from __future__ import annotations

import dataclasses
import re
import threading

import portagpu as pg
from portagpu.devices.contract import CONTRACT, Capability
from portagpu.suites.conformance import NotClaimed, case, refused
from portagpu.suites.conformance.closeness import require_dtypes


@case(
    "identity/device-holds-tensors",
    spec="A tensor that is made on the backend's device says that it is on that device.",
    covers=("Backend.device",),
    smoke=True,
)
def test_device_holds_tensors(gpu, torch):
    made = torch.zeros(3, device=gpu.device)
    assert made.device.type == gpu.device.type, f"a tensor for {gpu.device} is on {made.device}"
    if gpu.device.index is not None:
        assert made.device == gpu.device, f"a tensor for {gpu.device} is on {made.device}"


@case(
    "identity/device-roundtrip",
    spec="Values that are copied to the device and back are unchanged, bit by bit.",
    covers=("Backend.device",),
    params={"dtype": ("int64", "float64", "float32", "bfloat16", "float16", "uint8", "bool")},
    smoke=True,
)
def test_device_roundtrip(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    source = (torch.arange(-128, 128) % 251).to(getattr(torch, dtype))
    back = source.to(gpu.device).cpu()
    assert back.dtype == source.dtype, f"{source.dtype} came back as {back.dtype}"
    assert torch.equal(back, source), (
        f"values of {dtype} changed on their way to the device and back"
    )


@case(
    "identity/device-is-a-torch-device",
    spec="The backend's device is a torch.device, so that plain torch code can use it.",
    covers=("Backend.device",),
)
def test_device_is_a_torch_device(backend, torch):
    kind = type(backend.device).__name__
    assert isinstance(backend.device, torch.device), f"the device is a {kind}, not a torch.device"


@case(
    "identity/handle-is-one",
    spec="Asking for the same device twice gives the same handle.",
    covers=("portagpu.backend",),
)
def test_handle_is_one(backend):
    again = pg.backend(backend.name, backend.index)
    assert again is backend, f"a second call for {backend.name} {backend.index} gave another handle"


@case(
    "identity/handle-is-one-across-threads",
    spec="Threads that ask for the device at the same time get the same handle.",
    covers=("portagpu.backend",),
)
def test_handle_is_one_across_threads(backend):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(pg.backend(backend.name, backend.index)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [backend] * 8, "eight threads did not all get the one handle"


@case(
    "identity/default-backend",
    spec="The module's functions speak of the backend that is under test.",
    covers=("portagpu.backend", "portagpu.device", "portagpu.current_device"),
    smoke=True,
)
def test_default_backend(backend):
    assert pg.backend() is backend, f"portagpu.backend() is {pg.backend()!r}, not {backend!r}"
    assert pg.device() == backend.device, (
        f"portagpu.device() is {pg.device()}, not {backend.device}"
    )
    assert pg.current_device() == backend.index, f"the current device is {pg.current_device()}"


@case(
    "identity/device-of-index",
    spec="portagpu.device(i) is the device of that index, as an int, a device and a string.",
    covers=("portagpu.device",),
)
def test_device_of_index(backend):
    forms = (backend.index, backend.device, str(backend.device))
    found = [pg.device(form) for form in forms]
    assert found == [backend.device] * 3, f"{forms} name the devices {found}, not {backend.device}"


@case(
    "identity/device-string",
    spec="device_string(i) is torch's text for the device of that index; other texts stay.",
    covers=("portagpu.device_string",),
)
def test_device_string(backend, torch):
    found = torch.device(pg.device_string(backend.index))
    assert found == backend.device, f"{found} is not {backend.device}"
    kind = torch.device(pg.device_string())
    assert kind.type == backend.device.type, f"{kind} is not of {backend.device.type}"
    assert pg.device_string("meta") == "meta", f"meta became {pg.device_string('meta')!r}"


@case(
    "identity/c10d-name",
    spec="c10d_name() is the library of the device's collectives, and host=True adds the CPU's.",
    capability=Capability.COLLECTIVES,
    covers=("portagpu.c10d_name",),
)
def test_c10d_name(backend):
    named = pg.c10d_name(), pg.c10d_name(host=True)
    assert named == (backend.comm.c10d_name, backend.comm.init_string), f"c10d_name is {named}"


@case(
    "identity/foreign-device-is-refused",
    spec="A device of another type is refused with ValueError and not mapped to this one.",
    covers=("portagpu.device", "portagpu.synchronize"),
    traps=("C10",),
)
def test_foreign_device_is_refused(backend):
    other = "meta" if backend.device.type != "meta" else "cpu"
    refused(lambda: pg.device(other), ValueError, f"the device {other!r}")
    refused(lambda: pg.synchronize(other), ValueError, f"synchronize({other!r})")


@case(
    "identity/is-available",
    spec="is_available() is True where a backend can be opened.",
    covers=("portagpu.is_available",),
    smoke=True,
)
def test_is_available(backend):
    assert pg.is_available() is True, "a backend is open, and is_available() does not say True"


@case(
    "identity/available-lists-this-one",
    spec="available() has this backend under its name.",
    covers=("portagpu.available",),
)
def test_available_lists_this_one(backend):
    names = sorted(pg.available())
    assert backend.name in names, f"available() lists {names} and not {backend.name}"


@case(
    "identity/device-count",
    spec="There is at least one device, and method, function and plugin agree on the number; one "
    "that all ranks share may count once for each of them.",
    covers=("Backend.device_count", "portagpu.device_count", "Plugin.count"),
    traps=("E08",),
    smoke=True,
)
def test_device_count(backend):
    counts = (backend.device_count(), pg.device_count(), backend.plugin.count())
    agreed = counts[:2] if backend.plugin.shared else counts
    assert len(set(agreed)) == 1, f"method, function and plugin count {counts} devices"
    assert counts[0] >= 1, f"there are {counts[0]} devices: a script would train nothing"


@case(
    "identity/current-device-in-range",
    spec="The index of this device is at least 0 and below the number of devices.",
    covers=("Backend.current_device", "Backend.index"),
)
def test_current_device_in_range(backend):
    index = backend.current_device()
    assert index == backend.index, (
        f"current_device() is {index}, the attribute index {backend.index}"
    )
    assert 0 <= index < backend.device_count(), (
        f"device {index} of {backend.device_count()} does not exist"
    )


@case(
    "identity/no-device-past-the-last",
    spec="An index past the last device is an IndexError, or names the device that all share.",
    covers=("portagpu.backend",),
)
def test_no_device_past_the_last(backend):
    past = backend.device_count()
    if backend.plugin.shared:
        same = pg.backend(backend.name, past)
        assert same is backend, f"device {past} of a shared device is {same!r}"
    else:
        refused(lambda: pg.backend(backend.name, past), IndexError, f"device {past} of {past}")


@case(
    "identity/negative-index-is-refused",
    spec="A negative index is an IndexError.",
    covers=("portagpu.backend",),
)
def test_negative_index_is_refused(backend):
    refused(lambda: pg.backend(backend.name, -1), IndexError, "the device -1")


@case(
    "identity/set-device",
    spec="set_device() with this device, in every form, leaves it the current one.",
    covers=("portagpu.set_device", "Backend.activate"),
)
def test_set_device(backend):
    for form in (backend.index, backend.device, str(backend.device)):
        pg.set_device(form)
        assert pg.backend() is backend, (
            f"after set_device({form!r}) the backend is {pg.backend()!r}"
        )


@case(
    "identity/set-device-negative",
    spec="set_device(-1), which launchers pass outside of a job, changes nothing.",
    covers=("portagpu.set_device",),
)
def test_set_device_negative(backend):
    pg.set_device(-1)
    assert pg.backend() is backend, f"after set_device(-1) the backend is {pg.backend()!r}"


@case(
    "identity/activate",
    spec="After activate() a tensor that names only the device's type is on this device.",
    covers=("Backend.activate",),
)
def test_activate(gpu, torch):
    gpu.activate()
    made = torch.empty(1, device=gpu.device.type)
    expected = torch.empty(1, device=gpu.device).device
    assert made.device == expected, f"a tensor on {gpu.device.type!r} is on {made.device}"


@case(
    "identity/name-is-not-empty",
    spec="The device has a name of one line from method and function, the driver's if it has one.",
    covers=("Backend.get_device_name", "portagpu.get_device_name"),
    smoke=True,
)
def test_name_is_not_empty(backend):
    name = backend.get_device_name()
    assert isinstance(name, str), f"the name is a {type(name).__name__}"
    assert name.strip(), "the name is empty"
    assert name.isprintable(), f"the name {name!r} is not one printable line"
    assert pg.get_device_name() == name, "method and function name two devices"
    reported = backend.get_device_properties().name
    assert reported in ("", name), f"the driver calls the device {reported!r}, not {name!r}"


@case(
    "identity/properties",
    spec="The properties have torch's fields: a name, a positive memory and number of units.",
    covers=("Backend.get_device_properties", "portagpu.get_device_properties"),
    smoke=True,
)
def test_properties(backend):
    found = backend.get_device_properties()
    assert found.total_memory > 0, f"total_memory is {found.total_memory}"
    assert found.multi_processor_count > 0, (
        f"multi_processor_count is {found.multi_processor_count}"
    )
    assert pg.get_device_properties().name == found.name, "function and method describe two devices"


@case(
    "identity/warp-size-is-the-devices",
    spec="arch, properties and sizing state the same warp size, a power of two.",
    covers=("Backend.arch", "Sizing.warp_size"),
    traps=("K01",),
    smoke=True,
)
def test_warp_size_is_the_devices(backend):
    sizes = {
        "arch": backend.arch.warp_size,
        "properties": backend.get_device_properties().warp_size,
        "sizing": backend.sizing.warp_size,
    }
    assert len(set(sizes.values())) == 1, f"the warp sizes differ: {sizes}"
    size = backend.arch.warp_size
    assert size >= 1, f"a warp of {size} threads does not exist"
    assert size & (size - 1) == 0, f"a warp of {size} threads is not a power of two"


@case(
    "identity/arch-is-the-bare-name",
    spec="The architecture's name has no feature suffix, so that it can be compared by equality.",
    covers=("Backend.arch",),
    traps=("K08",),
)
def test_arch_is_the_bare_name(backend):
    from portagpu.facts.arch import base_name

    name = backend.arch.name
    assert name == base_name(name), f"the architecture {name!r} should be {base_name(name)!r}"
    assert backend.arch.vendor, "the architecture names no vendor"


@case(
    "identity/arch-agrees-with-target",
    spec="The target is one of this architecture, or there is none.",
    covers=("Backend.target",),
)
def test_arch_agrees_with_target(backend, target):
    if target is None:
        raise NotClaimed("this device is not a known target")
    assert target.arch == backend.arch, f"{target.id} is {target.arch!r}, not {backend.arch!r}"


@case(
    "identity/target-warp-size",
    spec="The device's warp size is the one that its target's facts state, where they do.",
    covers=("Backend.target",),
    traps=("K01",),
)
def test_target_warp_size(backend, target):
    stated = None if target is None else target.value("exec.wave_size_default")
    if stated is None:
        raise NotClaimed("no target states the warp size of this device")
    found = backend.arch.warp_size
    assert stated == found, f"{target.id} states a warp size of {stated}, the device {found}"


@case(
    "identity/unknown-is-none",
    spec="What the device does not say about itself is None, never an empty text.",
    covers=("Backend.product", "Backend.vendor", "Backend.uuid", "Backend.pci"),
    traps=("T02",),
)
def test_unknown_is_none(backend):
    for name in ("product", "vendor", "uuid", "pci"):
        value = getattr(backend, name)
        text = f"{name} is {value!r} instead of None"
        assert value is None or (isinstance(value, str) and value.strip()), text
        assert value is None or value.isprintable(), f"{name} is not one printable line: {value!r}"


@case(
    "identity/pci-address-has-one-form",
    spec="A PCI address is domain:bus:device.function in hexadecimal, as the kernel writes it.",
    covers=("Backend.pci",),
    traps=("T02",),
)
def test_pci_address_has_one_form(backend):
    if backend.pci is None:
        raise NotClaimed("this device states no PCI address")
    written = re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", backend.pci)
    assert written, f"the PCI address is {backend.pci!r}, not of the form 0000:3b:00.0"
    domain = backend.pci.partition(":")[0]
    assert len(domain) == 4 or domain[0] != "0", f"the domain {domain!r} is padded"


@case(
    "identity/part-of-a-gpu",
    spec="A device that is a part of a GPU says which, and has no target of the whole product.",
    covers=("Backend.part",),
)
def test_part_of_a_gpu(backend, target):
    part = backend.part
    if part is None:
        raise NotClaimed("this device is not a part of a GPU")
    assert part.name.strip(), "the part has no name"
    assert part.of is None or part.of > 1, f"one of {part.of} parts is a whole GPU"
    assert target is None or target.product is None, f"a part of a GPU is taken for {target.id}"


@case(
    "identity/versions",
    spec="The versions name torch's, and every other one is a text or None.",
    covers=("Backend.versions",),
    traps=("E02",),
)
def test_versions(backend, torch):
    assert backend.versions.get("torch") == torch.__version__, (
        f"torch is {backend.versions.get('torch')}"
    )
    wrong = {key: value for key, value in backend.versions.items() if value == ""}
    assert not wrong, f"unknown versions are None, not empty: {sorted(wrong)}"
    odd = {
        key: value for key, value in backend.versions.items() if not isinstance(value, str | None)
    }
    assert not odd, f"versions are text or None: {odd}"


@case(
    "identity/capabilities-are-known",
    spec="Every capability that is claimed is one of the contract's.",
    covers=("Backend.capabilities",),
    smoke=True,
)
def test_capabilities_are_known(backend):
    strange = [each for each in backend.capabilities if not isinstance(each, pg.Capability)]
    assert not strange, f"{strange} are not capabilities of the contract"
    kind = type(backend.capabilities).__name__
    assert isinstance(backend.capabilities, frozenset), f"the capabilities are a {kind}"


@case(
    "identity/contract-version",
    spec="The plugin was written for a contract that this package has.",
    covers=("Plugin.contract", "Backend.plugin"),
)
def test_contract_version(backend):
    major, minor = backend.plugin.contract
    assert major == CONTRACT[0], f"the plugin's contract {major} is not {CONTRACT[0]}"
    assert minor <= CONTRACT[1], f"the plugin's contract {major}.{minor} is newer than {CONTRACT}"


@case(
    "identity/plugin-name",
    spec="The plugin, the handle and the name by which it is asked for are the same name.",
    covers=("Backend.name", "Plugin.name"),
)
def test_plugin_name(backend):
    assert backend.plugin.name == backend.name, (
        f"plugin {backend.plugin.name!r} opened {backend.name!r}"
    )


@case(
    "identity/status-is-usable",
    spec="A backend that is open says that it is usable, with a reason of one line.",
    covers=("Plugin.status",),
)
def test_status_is_usable(backend):
    status = backend.plugin.status()
    assert status.usable is True, f"the open backend says that it is unusable: {status.reason}"
    assert status.reason.strip(), "the status gives no reason"
    assert "\n" not in status.reason, "the status's reason has several lines"


@case(
    "identity/prepare-opens-nothing",
    spec="Preparing to fork may be repeated and starts no thread.",
    covers=("Plugin.prepare",),
)
def test_prepare_opens_nothing(backend):
    backend.plugin.prepare()
    before = threading.active_count()
    assert backend.plugin.prepare() is None, "prepare gives something"
    assert threading.active_count() == before, "a thread that prepare starts is lost in a fork"


@case(
    "identity/open-gives-the-index",
    spec="The plugin opens the device of the index that is asked for.",
    covers=("Plugin.open",),
)
def test_open_gives_the_index(backend):
    opened = backend.plugin.open(backend.index)
    assert opened.index == backend.index, f"open({backend.index}) opened {opened.index}"
    assert opened.arch == backend.arch, (
        f"opened again, the device is {opened.arch!r}, not {backend.arch!r}"
    )


@case(
    "identity/repr-names-the-device",
    spec="The handle's repr names backend, device and architecture.",
    covers=("Backend.__repr__",),
)
def test_repr_names_the_device(backend):
    text = repr(backend)
    for part in (backend.name, str(backend.device), str(backend.arch)):
        assert part in text, f"{part!r} is not in {text!r}"


@case(
    "identity/arch-is-frozen",
    spec="The identity of an architecture cannot be changed by a caller.",
    covers=("Backend.arch",),
)
def test_arch_is_frozen(backend):
    def change():
        backend.arch.name = "other"

    refused(change, dataclasses.FrozenInstanceError, "writing into arch")
