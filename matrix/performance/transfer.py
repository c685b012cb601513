"""Bandwidth between the host's memory and the device's, each way and both at once, pageable and
page-locked, and between the devices of one machine.

The bytes of each buffer are counted once. On a device whose memory is the host's, such as a CPU,
no link is crossed: it is a copy from host memory to host memory, and the results say so.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.cases import Absent, BenchCase, cache_sentence, large_array_bytes
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    import torch

    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice

METRICS: Final = ("transfer/h2d", "transfer/d2h", "transfer/both", "transfer/p2p")

_SEED: Final = 20240302
_MIB: Final = 1 << 20
_MAX_BYTES: Final = 512 * _MIB


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Each direction and both from pageable and from page-locked memory, over several sizes, and
    every device to every other."""
    del world, target
    largest = min(large_array_bytes(device, arrays=2, effort=effort), _MAX_BYTES)
    steps = (64, 8, 1) if effort is Effort.QUICK else (1024, 256, 64, 16, 4, 2, 1)
    sizes = sorted({max(largest // step, 64 << 10) for step in steps})
    found = [
        _case(device, metric, memory, sizes)
        for metric in METRICS[:3]
        for memory in ("pageable", "pinned")
    ]
    return [*found, _peers_case(device, sizes[-1])]


def _peers_case(device: MeasuredDevice, size: int) -> BenchCase:
    absent = None
    if device.shared:
        absent = Absent(Verdict.SKIP, f"all ranks share {device.name}: there is no other device")
    elif device.count < 2:
        absent = Absent(Verdict.SKIP, "this machine shows one device")
    return BenchCase(
        id="transfer/p2p",
        metric="transfer/p2p",
        area="transfer",
        unit="GB/s",
        function="between_devices",
        arguments={"size": size, "devices": device.count},
        algorithm="copy",
        shape={"bytes": size},
        counts="the bytes of the buffer, once; of the slowest pair and direction",
        checks="every byte of every pair",
        does_not_show="several pairs at once",
        absent=absent,
        time_factor=max(1.0, device.count * (device.count - 1) / 8),
    )


def _case(device: MeasuredDevice, metric: str, memory: str, sizes: list[int]) -> BenchCase:
    absent = None
    if memory == "pinned" and "pinned-memory" not in device.capabilities:
        absent = Absent(
            Verdict.SKIP, f"the {device.backend} backend claims no page-locked host memory"
        )
    limits = [cache_sentence(device, sizes[-1])]
    if device.shared:
        limits.insert(0, "a link: both ends are host memory, so this is a host-to-host copy")
    return BenchCase(
        id=f"{metric}[{memory}]",
        metric=metric,
        area="transfer",
        unit="GB/s",
        function="both_ways" if metric == "transfer/both" else "transfer",
        arguments={
            **({} if metric == "transfer/both" else {"direction": metric[len("transfer/") :]}),
            "pinned": memory == "pinned",
            "sizes": sizes,
        },
        algorithm=memory,
        shape={"bytes": sizes[-1]},
        axis="transfer size",
        counts="the bytes of both buffers, once"
        if metric == "transfer/both"
        else "the bytes of the buffer, once",
        checks="every byte",
        does_not_show="; ".join(limit for limit in limits if limit),
        absent=absent,
    )


def transfer(
    rank: Rank, *, effort: str, direction: str, pinned: bool, sizes: list[int]
) -> dict[str, Any]:
    """Time copies of each of ``sizes`` bytes, and check what arrived."""
    import torch

    from portagpu.suites.performance.timing import (
        PACES,
        RankSamples,
        Stopwatch,
        first_wrong_byte,
        measure,
    )

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    generator = torch.Generator().manual_seed(_SEED)
    words = torch.empty(-(-max(sizes) // 8), dtype=torch.int64).random_(generator=generator)
    host = words.view(torch.uint8)
    near = rank.gpu.pin(host) if pinned else host
    far = near.to(rank.gpu.device, copy=True)
    for size in sizes:
        rank.step(f"timing {direction} of {size} bytes")
        source, arrived = near[:size], far[:size]
        if direction == "d2h":
            source, arrived = arrived, source
        # the other end keeps the random bytes, so that a copy that does nothing shows
        arrived.bitwise_not_()
        call = partial(move, arrived, source, pinned)
        timing = measure(stopwatch, call, PACES[Effort(effort)])
        rank.gpu.synchronize()
        if wrong := first_wrong_byte(arrived, source):
            reading.reject(wrong, f"{direction} of {size} bytes")
            break
        reading.keep(timing, x=size, work=size)
    return reading.to_json()


def both_ways(rank: Rank, *, effort: str, pinned: bool, sizes: list[int]) -> dict[str, Any]:
    """Time a copy to the device and one from it at the same time, from a thread each."""
    import torch

    from portagpu.suites.performance.timing import (
        PACES,
        RankSamples,
        Stopwatch,
        first_wrong_byte,
        measure,
    )

    gpu = rank.gpu
    stopwatch = Stopwatch(gpu, host=True)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    generator = torch.Generator().manual_seed(_SEED)
    here, there = (
        torch.empty(-(-max(sizes) // 8), dtype=torch.int64).random_(generator=generator)
        for _ in range(2)
    )
    # each way has buffers of its own: (source, destination)
    near = [each.view(torch.uint8) for each in (here, torch.empty_like(there))]
    near = [gpu.pin(each) for each in near] if pinned else near
    ways = [
        (near[0], torch.empty_like(near[0], device=gpu.device)),
        (there.view(torch.uint8).to(gpu.device, copy=True), near[1]),
    ]
    streams = [gpu.Stream() for _ in ways] if "streams" in gpu.capabilities else [None, None]

    def one_way(number: int, size: int) -> None:
        gpu.activate()
        source, arrived = ways[number]
        with gpu.stream(streams[number]) if streams[number] is not None else nullcontext():
            move(arrived[:size], source[:size], pinned)
            if streams[number] is not None:
                streams[number].synchronize()

    with ThreadPoolExecutor(1) as other:

        def call(size: int) -> None:
            waiting = other.submit(one_way, 1, size)
            one_way(0, size)
            waiting.result()

        for size in sizes:
            rank.step(f"timing both ways of {size} bytes")
            for source, arrived in ways:
                arrived[:size].copy_(source[:size]).bitwise_not_()
            gpu.synchronize()
            timing = measure(stopwatch, partial(call, size), PACES[Effort(effort)])
            for name, (source, arrived) in zip(("h2d", "d2h"), ways, strict=True):
                if wrong := first_wrong_byte(arrived[:size], source[:size]):
                    reading.reject(wrong, f"{name} of {size} bytes")
            reading.keep(timing, x=size, work=2 * size)
    return reading.to_json()


def between_devices(rank: Rank, *, effort: str, size: int, devices: int) -> dict[str, Any]:
    """Time a copy from each device to each other one, one pair at a time. No GPU has run it yet."""
    import torch

    from portagpu.base.stats import summarise
    from portagpu.suites.performance.timing import (
        PACES,
        RankSamples,
        Stopwatch,
        first_wrong_byte,
        measure,
    )

    handles = [rank.gpu.plugin.open(index) for index in range(devices)]
    stopwatch = Stopwatch(rank.gpu, host=True)
    reading = RankSamples.start(stopwatch)
    generator = torch.Generator().manual_seed(_SEED)
    words = torch.empty(-(-size // 8), dtype=torch.int64).random_(generator=generator)
    matrix: list[list[float | None]] = [[None] * devices for _ in handles]
    slowest: tuple[float, Any] | None = None
    for source, target in permutations(handles, 2):
        pair = f"{source.index} to {target.index}"
        rank.step(f"timing {pair}")
        source.activate()
        sent = words.view(torch.uint8)[:size].to(source.device, copy=True)
        arrived = torch.empty_like(sent, device=target.device)
        stopwatch = Stopwatch(source, host=True)
        timing = measure(stopwatch, partial(move, arrived, sent, True), PACES[Effort(effort)])
        target.synchronize()
        if wrong := first_wrong_byte(arrived, sent):
            reading.reject(wrong, pair)
            return reading.to_json()
        # as the case's value is taken: the median of rates, not the rate of the median time
        rate = summarise([size / seconds / 1e9 for seconds in timing.seconds]).median
        matrix[source.index][target.index] = rate
        if slowest is None or rate < slowest[0]:
            slowest = rate, timing
    reading.notes = {
        "seed": _SEED,
        "gb_per_s": matrix,
        "peer_access": [
            [one is other or one.can_device_access_peer(other.index) for other in handles]
            for one in handles
        ],
    }
    if slowest is not None:
        reading.keep(slowest[1], x=size, work=size)
    return reading.to_json()


def move(to: torch.Tensor, what: torch.Tensor, pinned: bool) -> None:
    """One copy of ``what`` into ``to``."""
    to.copy_(what, non_blocking=pinned)
