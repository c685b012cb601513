"""Memory: torch's allocator listed, recorded, divided into pools and limited, or refused."""

from __future__ import annotations

import base64
from multiprocessing.reduction import ForkingPickler

import portagpu as pg
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case

ALLOCATOR = Capability.ALLOCATOR
CALLS = ("method", "function")
_MIB = 1 << 20


def _source(gpu, call):
    return gpu if call == "method" else pg


def _listed_bytes(snapshot, index):
    return sum(segment["total_size"] for segment in snapshot if segment["device"] == index)


def _holds(snapshot, index, tensor):
    """Whether the tensor lies in a segment that the snapshot lists for the device."""
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    return any(
        each["address"] <= begin and end <= each["address"] + each["total_size"]
        for each in snapshot
        if each["device"] == index
    )


@case(
    "memory/snapshot-lists-what-is-held",
    unaltered=("caching",),
    spec="A snapshot of the allocator lists at least as much memory as a live tensor has.",
    capability=ALLOCATOR,
    covers=("Backend.memory_snapshot", "portagpu.memory_snapshot"),
    params={"call": CALLS},
)
def test_snapshot_lists_what_is_held(gpu, torch, call):
    held = torch.ones(8 * _MIB, dtype=torch.uint8, device=gpu.device)
    snapshot = _source(gpu, call).memory_snapshot()
    listed, total = _listed_bytes(snapshot, gpu.index), gpu.mem_get_info()[1]
    assert listed >= held.nbytes, f"a snapshot lists {listed} bytes while {held.nbytes} are live"
    assert listed <= total, f"a snapshot lists {listed} bytes of a device that has {total}"
    assert _holds(snapshot, gpu.index, held), "no segment of the snapshot has a tensor that is live"


@case(
    "memory/history-is-dumped",
    unaltered=("caching",),
    spec="What was recorded of the allocator is written to the file that was named.",
    capability=ALLOCATOR,
    covers=(
        "Backend.record_memory_history",
        "Backend.dump_memory_snapshot",
        "portagpu.record_memory_history",
        "portagpu.dump_memory_snapshot",
    ),
    params={"call": CALLS},
)
def test_history_is_dumped(gpu, torch, tmp_path, call):
    source = _source(gpu, call)
    file = tmp_path / "snapshot.pickle"
    source.record_memory_history(max_entries=1000)
    try:
        torch.ones(_MIB, device=gpu.device)
        source.dump_memory_snapshot(file)
    finally:
        source.record_memory_history(None)
    # the keys of torch.cuda.memory._snapshot: pytorch v2.13.0, torch/cuda/memory.py
    missing = [key for key in (b"segments", b"device_traces") if key not in file.read_bytes()]
    assert not missing, f"the dump of the history has no {missing}"


@case(
    "memory/pool-serves-its-block",
    unaltered=("caching",),
    spec="Memory that is allocated in a pool's block is the pool's, and holds what was written.",
    capability=ALLOCATOR,
    covers=("Backend.MemPool", "Backend.use_mem_pool", "portagpu.MemPool", "portagpu.use_mem_pool"),
    params={"call": CALLS},
)
def test_pool_serves_its_block(gpu, torch, call):
    source = _source(gpu, call)
    pool = source.MemPool()
    with source.use_mem_pool(pool):
        inside = torch.full((8 * _MIB,), 7, dtype=torch.uint8, device=gpu.device)
    outside = torch.full((8 * _MIB,), 9, dtype=torch.uint8, device=gpu.device)
    snapshot = source.memory_snapshot(pool.id)
    listed = _listed_bytes(snapshot, gpu.index)
    assert listed >= inside.nbytes, f"the pool has {listed} bytes of {inside.nbytes}"
    assert _holds(snapshot, gpu.index, inside), "the pool has no memory of a tensor made in it"
    assert not _holds(snapshot, gpu.index, outside), "the pool has a tensor made outside of it"
    found = int(inside.sum()) // inside.numel(), int(outside.sum()) // outside.numel()
    assert found == (7, 9), f"the tensors in the pool and outside hold {found}, not (7, 9)"


@case(
    "memory/fraction-is-a-limit",
    unaltered=("caching",),
    spec="Above the fraction of memory that a process was given, memory is out.",
    capability=ALLOCATOR,
    covers=(
        "Backend.set_per_process_memory_fraction",
        "portagpu.set_per_process_memory_fraction",
    ),
    params={"call": CALLS},
)
def test_fraction_is_a_limit(gpu, torch, call):
    limit = _source(gpu, call).set_per_process_memory_fraction
    limit(1.0)
    gpu.empty_cache()
    total = gpu.mem_get_info()[1]
    error = None
    limit((gpu.memory_reserved() + 64 * _MIB) / total)
    try:
        torch.empty(256 * _MIB, dtype=torch.uint8, device=gpu.device)
    except RuntimeError as raised:
        error = raised
    finally:
        limit(1.0)
    assert error is not None, "256 MiB were allocated with 64 MiB left of the fraction"
    assert gpu.is_oom(error), f"above the fraction it raises {error!r}"


@case(
    "memory/summary-is-a-text",
    spec="memory_summary() is a text of several lines for people.",
    covers=("Backend.memory_summary", "portagpu.memory_summary"),
    params={"call": CALLS},
)
def test_summary_is_a_text(backend, call):
    text = _source(backend, call).memory_summary()
    assert isinstance(text, str), f"memory_summary() is a {type(text).__name__}"
    assert len(text.splitlines()) > 2, f"memory_summary() says no more than {text!r}"


def _write_sevens(rank, handle):
    import torch

    torch.multiprocessing.set_sharing_strategy("file_system")
    # what this process's own parent wrote
    shared = ForkingPickler.loads(base64.b64decode(handle))
    shared.fill_(7.0)
    rank.gpu.synchronize()


@case(
    "memory/shared-with-a-child",
    spec="What a child process writes into a tensor that was handed to it is seen by its parent.",
    capability=Capability.IPC,
    timeout_s=120.0,
)
def test_shared_with_a_child(gpu, torch, in_child):
    gpu.ipc_collect()
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        mine = torch.zeros(1000, device=gpu.device)
        handle = base64.b64encode(ForkingPickler.dumps(mine)).decode()
        done = in_child(_write_sevens, handle=handle)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert done.ok, f"a child was handed a tensor, and {done.sentence}"
    found = sorted(set(mine.cpu().tolist()))
    assert found == [7.0], f"a child wrote sevens, and its parent sees {found}"
