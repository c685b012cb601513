"""Collectives: the library, what it claims, and ranks that know themselves.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from dataclasses import replace

from portagpu.base.errors import Unsupported
from portagpu.devices.collectives import tuning
from portagpu.devices.collectives.cost import fit_line
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import NotClaimed, case, refused
from portagpu.suites.conformance.ranks import (
    WORLDS,
    check_each_rank,
    json_values,
    payload,
    rank_tensor,
    total,
)

COLLECTIVES = Capability.COLLECTIVES
COMPOSED = {
    "chunks": "chunks-2",
    "shares": "reduce_scatter+all_gather",
    "gather": "all_gather+sum",
}
"""Ways to sum without the library's own call for it."""


def _rank_identity(rank):
    import torch.distributed as dist

    return [dist.get_rank(), dist.get_world_size(), dist.is_initialized(), dist.get_backend()]


@case(
    "collectives/ranks-know-themselves",
    spec="Every rank knows its number and the number of ranks, over the library that is claimed.",
    capability=COLLECTIVES,
    covers=("Comm.c10d_name",),
    traps=("C10",),
    params={"n": WORLDS},
)
def test_ranks_know_themselves(gpu, world, n):
    for rank, (number, size, ready, library) in enumerate(world(n, _rank_identity)):
        assert (number, size, ready) == (rank, n, True), f"rank {rank} is {number} of {size}"
        named = library.rpartition(":")[2]
        assert named == gpu.comm.c10d_name, f"rank {rank} runs on {library}"


@case(
    "collectives/library-is-named",
    spec="The library has a name, and its version is a text or unknown.",
    capability=COLLECTIVES,
    covers=("Backend.comm", "Comm.library", "Comm.version"),
    traps=("C05",),
)
def test_library_is_named(comm):
    assert comm.library.strip(), "the communication library has no name"
    version = comm.version
    assert version is None or version.strip(), "an unknown version is empty instead of None"


@case(
    "collectives/library-is-the-vendors",
    spec="The library has the name of the one that runs, not the one that torch uses for every "
    "vendor.",
    capability=COLLECTIVES,
    covers=("Comm.library",),
    traps=("C05",),
)
def test_library_is_the_vendors(backend, comm):
    others = {"nvidia": ("rccl",), "amd": ("nccl",), "cpu": ("nccl", "rccl")}
    alien = comm.library.lower() in others.get(backend.arch.vendor, ())
    assert not alien, f"a {backend.arch.vendor} device communicates over {comm.library}"


@case(
    "collectives/library-moves-this-device",
    spec="The communication library moves tensors of this device's type.",
    capability=COLLECTIVES,
    covers=("Comm.device_type",),
)
def test_library_moves_this_device(backend, comm):
    moves = comm.device_type
    assert moves == backend.device.type, (
        f"the library moves {moves}, the device is {backend.device.type}"
    )


@case(
    "collectives/init-string",
    spec="The string for init_process_group names a library for this device and for the CPU.",
    capability=COLLECTIVES,
    covers=("Comm.init_string",),
    traps=("C10",),
)
def test_init_string(backend, torch):
    config = torch.distributed.distributed_c10d.BackendConfig(
        torch.distributed.Backend(backend.comm.init_string)
    )
    found = config.get_device_backend_map()
    assert found.get(backend.device.type) == backend.comm.c10d_name, (
        f"{backend.comm.init_string}: {found}"
    )
    assert "cpu" in found, f"{backend.comm.init_string} leaves CPU tensors without a library"


@case(
    "collectives/reduce-ops-exist",
    spec="Every reduce op that is claimed is one that torch has for floating-point tensors.",
    capability=COLLECTIVES,
    covers=("Comm.reduce_ops",),
)
def test_reduce_ops_exist(comm, torch):
    claimed = sorted(comm.reduce_ops)
    strange = [name for name in claimed if not hasattr(torch.distributed.ReduceOp, name)]
    assert not strange, f"torch has no reduce op {', '.join(strange)}"
    # torch's documentation of ReduceOp: bits have no floats, and PREMUL_SUM needs a factor
    other = [name for name in claimed if name not in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")]
    assert not other, f"{', '.join(other)} is claimed, which floating-point tensors do not have"


@case(
    "collectives/device-ids",
    spec="device_ids, output_device and device_id name this device, or are None on a CPU.",
    capability=COLLECTIVES,
    covers=("Comm.device_ids", "Comm.output_device", "Comm.device_id"),
)
def test_device_ids(backend, comm):
    found = comm.device_ids, comm.output_device, comm.device_id
    own = [backend.index], backend.index, backend.device
    expected = (None, None, None) if backend.device.type == "cpu" else own
    assert found == expected, f"device_ids, output_device and device_id are {found}"


@case(
    "collectives/engines-are-named",
    spec="What torch may build for the library's name has words and variables, and the device has "
    "the identity of its handle: its UUID, else its PCI address.",
    capability=COLLECTIVES,
    covers=("Comm.engines", "Comm.engine_variables", "Comm.device_identity"),
)
def test_engines_are_named(backend, comm):
    said = [*comm.engines, *comm.engines.values(), *comm.engine_variables]
    wrong = [each for each in said if not (isinstance(each, str) and each.strip())]
    assert not wrong, f"engines and their variables are named {wrong}"
    own = backend.uuid or backend.pci
    assert comm.device_identity == own, f"the device is {comm.device_identity}, its handle {own}"


def _joins_twice(rank):
    import torch.distributed as dist

    # the ranks meet where the group that they came with has met
    store = dist.group.WORLD.get_group_store()
    rank.broke_group = True
    rank.gpu.comm.shutdown()
    found = []
    for _ in range(2):
        joined = rank.gpu.comm.init(
            rank=rank.rank, world_size=rank.world, store=store, timeout_s=30.0
        )
        value = rank_tensor(rank, payload(rank.rank))
        dist.all_reduce(value)
        found.append(
            [joined.rank, joined.world_size, rank.gpu.comm.get_backend(), json_values(value)]
        )
        joined.shutdown()
        found.append([joined.engine.strip(), dist.is_initialized()])
    return found


@case(
    "collectives/init-and-shutdown",
    spec="init() joins the ranks over the library that is claimed and names the engine; shutdown() "
    "leaves no group, so that a second init() joins them again.",
    capability=COLLECTIVES,
    covers=("Comm.init", "Comm.shutdown", "Comm.engines"),
)
def test_init_and_shutdown(gpu, world):
    for rank, found in enumerate(world(2, _joins_twice)):
        joined, left, again, left_again = found
        expected = [rank, 2, gpu.comm.c10d_name, total(2)]
        for what in (joined, again):
            assert what == expected, f"rank {rank} is {what}, not {expected}"
        for engine, still in (left, left_again):
            assert not still, f"rank {rank} has a group after shutdown()"
            known = engine.partition(",")[0] in [*gpu.comm.engines.values()]
            assert engine and (known or not gpu.comm.engines), f"the engine is {engine!r}"


def _group_libraries(rank):
    import torch.distributed as dist

    dist.barrier(device_ids=rank.gpu.comm.device_ids)
    both = dist.new_group(backend=rank.gpu.comm.init_string)
    return [rank.gpu.comm.get_backend(), rank.gpu.comm.get_backend(both)]


@case(
    "collectives/library-of-a-group",
    spec="get_backend() is the name of the library that moves this device's tensors, whatever else "
    "a group has; barrier() takes the device_ids.",
    capability=COLLECTIVES,
    covers=("Comm.get_backend", "Comm.device_ids", "Comm.c10d_name"),
)
def test_library_of_a_group(gpu, world):
    for rank, found in enumerate(world(2, _group_libraries)):
        assert found == [gpu.comm.c10d_name] * 2, f"rank {rank}: the groups run on {found}"


@case(
    "collectives/local-environment",
    spec="The environment for ranks of one machine is text, and the ranks have it.",
    covers=("Comm.local_env",),
    capability=COLLECTIVES,
)
def test_local_environment(gpu, world):
    wanted = dict(gpu.comm.local_env or {})
    for rank, found in enumerate(world(2, _rank_environment, names=sorted(wanted))):
        assert found == wanted, f"rank {rank} has the environment {found}, not {wanted}"


def _rank_environment(rank, names):
    import os

    return {name: os.environ.get(name) for name in names}


def _sum_host_tensor(rank):
    import torch
    import torch.distributed as dist

    value = torch.tensor(payload(rank.rank))
    dist.all_reduce(value)
    return value.tolist()


@case(
    "collectives/host-tensors-move-too",
    spec="A tensor on the host is summed over the same group, whatever the device is.",
    capability=COLLECTIVES,
    covers=("Comm.init_string",),
)
def test_host_tensors_move_too(world):
    check_each_rank(world(2, _sum_host_tensor), [total(2)] * 2, "a sum of host tensors")


@case(
    "collectives/no-foreign-tuning",
    spec="The environment for ranks chooses no algorithm, protocol or number of channels, which "
    "two libraries that read the same variable take differently.",
    capability=COLLECTIVES,
    covers=("Comm.local_env",),
    traps=("C03",),
)
def test_no_foreign_tuning(comm):
    tuning = ("ALGO", "PROTO", "CHANNELS", "CTAS", "NTHREADS", "BUFFSIZE", "MSCCL", "DMABUF", "PXN")
    chosen = [name for name in comm.local_env or {} if any(word in name for word in tuning)]
    assert not chosen, f"the environment for ranks sets {', '.join(chosen)}"


@case(
    "collectives/cost-model-is-the-librarys",
    spec="The cost model is of the device's library and names the version of its constants; the "
    "choice is its fastest candidate, with the bus bandwidth that follows from the time. Without a "
    "model the choice raises Unsupported.",
    capability=COLLECTIVES,
    covers=("Plugin.cost_model", "Comm.cost_model", "Comm.target", "Comm.choose"),
)
def test_cost_model_is_the_librarys(backend, comm):
    assert comm.target == backend.target, f"the library's links are of {comm.target}"
    model = backend.plugin.cost_model()
    of = comm.library if model is None else model.library
    assert of == comm.library, f"the model of {of} is for {comm.library}"
    bound = comm.cost_model() if comm.cost_model is not None else None
    assert bound is model, "the device's library has another cost model than its plugin"
    if model is None:
        question = "all_reduce", 64 << 20
        refused(
            lambda: comm.choose(*question, ranks=8, nodes=1), Unsupported, "a choice by nothing"
        )
        return
    try:
        choice = comm.choose("all_reduce", 64 << 20, ranks=8, nodes=1)
    except Unsupported as error:
        raise NotClaimed(f"the model of {model.library} does not answer: {error}") from error
    assert model.version in str(choice.basis), f"{choice.basis} names no version {model.version}"
    times = [each.time_us for each in (choice.best, *choice.alternatives)]
    assert times == sorted(times), f"the fastest is not the choice: {times} us"
    assert 0 < times[0] < 1e9, f"64 MiB take {times[0]} us"
    busbw_gbs = (64 << 20) * 2 * 7 / 8 / times[0] / 1e3
    assert abs(choice.best.busbw_gbs / busbw_gbs - 1) < 1e-6, (
        f"64 MiB in {times[0]} us are {busbw_gbs} GB/s and not {choice.best.busbw_gbs}"
    )


@case(
    "collectives/choice-of-measured-times",
    spec="With measured times the choice has the time on their line, and says that it was measured "
    "and on how many points.",
    capability=COLLECTIVES,
    covers=("Comm.choose",),
)
def test_choice_of_measured_times(comm):
    # by hand: 20 us and 1 us for each 1000 bytes
    line = fit_line("all_reduce", 4, [(1000 * n, 20.0 + n) for n in (1, 10, 100, 1000, 10000)])
    choice = comm.choose("all_reduce", 500_000, ranks=4, nodes=1, measured=line)
    time = choice.best.time_us
    assert abs(time - 520.0) < 0.01, f"500 kB take {time} us on a line where they take 520"
    assert "measured on 5 points" in str(choice.basis), f"the basis is {choice.basis}"


def _profile(comm, way, machine=None):
    """A profile of this device, by hand: 20 us and 1 us for each 1000 bytes."""
    sizes = (1000, 10_000, 100_000, 1_000_000)
    line = fit_line("all_reduce", 2, [(size, 20.0 + size / 1000) for size in sizes])
    points = tuple(
        tuning.Point(size_bytes=size, default_us=1.0, chosen_us=1.0, ratio=1.0, spread=0.0, pairs=0)
        for size in sizes
    )
    chosen = tuning.Candidate(name=way, way=way)
    ranges = (
        tuning.Range(low_bytes=sizes[0], high_bytes=sizes[-1], candidate=chosen, points=points),
    )
    entry = tuning.Entry(
        operation="all_reduce", dtype="float32", ranks=2, nodes=1, ranges=ranges, fit=line
    )
    return tuning.Profile(
        machine=machine or comm.machine,
        stack=comm.stack,
        portagpu="1",
        made="2026-01-01T00:00:00+00:00",
        entries=(entry,),
    )


@case(
    "collectives/profile-is-of-this-device",
    spec="A profile of this device and these versions answers with its times. One of another "
    "device is refused.",
    capability=COLLECTIVES,
    covers=("Comm.machine", "Comm.stack", "Comm.choose"),
)
def test_profile_is_of_this_device(backend, comm):
    units = comm.machine.units
    assert units == backend.sizing.unit_count, f"profiles say that the device has {units} units"
    own = _profile(comm, "call")
    choice = comm.choose("all_reduce", 500_000, ranks=2, nodes=1, profile=own)
    time = choice.best.time_us
    assert abs(time - 520.0) < 0.01, f"500 kB take {time} us by a profile in which they take 520"
    other = _profile(comm, "call", replace(comm.machine, units=units + 1))
    refused(
        lambda: comm.choose("all_reduce", 500_000, ranks=2, nodes=1, profile=other),
        ValueError,
        "a profile of another machine",
    )


def _tuned_sum(rank, way):
    import torch

    comm = rank.gpu.comm
    tuned = comm.tuned(_profile(comm, way))
    tensor = torch.arange(1001, dtype=torch.float32, device=rank.gpu.device) + rank.rank
    taken = tuned.way("all_reduce", tensor.nbytes)
    tuned.all_reduce(tensor)
    return [taken, tensor.tolist()]


@case(
    "collectives/tuned-sum",
    spec="A sum in the way that a profile names is the sum of the library's own call.",
    capability=COLLECTIVES,
    covers=("Comm.tuned",),
    params={"by": tuple(COMPOSED)},
)
def test_tuned_sum(world, by):
    way = COMPOSED[by]
    for rank, (taken, found) in enumerate(world(2, _tuned_sum, way=way)):
        assert taken == way, f"rank {rank} took {taken} and not {way}"
        wrong = next((at for at, value in enumerate(found) if value != 2 * at + 1), None)
        assert wrong is None, f"{way}: rank {rank} got {found[wrong]} at {wrong}"
