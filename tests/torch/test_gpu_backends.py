"""Both GPU backends over fake builds of torch: every method runs, on the right device.

Nothing here ran on a GPU, and nothing here says anything about one.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import portagpu
from portagpu.base.errors import BackendNotFound
from portagpu.checks.bringup.checks import identity
from portagpu.checks.bringup.device import CheckedDevice, describe
from portagpu.checks.bringup.device_properties import FIELDS
from portagpu.checks.bringup.gates import load_gates
from portagpu.checks.bringup.run import Context, MachineUnderTest
from portagpu.devices import registry
from portagpu.devices.contract import Capability, Part
from portagpu.devices.precision import Support, quantize
from portagpu.devices.rng import launch_wave, same_numbers_up_to
from portagpu.devices.sizing import Sizing
from portagpu.facts.arch import Arch
from portagpu.facts.host.tree import Tree
from portagpu.facts.targets import Scope, load_target, load_targets
from portagpu.runs.results.run import Verdict
from portagpu.suites.performance.case_runner import _named_versions
from tests.support import fake_torch, host_trees
from tests.support.recorded_gpus import ALL, CUDA, NOT_IN_STUB, ROCM
from tests.support.registry_state import forget, machine, use_plugins

PLUGINS = {
    "cuda": importlib.import_module("portagpu_cuda.plugin").CudaPlugin,
    "rocm": importlib.import_module("portagpu_rocm.plugin").RocmPlugin,
}
BY_ID = {gpu.id: gpu for gpu in ALL}
every_gpu = pytest.mark.parametrize("gpu", ALL, ids=[gpu.id for gpu in ALL])
either = pytest.mark.parametrize("gpu", [BY_ID["h200"], BY_ID["mi300x-spx"]], ids=["cuda", "rocm"])


def opened(monkeypatch, gpu, index=1, root=None):
    """(handle, driver): the device of that index among two of the kind; device 0 is current."""
    driver = fake_torch.install(monkeypatch, gpu.kind, [gpu, gpu])
    handle = PLUGINS[gpu.kind](root).open(index)
    driver.calls.clear()
    return handle, driver


def scaled_ones():
    ones = torch.ones(16, 16)
    return [quantize(ones, torch.float8_e4m3fn, dim=dim) for dim in (1, 0)]


def use_all(handle, driver):
    """Call every method once; returns the names of those that were called."""
    event, graph = handle.Event(True), handle.Graph()
    with handle.graph(graph):
        pass
    side = handle.Stream(-1)
    with handle.stream(side):
        assert handle.current_stream() == side, "the stream's block did not make it current"
    with handle.annotate("{braces} and schön"):
        assert driver.ranges == ["portagpu:{braces} and schön"], "the range has another name"
    with handle.labelled_block("x", {"step": 3}, "mine"):
        assert driver.ranges == ["mine:x {'step':3}"], "the range has other labels"
    assert handle.listens(), "a tool that is attached is not found"
    assert handle.range_tool() is handle.range_tool(), "the tool is looked for at each call"
    assert handle.attached_profiler() is None, "a tool without a known name has one"
    depth = handle.range_push("a")
    assert (depth, handle.range_pop()) == (0, 0), "ranges do not nest from 0"
    event.record()
    handle.activate()
    handle.synchronize()
    handle.reset_peak_memory_stats()
    handle.empty_cache()
    state = handle.get_rng_state()
    handle.set_rng_state(state)
    handle.manual_seed(7)
    assert handle.initial_seed() == 7, "the seed did not reach the device's generator"
    assert handle.seed() == handle.initial_seed(), "seed() returns another seed than it set"
    handle.GradScaler(enabled=False)
    handle.autocast(torch.bfloat16, enabled=False)
    values = {
        "device_count": (handle.device_count(), 2),
        "current_device": (handle.current_device(), 1),
        "current_index": (handle.current_index(), driver.current),
        "get_device_name": (
            handle.get_device_name(),
            handle.get_device_properties().name or handle.product,
        ),
        "memory_allocated": (handle.memory_allocated(), 2000),
        "max_memory_allocated": (handle.max_memory_allocated(), 2001),
        "memory_reserved": (handle.memory_reserved(), 2002),
        "max_memory_reserved": (handle.max_memory_reserved(), 2003),
        "mem_get_info": (handle.mem_get_info()[1], handle.get_device_properties().total_memory),
        "stream_priorities": (handle.stream_priorities(), fake_torch.PRIORITIES[driver.kind]),
        "generator": (handle.generator(), torch.cuda.default_generators[1]),
        "random_wave": (handle.random_wave(), launch_wave(handle.sizing)),
        "is_bf16_supported": (handle.is_bf16_supported(), True),
        "dtype_support": (handle.dtype_support(torch.float32).stated, Support.NATIVE),
        "is_oom": (handle.is_oom(MemoryError()), True),
        "scaled_matmul": (float(handle.scaled_matmul(*scaled_ones())[0, 0]), 16.0),
    }
    handle.set_stream(side)
    handle.set_stream(handle.default_stream())
    handle.mark("here")
    handle.profiler_start()
    handle.profiler_stop()
    handle.ipc_collect()
    handle.record_memory_history(None)
    handle.dump_memory_snapshot("snapshot.pickle")
    handle.set_per_process_memory_fraction(0.5)
    with handle.use_mem_pool(handle.MemPool()):
        pass
    external = handle.ExternalStream(77)
    assert (external.device_index, external.pointer) == (1, 77), f"{external} is another's stream"
    values |= {
        "graph_pool_handle": (handle.graph_pool_handle(), (0, 7)),
        "is_current_stream_capturing": (handle.is_current_stream_capturing(), False),
        "can_device_access_peer": (handle.can_device_access_peer(0), True),
        "cudart": (handle.cudart(), torch.cuda.cudart()),
        "get_device_capability": (
            handle.get_device_capability(),
            (handle.get_device_properties().major, handle.get_device_properties().minor),
        ),
        "memory_snapshot": (handle.memory_snapshot(), []),
        "supports": (handle.supports("allocator"), True),
        "device_memory_used": (handle.device_memory_used(), 1 << 20),
    }
    assert "device ID 1" in handle.memory_summary(), "the summary is of another device"
    assert driver.marks == ["here"], f"the marks are {driver.marks}"
    names = {call[0] for call in driver.calls}
    expected = {"profiler_start", "profiler_stop", "record_history", "dump", "fraction", "pool"}
    assert expected <= names, f"torch was not asked for {sorted(expected - names)}"
    with handle.set_float32_precision("tf32") as switch:
        assert switch.arithmetic is handle.precision.tf32, f"{switch} on {handle}"
    for name, (found, expected) in values.items():
        assert found == expected, f"{name}() is {found}, not {expected}"
    return {
        *values,
        *("Event", "Graph", "graph", "Stream", "stream", "current_stream", "annotate"),
        *("labelled_block", "listens", "range_tool", "attached_profiler"),
        *("range_push", "range_pop", "activate", "synchronize", "reset_peak_memory_stats"),
        *("empty_cache", "get_rng_state", "set_rng_state", "manual_seed", "initial_seed", "seed"),
        *("GradScaler", "autocast", "get_device_properties", "memory_stats"),
        *("set_float32_precision", "set_stream", "default_stream", "ExternalStream", "mark"),
        *("profiler_start", "profiler_stop", "ipc_collect", "record_memory_history"),
        *("dump_memory_snapshot", "set_per_process_memory_fraction", "use_mem_pool", "MemPool"),
        "memory_summary",
    }


@pytest.mark.usefixtures("without_onednn")
@every_gpu
def test_every_method_runs_on_its_own_device(monkeypatch, gpu):
    handle, driver = opened(monkeypatch, gpu)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    tensor = torch.ones(2)
    assert handle.pin(tensor) is tensor, "pin() does not call the tensor's own pin_memory()"
    methods = {
        name
        for name, member in inspect.getmembers(type(handle), callable)
        if not name.startswith("_")
    }
    run = {"pin", *use_all(handle, driver)}
    print(f"{gpu.kind:<5} {gpu.id:<16} {len(run & methods):>3} of {len(methods)} methods run")
    # it runs kernels, which the stand-in has none of
    missing = methods - run - {"float32_arithmetic"}
    assert not missing, f"never called: {sorted(missing)}"
    assert run <= methods, f"gone: {sorted(run - methods)}"
    indices = {call[1] for call in driver.calls if len(call) > 1}
    assert indices == {1}, f"calls for device 1 reached the devices {sorted(indices)}"


@every_gpu
def test_a_device_is_what_it_printed_elsewhere(monkeypatch, gpu):
    handle, _ = opened(monkeypatch, gpu)
    known = {**gpu.documented, **gpu.recorded}
    vendor = {"cuda": "nvidia", "rocm": "amd"}[gpu.kind]
    assert handle.arch == Arch(vendor, gpu.arch, known["warp_size"]), f"the arch is {handle.arch!r}"
    assert handle.device == torch.device("cuda", 1), "torch calls both vendors' devices cuda"
    assert (handle.uuid, handle.pci) == (gpu.uuid, gpu.pci), f"{handle.uuid} at {handle.pci}"
    named = known["name"] or "Instinct MI300X"
    assert handle.product == named, f"the product is {handle.product!r}"
    assert handle.get_device_properties().name == known["name"], "the driver's own name is lost"
    assert handle.sizing.unit_count == known["multi_processor_count"], "another number of units"
    assert handle.target is None or handle.target.arch == handle.arch, "a target of another arch"
    if gpu.target is not None:
        assert handle.target.id == gpu.target, f"{gpu.id} is taken for {handle.target.id}"
    if gpu.wave is not None:
        assert handle.random_wave() == gpu.wave, f"a wave of {handle.random_wave()} elements"


def test_a_device_that_nobody_names_has_the_name_of_its_architecture(monkeypatch):
    gpu = fake_torch_gpu("rocm", "", gcnArchName="gfx9999", major=9, minor=9)
    handle, _ = opened(monkeypatch, gpu)
    assert handle.product is None, f"an unknown product is {handle.product!r}"
    assert handle.get_device_name() == "amd gfx9999", f"its name is {handle.get_device_name()!r}"


@pytest.mark.parametrize(
    ("integrated", "expected"), [(0, False), (1, True), (None, None)], ids=["card", "APU", "silent"]
)
def test_an_apu_says_that_it_is_one(monkeypatch, integrated, expected):
    stated = {} if integrated is None else {"is_integrated": integrated}
    gpu = fake_torch_gpu("rocm", "AMD Instinct MI300A", gcnArchName="gfx942", **stated)
    handle, _ = opened(monkeypatch, gpu)
    assert handle.integrated is expected, f"is_integrated={integrated} became {handle.integrated}"


@every_gpu
def test_the_fakes_have_no_property_that_torch_does_not_have(gpu):
    stub = (Path(torch.__file__).parent / "_C/__init__.pyi").read_text(encoding="utf-8")
    body = stub.partition("class _CudaDeviceProperties:\n")[2].partition("\n\n")[0]
    real = set(re.findall(r"^    (\w+): ", body, re.MULTILINE)) | NOT_IN_STUB
    assert {"name", "is_integrated", "clock_rate"} <= real, "the stub is written in another way"
    assert {*gpu.recorded, *gpu.documented} <= real, f"{gpu.id} has a property of nobody"
    assert set(FIELDS) <= real, "bring-up compares a property that torch does not have"


@every_gpu
def test_bringup_takes_each_device_for_what_it_is(monkeypatch, tmp_path, gpu):
    if gpu.id == "mi300x-cpx":
        partitioned_mi300x(tmp_path)
    handle, _ = opened(monkeypatch, gpu, 1, Tree(tmp_path))
    facts = json.loads(json.dumps(describe(SimpleNamespace(gpu=handle))))
    known = handle.target and (handle.target.id, str(handle.target.scope))
    assert (facts["target"], facts["target_scope"]) == (known or (None, None))
    context = Context(MachineUnderTest(gpu.kind, None), load_gates()[1], "quick")
    context.tested.devices.append(CheckedDevice(1, "cuda:1", facts))
    results = {each.id.partition("/")[2]: each for each in identity._target(context)}
    failed = [each.reason for each in results.values() if each.failed]
    assert not failed, f"{gpu.id}: {failed}"
    expected = Verdict.UNVERIFIED if handle.part is not None else Verdict.PASS
    assert results["target"].verdict is expected, results["target"].reason
    assert results["threads-per-block"].verdict is Verdict.PASS, "nothing of a unit is compared"


def test_bringup_accepts_a_partition_of_the_wanted_product_alone(monkeypatch, tmp_path):
    partitioned_mi300x(tmp_path)
    handle, _ = opened(monkeypatch, BY_ID["mi300x-cpx"], 1, Tree(tmp_path))
    assert (handle.part.name, handle.part.of) == ("CPX NPS1", 8), f"the part is {handle.part}"
    facts = describe(SimpleNamespace(gpu=handle))
    for wanted, verdict in (("amd-mi300x", Verdict.PASS), ("amd-mi325x", Verdict.FAIL)):
        context = Context(
            MachineUnderTest("rocm", None, wanted=load_target(wanted)), load_gates()[1], "quick"
        )
        context.tested.devices.append(CheckedDevice(1, "cuda:1", facts))
        results = {each.id.partition("/")[2]: each for each in identity._target(context)}
        assert results["target"].verdict is verdict, results["target"].reason
        assert "the part CPX NPS1 of amd-mi300x" in results["target"].reason
        assert results["unit-count"].verdict is Verdict.PASS, results["unit-count"].reason
        assert "one of 8 equal parts" in results["unit-count"].reason


def partitioned_mi300x(root):
    """The kernel's files of one MI300X in CPX mode: eight nodes that share a unique id."""
    device = "sys/bus/pci/devices/0000:05:00.0"
    files = {f"{device}/current_compute_partition": "CPX"}
    files[f"{device}/current_memory_partition"] = "NPS1"
    for index in range(1, 9):
        properties = {"simd_count": 152, "unique_id": 0xE3AA140F9A5F9E31}
        files |= host_trees.gfx942_node(index, 0x500, **properties)
    host_trees.build(root, files)


@pytest.mark.parametrize("gpu_id", ["a100-mig", "mi300x-cpx"])
def test_a_part_of_a_gpu_is_not_taken_for_the_whole(monkeypatch, gpu_id):
    handle, _ = opened(monkeypatch, BY_ID[gpu_id])
    scope = handle.target.scope if handle.target is not None else None
    assert scope in (None, Scope.FAMILY), f"{gpu_id} is taken for {handle.target.id}"


def test_a_mig_slice_has_its_profile_and_its_own_kind_of_uuid(monkeypatch):
    handle, _ = opened(monkeypatch, BY_ID["a100-mig"])
    assert handle.mig_profile == "3g.20gb", f"the profile is {handle.mig_profile!r}"
    assert handle.part == Part("3g.20gb", "NVIDIA A100-SXM4-40GB"), f"the part is {handle.part}"
    whole, _ = opened(monkeypatch, BY_ID["h200"])
    assert whole.mig_profile is None, "a whole GPU has a MIG profile"
    from portagpu_cuda.backend import device_uuid

    text = "91a535d7-4157-249a-65e5-73883afa626e"
    slice_ = type("P", (), {"name": "NVIDIA H200 MIG 1g.18gb", "uuid": text})
    assert device_uuid(slice_) == f"MIG-{text}", "NVML would not know that UUID"


@pytest.mark.parametrize("text", ["", "00000000-0000-0000-0000-000000000000", "none"])
def test_an_absent_uuid_is_none(monkeypatch, text):
    opened(monkeypatch, BY_ID["h200"])
    for kind in PLUGINS:
        module = importlib.import_module(f"portagpu_{kind}.backend")
        found = module.device_uuid(type("P", (), {"name": "x", "uuid": text}))
        assert found is None, f"{kind}: {text!r} became {found!r}"


def test_capability_numbers_of_two_vendors_are_not_one_space(monkeypatch):
    hopper, _ = opened(monkeypatch, BY_ID["h100"])
    cdna2, _ = opened(monkeypatch, BY_ID["mi210"])
    reported = [handle.get_device_properties() for handle in (hopper, cdna2)]
    pairs = [(properties.major, properties.minor) for properties in reported]
    assert pairs == [(9, 0), (9, 0)], "the premise: both report 9.0"
    assert hopper.precision.fp8 is not None, "Hopper's fp8 is gone"
    assert cdna2.precision.fp8 is None, "gfx90a got Hopper's fp8 through its capability number"
    assert hopper.arch != cdna2.arch, "two vendors' architectures are equal"


@pytest.mark.parametrize(
    ("gpu_id", "pair"),
    [
        ("h200", (torch.float8_e4m3fn, torch.float8_e5m2)),
        ("mi300x-spx", (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)),
    ],
)
def test_fp8_is_of_the_flavour_that_the_facts_state(monkeypatch, gpu_id, pair):
    handle, _ = opened(monkeypatch, BY_ID[gpu_id])
    assert (handle.precision.fp8.e4m3, handle.precision.fp8.e5m2) == pair
    native = {
        dtype
        for dtype, support in handle.precision.table.items()
        if str(dtype).startswith("torch.float8") and support is Support.NATIVE
    }
    assert native == set(pair), f"native are {native}"


def test_an_architecture_without_facts_claims_no_native_half_precision(monkeypatch):
    unknown = fake_torch_gpu("cuda", "NVIDIA Something", major=99, minor=0)
    handle, _ = opened(monkeypatch, unknown)
    assert handle.target is None, f"sm_990 is taken for {handle.target}"
    assert handle.precision.fp8 is None, "an unknown architecture has native fp8"
    assert not handle.is_bf16_supported(including_emulation=False), "unknown is not native"
    assert handle.is_bf16_supported(), "torch computes in bfloat16 on every device it opens"
    block = handle.sizing.launch(1 << 20).block
    assert block == 4 * 32, f"a block of {block} threads is more than any device is known to run"


def fake_torch_gpu(kind, name, **values):
    """A device of which nothing is recorded, to see what unknown becomes."""
    from tests.support.recorded_gpus import RecordedGpu

    base = {"name": name, "warp_size": 32, "total_memory": 1 << 33, "multi_processor_count": 10}
    return RecordedGpu("made-up", kind, "made up", {}, {**base, **values})


def test_rdna_is_wave32_in_the_same_build(monkeypatch):
    rdna, _ = opened(monkeypatch, BY_ID["rx7900xtx"])
    cdna, _ = opened(monkeypatch, BY_ID["mi300x-spx"])
    assert (rdna.arch.warp_size, cdna.arch.warp_size) == (32, 64), "the wave is the vendor's"


@either
def test_the_library_that_nccl_stands_for_is_named(monkeypatch, gpu):
    handle, _ = opened(monkeypatch, gpu)
    expected = {"cuda": ("NCCL", "2.27.7"), "rocm": ("RCCL", "2.22.3")}[gpu.kind]
    assert (handle.comm.library, handle.comm.version) == expected
    assert (handle.comm.c10d_name, handle.comm.init_string) == ("nccl", "cpu:gloo,cuda:nccl")
    comm = handle.comm
    assert (comm.output_device, comm.device_id) == (1, torch.device("cuda", 1))
    assert comm.device_ids == [1], "DistributedDataParallel would use another device"
    assert Capability.COLLECTIVES in handle.capabilities


@either
def test_ranks_of_one_machine_meet_on_its_loopback_over_both_libraries(monkeypatch, gpu):
    handle, _ = opened(monkeypatch, gpu)
    wanted = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    assert dict(handle.comm.local_env) == wanted, "the group has Gloo for tensors of the CPU"


@either
def test_code_that_is_compiled_has_no_range(monkeypatch, gpu):
    """``test_cuda_build`` compiles some: a fake build has not all that torch.compile asks."""
    handle, driver = opened(monkeypatch, gpu)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with handle.annotate("twice"):
        assert driver.ranges == [], "a graph takes no call that returns an int"


def test_a_torch_without_nccl_claims_no_collectives(monkeypatch):
    fake_torch.install(monkeypatch, "cuda", CUDA[1:2])
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.delattr(torch._C, "_nccl_version")
    handle = PLUGINS["cuda"]().open(0)
    assert Capability.COLLECTIVES not in handle.capabilities, "claimed without the library"
    assert handle.comm.version is None, f"the version of no library is {handle.comm.version}"


def test_versions_of_cuda(monkeypatch, tmp_path):
    file = tmp_path / "sys/module/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text("590.48.01\n")
    handle, _ = opened(monkeypatch, BY_ID["h200"], root=Tree(tmp_path))
    found = dict(handle.versions)
    assert found.pop("cublas", "") != "", "an unknown version is an empty text"
    assert found == {
        "torch": torch.__version__,
        "driver": "590.48.01",
        "cuda": "12.8",
        "nccl": "2.27.7",
        "cudnn": "9.10.2",
    }
    assert handle.dnn_library == "cuDNN"


def test_versions_and_partitions_of_rocm(monkeypatch, tmp_path):
    device = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    for path, text in (
        (tmp_path / "sys/module/amdgpu/version", "6.12.12\n"),
        (device / "current_compute_partition", "CPX\n"),
        (device / "current_memory_partition", "NPS1\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    handle, _ = opened(monkeypatch, BY_ID["mi300x-cpx"], root=Tree(tmp_path))
    assert (handle.compute_partition, handle.memory_partition) == ("CPX", "NPS1")
    assert handle.versions["driver"] == "6.12.12"
    assert handle.versions["miopen"] == "3.5.1", "MIOpen's number was read as cuDNN's"
    assert handle.versions["hip"] == "6.4.43482-0f2d60242"
    assert handle.versions["rocm"] == "6.4", "HIP's version has the release's first two numbers"
    assert handle.versions["rccl"] == "2.22.3"
    assert handle.dnn_library == "MIOpen"
    assert handle.blas_library.startswith("hipBLAS"), f"the BLAS library is {handle.blas_library}"
    elsewhere, _ = opened(monkeypatch, BY_ID["mi300x-spx"], root=Tree(tmp_path))
    assert elsewhere.compute_partition is None, "a device without an address has a partition"


@either
def test_the_software_of_every_expectation_is_a_version_that_the_backend_states(monkeypatch, gpu):
    handle, _ = opened(monkeypatch, gpu)
    named = {
        name
        for target in load_targets().values()
        for expectation in target.all_expectations
        for name, _ in expectation.software
        if target.vendor == handle.vendor
    }
    assert named, "no expectation names software: the comparison is of nothing"
    versions = _named_versions(SimpleNamespace(versions=handle.versions, comm=handle.comm.library))
    assert named <= versions.keys(), f"nothing could be judged: {sorted(named - versions.keys())}"


@pytest.mark.parametrize(("number", "text"), [(91002, "9.10.2"), (8907, "8.9.7"), (None, None)])
def test_cudnn_versions(monkeypatch, number, text):
    opened(monkeypatch, BY_ID["h200"])
    from portagpu_cuda.backend import cudnn_version

    assert cudnn_version(number) == text


@pytest.mark.parametrize(("asked", "cuda", "rocm"), [(0, 0, 0), (-1, -1, -1), (-9, -3, -1)])
def test_priorities_are_clamped_to_what_the_device_has(monkeypatch, asked, cuda, rocm):
    for gpu, expected in ((BY_ID["h200"], cuda), (BY_ID["mi300x-spx"], rocm)):
        handle, _ = opened(monkeypatch, gpu)
        found = handle.Stream(asked).priority
        assert found == expected, f"{gpu.kind}: priority {asked} became {found}"


@either
def test_an_event_belongs_to_its_device_and_not_to_the_current_one(monkeypatch, gpu):
    handle, driver = opened(monkeypatch, gpu)
    assert driver.current == 0, "the premise: another device is current"
    event = handle.Event()
    assert isinstance(event, torch.cuda.Event), "the event is not torch's"
    event.record()
    event.wait()
    assert driver.calls == [("record", 1), ("wait", 1)], f"{driver.calls}"
    assert driver.current == 0, "recording an event left another device current"


@either
def test_event_times_that_do_not_exist_are_errors(monkeypatch, gpu):
    handle, _ = opened(monkeypatch, gpu)
    start, end = handle.Event(True), handle.Event(True)
    start.record()
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(handle.Event())
    end.record()
    assert start.elapsed_time(end) == 1.0


@either
def test_a_graph_that_captured_nothing_cannot_be_replayed(monkeypatch, gpu):
    handle, _ = opened(monkeypatch, gpu)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        handle.Graph().replay()


@pytest.mark.parametrize(("gpu_id", "prefix"), [("h200", "CUDA"), ("mi300x-spx", "HIP")])
def test_what_may_not_be_captured_raises_and_ends_the_capture(monkeypatch, gpu_id, prefix):
    handle, driver = opened(monkeypatch, BY_ID[gpu_id])
    before = handle.current_stream()
    with (
        pytest.raises(RuntimeError, match=f"{prefix} error: .* when stream is capturing"),
        handle.graph(handle.Graph()),
    ):
        handle.synchronize()
    assert not driver.capturing, "the capture did not end"
    assert handle.current_stream() == before, "the capture's stream is still current"
    assert driver.current == 0, "another device is current after the capture"


@either
def test_captures_share_one_stream_of_the_device(monkeypatch, gpu):
    handle, driver = opened(monkeypatch, gpu)
    for _ in range(2):
        with handle.graph(handle.Graph()):
            pass
    captures = [call for call in driver.calls if call[0] == "capture"]
    assert len(captures) == 2, f"{driver.calls}"
    assert captures[0] == captures[1], "two captures ran on two streams: a shared pool needs one"
    assert captures[0][1] == 1, f"the capture was on device {captures[0][1]}"
    own = handle.Stream()
    with handle.graph(handle.Graph(), pool=(0, 1), stream=own):
        pass
    assert driver.calls[-1] == ("capture", 1, own.stream_id, (0, 1)), f"{driver.calls[-1]}"


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_a_build_without_a_device_says_so_as_torch_does(monkeypatch, kind):
    forget(monkeypatch)
    fake_torch.install(monkeypatch, kind, [])
    plugin = PLUGINS[kind]()
    monkeypatch.setattr(plugin, "count", lambda: 1)
    machine(monkeypatch, kind, ({"cuda": "nvidia", "rocm": "amd"}[kind],))
    monkeypatch.setattr(plugin, "driver_problem", lambda count: "")
    use_plugins(monkeypatch, plugin)
    with pytest.raises(BackendNotFound, match=r"No (CUDA|HIP) GPUs are available") as caught:
        registry.backend()
    assert "\n" not in str(caught.value), "more than one line"


@either
def test_an_index_past_the_last_device_is_an_index_error(monkeypatch, gpu):
    forget(monkeypatch)
    fake_torch.install(monkeypatch, gpu.kind, [gpu, gpu])
    plugin = PLUGINS[gpu.kind]()
    monkeypatch.setattr(plugin, "count_without_opening", lambda: 2)
    monkeypatch.setattr(plugin, "driver_problem", lambda count: "")
    machine(monkeypatch, gpu.kind, (plugin.need.vendor, plugin.need.vendor))
    use_plugins(monkeypatch, plugin)
    assert registry.backend(index=1).index == 1
    assert registry.backend().name == gpu.kind, "the GPU's backend is not the default"
    with pytest.raises(IndexError, match="sees 2"):
        registry.backend(index=2)


def test_opening_one_device_opens_no_other(monkeypatch):
    _, driver = opened(monkeypatch, BY_ID["h200"])
    assert driver.current == 0, "opening device 1 made it current"
    assert not driver.calls, f"opening a device called {driver.calls}"


def test_two_devices_draw_in_the_same_way_up_to_the_smaller_wave():
    # the figures of pytorch PR 176584
    h200, mi300x = Sizing(32, 132, 1024, 2048, 32), Sizing(64, 304, 1024, 2048, 16)
    mi308x, w7900 = Sizing(64, 80, 1024, 2048, 16), Sizing(32, 48, 1024, 2048, 16)
    assert same_numbers_up_to(h200, mi300x) == 270336
    assert same_numbers_up_to(mi300x, mi308x, h200) == 163840
    assert same_numbers_up_to(w7900) == 98304


def test_a_wave_of_odd_sizes_counts_whole_blocks():
    # 1536 threads a unit are 6 blocks of 256; 1000 are 3, and 232 threads stay idle
    assert launch_wave(Sizing(32, 142, 1024, 1536, 24)) == 142 * 6 * 256
    assert launch_wave(Sizing(32, 2, 1024, 1000, 16)) == 2 * 3 * 256


def test_a_cpu_shares_no_random_stream_with_a_gpu():
    h200 = Sizing(32, 132, 1024, 2048, 32)
    with pytest.raises(ValueError, match="without warps"):
        same_numbers_up_to(h200, Sizing(1, 8, 1, 1, 1))
    with pytest.raises(portagpu.Unsupported, match="by a rule of its own"):
        same_numbers_up_to(h200, portagpu.backend("cpu"))
    with pytest.raises(ValueError, match="at least one"):
        same_numbers_up_to()


def test_the_recordings_cover_the_devices_that_the_fakes_stand_for():
    assert {gpu.id for gpu in CUDA} == {"h100", "h200", "a100-mig", "l40s", "b200"}
    mi300x = {"mi300x-spx", "mi300x-nameless", "mi300x-cpx"}
    rocm = {"mi100", "mi210", "mi250x", "mi355x", "rx7900xtx"}
    assert {gpu.id for gpu in ROCM} == mi300x | rocm
    for gpu in ALL:
        assert gpu.recorded, f"{gpu.id} has no recorded value"
        assert not gpu.recorded.keys() & gpu.documented.keys(), f"{gpu.id} has a value twice"
