"""The CPU backend: every primitive does what it says, judged by the kernel and by torch."""

from __future__ import annotations

import copy
import gc
import json
import mmap
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

import portagpu as pg
from portagpu.base.errors import Unsupported
from portagpu.devices.contract import Backend, Capability, Plugin
from portagpu.facts.host.tree import Tree
from portagpu_cpu import identity, memory

pytestmark = pytest.mark.torch

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def cpu() -> Backend:
    return pg.backend("cpu")


def from_status(field: str) -> int:
    """Bytes that the kernel states for this process, read apart from the code under test."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found, f"/proc/self/status has no {field}"
    return int(found[1]) * 1024


def touched(size: int):
    """A tensor of that many bytes whose every page is resident, mapped apart from the heap."""
    # malloc would take resident pages of its heap, where an earlier test left enough of them free
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).fill_(1)


def test_every_primitive_is_written(cpu):
    missing = [name for name in Backend.__abstractmethods__ if name not in type(cpu).__dict__]
    assert not missing, f"the CPU backend leaves {missing} to another class"
    assert isinstance(cpu.plugin, Plugin), "the handle does not know its plugin"


def test_identity_agrees_with_the_kernel(cpu):
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if model is None:
        pytest.skip("this kernel's /proc/cpuinfo states no model name")
    assert cpu.product == model[1].strip(), "the product is not the kernel's model name"
    assert cpu.get_device_name() == model[1].strip(), "get_device_name is not the product"
    assert cpu.arch.vendor == "cpu", "a CPU's architecture is not a GPU vendor's"
    assert cpu.arch.warp_size == 1, "a CPU thread runs alone"
    assert cpu.device == torch.device("cpu")
    assert (cpu.name, cpu.index) == ("cpu", 0)


def test_any_index_is_the_one_device(cpu):
    assert cpu.device_count() == 1, "a loop over the devices must run once"
    assert all(pg.backend("cpu", index) is cpu for index in (0, 1, 7)), "ranks share the CPU"


def test_the_cpus_are_those_that_it_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert identity.usable_cpus() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4096)))
    monkeypatch.setattr(identity, "read_cgroup", lambda root: SimpleNamespace(cpu_quota_cpus=None))
    assert identity.usable_cpus() == 4096
    monkeypatch.setattr(identity, "read_cgroup", lambda root: SimpleNamespace(cpu_quota_cpus=2.5))
    assert identity.usable_cpus() == 2


def test_properties_have_torch_names_and_true_values(cpu):
    properties = cpu.get_device_properties()
    assert properties.name == cpu.get_device_name()
    assert properties.warp_size == 1
    assert properties.multi_processor_count >= 1
    assert properties.logical_cpus is None or properties.logical_cpus >= 1
    assert 0 < properties.total_memory <= from_meminfo("MemTotal"), "more memory than there is"
    with pytest.raises(AttributeError):
        properties.name = "another"


def from_meminfo(field: str) -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found, f"/proc/meminfo has no {field}"
    return int(found[1]) * 1024


def test_allocated_memory_rises_by_what_is_touched(cpu):
    gc.collect()
    before, kernel_before = cpu.memory_allocated(), from_status("VmRSS")
    block = touched(64 * MIB)
    after, kernel_after = cpu.memory_allocated(), from_status("VmRSS")
    assert abs(before - kernel_before) < 4 * MIB, "memory_allocated is not resident memory"
    assert abs(after - kernel_after) < 4 * MIB, "memory_allocated is not resident memory"
    rise = after - before
    assert 60 * MIB < rise < 72 * MIB, f"64 MiB were touched, memory_allocated rose by {rise}"
    assert cpu.memory_reserved() >= cpu.memory_allocated() - 4 * MIB
    del block
    fall = after - cpu.memory_allocated()
    assert fall > 56 * MIB, f"64 MiB were freed, memory_allocated fell by {fall}"


def test_the_peak_stays_until_it_is_reset(cpu):
    if Capability.PEAK_MEMORY not in cpu.capabilities:
        pytest.skip("/proc/self/clear_refs cannot be written here")
    cpu.reset_peak_memory_stats()
    low = cpu.max_memory_allocated()
    block = touched(96 * MIB)
    del block
    peak = cpu.max_memory_allocated()
    assert peak - low > 88 * MIB, f"the peak rose by {peak - low} for 96 MiB"
    assert abs(peak - from_status("VmHWM")) < 4 * MIB, "the peak is not the kernel's"
    assert peak - cpu.memory_allocated() > 80 * MIB, "the peak fell with the memory"
    assert cpu.max_memory_reserved() >= peak - 4 * MIB
    cpu.reset_peak_memory_stats()
    assert cpu.max_memory_allocated() < peak - 80 * MIB, "the reset did not lower the peak"


def test_a_peak_that_cannot_be_reset_is_unsupported_and_not_claimed(cpu, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "absent" / "clear_refs")
    assert not memory.can_reset_peak()
    with pytest.raises(Unsupported, match="cannot be reset here; compare memory_allocated"):
        cpu.reset_peak_memory_stats()


def test_memory_stats_have_torch_keys_and_no_peak_below_now(cpu):
    stats = cpu.memory_stats()
    for kind in ("allocated", "reserved"):
        current, peak = (stats[f"{kind}_bytes.all.{when}"] for when in ("current", "peak"))
        assert isinstance(current, int), "bytes are a whole number"
        assert 0 < current <= peak, f"the {kind} peak is below the current value"
    stats["allocated_bytes.all.peak"] = 0
    assert cpu.max_memory_allocated() > 0, "the statistics can be changed from outside"


def test_a_kernel_without_a_peak_has_the_current_value_as_peak(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmRSS:\t  2048 kB\n")
    monkeypatch.setattr(memory, "_STATUS", str(status))
    monkeypatch.setattr(memory, "_peak", 0)
    assert memory.resident() == (2 * MIB, 2 * MIB)
    status.write_text("Name:\tx\nVmHWM:\t 1024 kB\nVmRSS:\t  2048 kB\n")
    assert memory.resident() == (2 * MIB, 2 * MIB), "a peak below the current value was shown"
    status.write_text("Name:\tx\n")
    with pytest.raises(Unsupported, match="does not state resident memory"):
        memory.resident()


def test_a_peak_that_the_kernel_takes_back_does_not_fall_until_it_is_reset(monkeypatch, tmp_path):
    status = tmp_path / "status"
    monkeypatch.setattr(memory, "_STATUS", str(status))
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "clear_refs")
    monkeypatch.setattr(memory, "_peak", 0)
    status.write_text("VmHWM:\t 4096 kB\nVmRSS:\t  2048 kB\n")
    assert memory.resident() == (2 * MIB, 4 * MIB)
    status.write_text("VmHWM:\t 3072 kB\nVmRSS:\t  1024 kB\n")
    assert memory.resident() == (MIB, 4 * MIB), "the peak fell without a reset"
    memory.reset_peak()
    assert memory.resident() == (MIB, 3 * MIB), "the reset was forgotten"


def test_free_and_total_are_the_kernels(cpu):
    free, total = cpu.mem_get_info()
    assert 0 < free <= total, "more is free than there is"
    assert total <= from_meminfo("MemTotal"), "more memory than the machine has"
    assert free <= from_meminfo("MemAvailable") + 256 * MIB, "more is free than the kernel says"


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        ("max", 3 * MIB, (600 * MIB, 1000 * MIB)),
        (400 * MIB, 100 * MIB, (300 * MIB, 400 * MIB)),
        (900 * MIB, 100 * MIB, (600 * MIB, 900 * MIB)),
        (400 * MIB, 500 * MIB, (0, 400 * MIB)),
        (5000 * MIB, 100 * MIB, (600 * MIB, 1000 * MIB)),
    ],
)
def test_a_container_limits_free_and_total(monkeypatch, tmp_path, limit, used, expected):
    files = {
        "proc/meminfo": f"MemTotal: {1000 * 1024} kB\nMemAvailable: {600 * 1024} kB\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "36 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/memory.max": f"{limit}\n",
        "sys/fs/cgroup/memory.current": f"{used}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "ROOT", Tree(tmp_path))
    assert memory.free_and_total() == expected


def test_empty_cache_gives_heap_memory_back(cpu):
    # Blocks below the C library's mmap threshold stay in its heap, held by one on top of them. They
    # are written: of zeros, only those where the heap was used before would be resident.
    blocks = [b"x" * (64 * 1024) for _ in range(1000)]
    top = b"x" * (64 * 1024)
    full = cpu.memory_allocated()
    del blocks
    cpu.empty_cache()
    assert cpu.memory_allocated() <= full - 32 * MIB, "freed heap memory was not given back"
    del top


def test_the_generator_is_torchs(cpu):
    cpu.manual_seed(1234)
    assert cpu.initial_seed() == torch.initial_seed() == 1234
    ours = torch.rand(5)
    torch.manual_seed(1234)
    assert torch.equal(ours, torch.rand(5)), "manual_seed is not torch's"
    state = cpu.get_rng_state()
    first = torch.rand(5)
    cpu.set_rng_state(state)
    assert torch.equal(first, torch.rand(5)), "the state does not bring the numbers back"
    assert state.dtype == torch.uint8
    assert state.dim() == 1
    seeds = {cpu.seed() for _ in range(8)}
    assert len(seeds) == 8, "seed() is not random"
    assert cpu.initial_seed() in seeds
    other = torch.Generator()
    other.manual_seed(cpu.initial_seed())
    assert torch.equal(torch.rand(3, generator=other), torch.rand(3)), "seed() lies about its seed"


def test_autocast_really_changes_the_dtype(cpu):
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    with cpu.autocast():
        assert (a @ b).dtype == torch.bfloat16, "the CPU's default autocast dtype is bfloat16"
    with cpu.autocast(torch.float16):
        assert (a @ b).dtype == torch.float16
    with cpu.autocast(enabled=False):
        assert (a @ b).dtype == torch.float32
    assert (a @ b).dtype == torch.float32, "autocast outlives its block"

    @cpu.autocast(dtype=torch.bfloat16)
    def product():
        return a @ b

    assert product().dtype == torch.bfloat16, "autocast does not work as a decorator"


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_with_enabled_first_says_how_to_write_it(cpu, enabled):
    with pytest.raises(TypeError, match=f"write enabled={enabled}"):
        cpu.autocast(enabled)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn])
def test_autocast_in_what_torch_ignores_is_refused(cpu, dtype):
    with pytest.raises(ValueError, match=f"float16 or bfloat16, not in {dtype}"):
        cpu.autocast(dtype)
    with cpu.autocast(torch.float32, enabled=False):
        pass


def test_the_grad_scaler_scales_and_skips(cpu):
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = cpu.GradScaler(init_scale=1024.0)
    scaler.scale((weight * 3).sum()).backward()
    assert weight.grad.item() == 3 * 1024, "the loss was not scaled"
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == pytest.approx(0.5), "the step did not use the unscaled gradient"
    optimizer.zero_grad()
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == pytest.approx(0.5), "a step with infinite gradients was not skipped"
    assert scaler.get_scale() == 512.0, "the scale was not lowered"
    assert not cpu.GradScaler(enabled=False).is_enabled()
    assert cpu.GradScaler(128.0).get_scale() == 128.0, "torch's first argument is the scale"


def test_events_order_and_time(cpu):
    start, end = cpu.Event(enable_timing=True), cpu.Event(enable_timing=True)
    start.record()
    threading.Event().wait(0.02)  # allowed: a pause that is measured
    end.record()
    end.synchronize()
    assert start.query(), "recorded work is done"
    assert end.query(), "recorded work is done"
    assert start.elapsed_time(end) >= 20.0, "elapsed_time is in milliseconds"
    assert start.elapsed_time(end) == -end.elapsed_time(start), "the order gives the sign"
    assert start.elapsed_time(start) == 0.0


def test_events_raise_what_torch_raises(cpu):
    # the messages and types are those of c10/cuda/CUDAEvent.h: TORCH_CHECK_VALUE is a ValueError
    timed, plain = cpu.Event(enable_timing=True), cpu.Event()
    timed.record()
    plain.record()
    for one, other in ((timed, plain), (plain, timed), (plain, plain)):
        with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
            one.elapsed_time(other)
    with pytest.raises(ValueError, match="must be recorded before calculating elapsed time"):
        timed.elapsed_time(cpu.Event(enable_timing=True))
    assert cpu.Event().query() is True, "an event that was never recorded is done, as in torch"
    cpu.Event().synchronize()


def test_a_block_of_no_stream_is_of_the_one_that_it_finds(cpu):
    block, side = cpu.stream(None), cpu.Stream()
    with cpu.stream(side), block:
        assert cpu.current_stream() is side, "the block has the stream of where it was made"


def test_a_block_of_no_stream_restores_none_as_in_torch(cpu):
    side = cpu.Stream()
    with cpu.stream(cpu.current_stream()):
        with cpu.stream(None):
            cpu.set_stream(side)
        assert cpu.current_stream() is side


def test_an_event_between_processes_is_unsupported(cpu):
    with pytest.raises(Unsupported, match="between processes"):
        cpu.Event(interprocess=True)


def test_streams_are_used_as_torchs(cpu):
    default = cpu.current_stream()
    side = cpu.Stream()
    assert side is not default
    side.wait_stream(default)
    with cpu.stream(side) as entered:
        assert cpu.current_stream() is side, "the block does not run on the stream"
        assert entered is None or entered is side
        event = side.record_event()
        with cpu.stream(None):
            assert cpu.current_stream() is side, "None changed the stream"
        with cpu.stream(default):
            assert cpu.current_stream() is default, "blocks do not nest"
        assert cpu.current_stream() is side, "leaving an inner block left the outer one"
    assert cpu.current_stream() is default, "leaving the block did not restore the stream"
    default.wait_event(event)
    event.wait(default)
    event.wait()
    again = side.record_event(event)
    assert again is event, "record_event returned another event than it recorded"
    side.synchronize()
    cpu.synchronize()
    assert side.query()


def test_a_stream_block_that_raises_restores_the_stream(cpu):
    default = cpu.current_stream()
    with pytest.raises(ZeroDivisionError), cpu.stream(cpu.Stream()):
        raise ZeroDivisionError
    assert cpu.current_stream() is default


def test_each_thread_has_its_own_current_stream(cpu):
    inside, leave = threading.Event(), threading.Event()
    side, seen = cpu.Stream(), []

    def other():
        with cpu.stream(side):
            seen.append(cpu.current_stream())
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    try:
        assert cpu.current_stream() is not side, "one thread's block moved another's work"
    finally:
        leave.set()
        thread.join(60)
    assert seen == [side]


def traced(tmp_path: Path, work) -> list[str]:
    """The names of the events that torch's profiler wrote while ``work`` ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    file = tmp_path / "trace.json"
    profile.export_chrome_trace(str(file))
    return [event.get("name") for event in json.loads(file.read_text())["traceEvents"]]


def test_annotations_appear_in_torchs_trace(cpu, tmp_path):
    def work():
        with cpu.annotate("portagpu-forward"):
            torch.ones(4).sum()
        cpu.range_push("portagpu-range")
        cpu.range_pop()

    names = traced(tmp_path, work)
    assert "portagpu-forward" in names, "annotate is not in the trace"
    assert "portagpu-range" in names, "range_push and range_pop are not in the trace"


def test_ranges_nest_and_are_counted(cpu):
    assert [cpu.range_push(name) for name in "abc"] == [0, 1, 2], "the depth counts from 0"
    assert [cpu.range_pop() for _ in "abc"] == [2, 1, 0], "a pop returns the depth it ended"
    with pytest.raises(IndexError, match="no range open"):
        cpu.range_pop()


def test_ranges_belong_to_their_thread(cpu):
    cpu.range_push("main")
    depths, errors = [], []

    def other():
        try:
            cpu.range_pop()
        except IndexError as error:
            errors.append(error)
        depths.append(cpu.range_push("other"))
        depths.append(cpu.range_pop())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(60)
    assert errors, "a thread closed another thread's range"
    assert depths == [0, 0], "a thread counts another thread's ranges"
    assert cpu.range_pop() == 0


@pytest.mark.parametrize(
    ("capability", "call"),
    [
        (Capability.GRAPHS, lambda cpu: cpu.Graph()),
        (Capability.PINNED_MEMORY, lambda cpu: cpu.pin(torch.ones(1))),
    ],
)
def test_what_is_not_claimed_raises_unsupported(cpu, capability, call):
    assert capability not in cpu.capabilities
    with pytest.raises(Unsupported, match="the cpu backend") as caught:
        call(cpu)
    assert isinstance(caught.value, NotImplementedError), "generic code catches the builtin"
    assert isinstance(caught.value, pg.PortagpuError)


def test_the_container_is_looked_up_once_a_second(monkeypatch):
    looked, now = [], [7.0]
    real = memory.read_cgroup
    monkeypatch.setattr(memory, "read_cgroup", lambda tree: (looked.append(tree), real(tree))[1])
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    memory._container.cache_clear()
    for now[0] in (7.0, 7.5, 7.9, 8.1, 8.2):
        free, total = memory.free_and_total()
        assert 0 < free <= total
    assert len(looked) == 2, f"five questions in two seconds looked {len(looked)} times"


def test_ddp_takes_the_device_ids(cpu, tmp_path):
    assert cpu.comm.device_ids is None
    torch.distributed.init_process_group(
        cpu.comm.init_string, init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(2, 2), device_ids=cpu.comm.device_ids
        )
        model(torch.ones(1, 2)).sum().backward()
        assert model.module.weight.grad is not None
        # scripts compare this with the name, and "cpu:gloo" makes torch warn about hooks
        assert torch.distributed.get_backend() == cpu.comm.c10d_name == "gloo"
    finally:
        torch.distributed.destroy_process_group()


def test_support_is_of_a_dtype(cpu):
    assert cpu.precision.support(torch.uint64) is pg.Support.NONE
    with pytest.raises(TypeError, match=r"of a torch\.dtype, not of 'float32'"):
        cpu.precision.support("float32")


def test_precision_says_what_torch_does(cpu):
    for dtype, support in cpu.precision.table.items():
        tensor = torch.ones(4, 4).to(dtype)
        try:
            worked = torch.mm(tensor, tensor) is not None if dtype != torch.bool else True
        except (NotImplementedError, RuntimeError):
            worked = False
        claimed = support in {pg.Support.NATIVE, pg.Support.EMULATED}
        assert worked or not claimed, f"{dtype} is {support} but torch does not multiply it"
    assert cpu.precision.support(torch.bfloat16) in {pg.Support.NATIVE, pg.Support.EMULATED}
    assert cpu.is_bf16_supported() is True
    native = cpu.precision.support(torch.bfloat16) is pg.Support.NATIVE
    assert cpu.is_bf16_supported(including_emulation=False) is native
    assert cpu.precision.fp8 is None, "the CPU backend claims fp8 instructions of no CPU"


def test_launches_fit_the_cpu(cpu):
    launch = cpu.sizing.launch(1000)
    assert launch.block == 1, "a core runs one thread"
    assert launch.grid == min(1000, cpu.get_device_properties().multi_processor_count)


def test_telemetry_is_named_with_units(cpu):
    for name, value in cpu.plugin.telemetry(0).items():
        assert isinstance(value, float)
        assert name.endswith(("_mhz", "_c", "_w", "_count")), f"{name} states no unit"


def test_a_handle_describes_itself(cpu):
    assert repr(cpu).startswith("<cpu backend on cpu: ")
    assert cpu == pg.backend("cpu")
    assert hash(cpu) == hash(pg.backend("cpu"))
    assert cpu.versions["torch"] == torch.__version__


def test_copies_of_a_configuration_keep_the_handle(cpu):
    assert copy.copy({"gpu": cpu})["gpu"] is cpu
