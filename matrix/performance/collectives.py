"""Collectives between ranks: bus bandwidth over sizes, the answer of every element checked.

``busbw = S / t * factor`` (``portagpu.facts.nccl_tests.model``); t is the time of the slowest
rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.nccl_tests.model import bus_factor
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.cases import Absent, BenchCase, no_ranks
from portagpu.suites.performance.timing import PACES, Effort

if TYPE_CHECKING:
    import torch

    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice
    from portagpu.suites.performance.timing import WrongValue

OPERATIONS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
)
WITHOUT_PEERS: Final = "collectives/all_reduce_without_p2p"
METRICS: Final = (*(f"collectives/{operation}" for operation in OPERATIONS), WITHOUT_PEERS)

_S: Final = {
    "all_reduce": "the buffer of one rank",
    "all_gather": "what one rank holds afterwards",
    "reduce_scatter": "what one rank holds before",
    "all_to_all": "what one rank sends to all, itself included",
    "broadcast": "the buffer of one rank",
    "reduce": "the buffer of one rank",
}
_MIN_BYTES: Final = 8
"""Bytes at which the time is that of the messages alone; rounded up to an element for each rank."""
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_CHUNK: Final = 1 << 22
_VALUES: Final = 1024
"""Values are whole and below this, so that sums over up to 2**14 ranks are exact in float32."""
_ROOT: Final = 0
_GROWING: Final = frozenset({"all_reduce", "reduce"})
"""In place, so that every further call adds up sums."""


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Every operation over ``world`` ranks and several sizes; the value is that of the largest.

    With the full effort, also each size by itself that the target has an expectation for.
    All-reduce a second time without copies between devices: what is left where a link is down, and
    a check of the network or the host's memory on its way.
    """
    found = []
    for operation in OPERATIONS:
        found.append(_case(device, operation, world, _sizes(device, effort, world)))
        if effort is Effort.FULL:
            stated = _stated_sizes(device, operation, world, target)
            found += [
                _case(device, operation, world, [size], f",{size >> 20}MiB") for size in stated
            ]
    return [*found, _without_peers(device, found[0])]


def _without_peers(device: MeasuredDevice, case: BenchCase) -> BenchCase:
    absent = case.absent
    if absent is None and not device.no_peer_copies:
        reason = f"the {device.backend} backend names no variable that turns such copies off"
        absent = Absent(Verdict.SKIP, reason)
    return replace(
        case,
        id=case.id.replace("all_reduce", "all_reduce_without_p2p"),
        metric=WITHOUT_PEERS,
        environment=device.no_peer_copies,
        absent=absent,
    )


def _case(
    device: MeasuredDevice, operation: str, world: int, sizes: list[int], variant: str = ""
) -> BenchCase:
    factor = bus_factor(operation, world)
    shown = "not applicable" if factor is None else f"{factor:.6g}"
    alone = device.shared and world > 1
    return BenchCase(
        id=f"collectives/{operation}[{world}{variant}]",
        metric=f"collectives/{operation}",
        area="collectives",
        unit="GB/s",
        function="collective",
        arguments={"operation": operation, "sizes": sizes},
        world=world,
        shape={"bytes": sizes[-1], "ranks": world, "dtype": "fp32"},
        axis="" if variant else "size",
        counts=f"S / t x {shown}, S: {_S[operation]}",
        checks="every element on every rank, before and after the timing",
        does_not_show="a network or a link: all ranks share this machine's memory" if alone else "",
        absent=no_ranks(device, world),
    )


def _sizes(device: MeasuredDevice, effort: Effort, world: int) -> list[int]:
    """Total bytes S: whole elements for each rank."""
    if not device.shared:
        quick, full = (
            (_MIN_BYTES, _MIB, 16 * _MIB, 256 * _MIB),
            (_MIN_BYTES, *(4**i * _KIB for i in range(1, 11))),
        )
    else:
        quick, full = (
            (_MIN_BYTES, 64 * _KIB, _MIB, 4 * _MIB),
            (_MIN_BYTES, *(4**i * _KIB for i in range(1, 8))),
        )
    sizes = list(quick if effort is Effort.QUICK else full)
    sizes = [size for size in sizes if _fits(device, size, world)] or sizes[:1]
    unit = 4 * world
    return sorted({-(-size // unit) * unit for size in sizes})


def _stated_sizes(
    device: MeasuredDevice, operation: str, world: int, target: Target | None
) -> list[int]:
    """The sizes that ``target`` has an expectation for, which fit the device's memory."""
    expected = target.expectations(f"collectives/{operation}") if target is not None else ()
    sizes = {each.size_bytes for each in expected if each.ranks == world and each.size_bytes}
    return sorted(size for size in sizes if size % (4 * world) == 0 and _fits(device, size, world))


def _fits(device: MeasuredDevice, size: int, world: int) -> bool:
    """Whether a buffer, a result of the same size and what the check needs fit the memory."""
    sharing = world if device.shared else 1
    return device.free_bytes is None or 4 * size * sharing <= device.free_bytes


@dataclass(slots=True)
class Exchange:
    """The buffers of one collective at one size; one tensor if the collective works in place."""

    operation: str
    rank: int
    world: int
    total: int
    """Elements of S."""
    sent: torch.Tensor
    received: torch.Tensor
    kept: torch.Tensor | None
    """A copy of what was sent, if the operation overwrites it with larger values."""

    @classmethod
    def make(cls, rank: Rank, operation: str, size: int) -> Exchange:
        """Buffers for ``size`` bytes in total, not filled yet."""
        import torch

        total, share = size // 4, size // 4 // rank.world
        make = partial(torch.empty, dtype=torch.float32, device=rank.gpu.device)
        sent = make(share if operation == "all_gather" else total)
        received = sent
        if operation in ("all_gather", "all_to_all"):
            received = make(total)
        elif operation == "reduce_scatter":
            received = make(share)
        kept = torch.empty_like(sent) if operation in _GROWING else None
        return cls(operation, rank.rank, rank.world, total, sent, received, kept)

    def fill(self) -> None:
        """Write this rank's values into ``sent``, and NaN into ``received``."""
        self.received.fill_(float("nan"))
        if self.operation == "broadcast" and self.rank != _ROOT:
            return
        for start in range(0, self.sent.numel(), _CHUNK):
            part = self.sent[start : start + _CHUNK]
            part.copy_(rank_values(self.rank, start, part.numel(), part.device))
        if self.kept is not None:
            self.kept.copy_(self.sent)

    def restore(self) -> None:
        """Write the original values into ``sent`` again."""
        if self.kept is not None:
            self.sent.copy_(self.kept)

    def first_wrong(self) -> WrongValue | None:
        """The first wrong element; None if all are right."""
        from portagpu.suites.performance.timing import WrongValue
        from portagpu.train.exact.judge import differences

        if self.operation == "reduce" and self.rank != _ROOT:
            return None
        for start in range(0, self.received.numel(), _CHUNK):
            part = self.received[start : start + _CHUNK]
            expected = self._expected_values(start, part.numel(), part.device)
            # compared as numbers, which is cheaper; the bits are read where they differ
            if not bool((part != expected).any()):
                continue
            if (wrong := differences(part, expected)) is not None:
                index = int(wrong.places[0])
                found, right = float(part[index]), float(expected[index])
                sentence = f"element {start + index} is {found:g} instead of {right:g}"
                return WrongValue(sentence, wrong.digest())
        return None

    def _expected_values(self, start: int, count: int, device: torch.device) -> torch.Tensor:
        """``count`` elements of the right answer from ``start`` on, without communication."""
        import torch

        if self.operation == "broadcast":
            return rank_values(_ROOT, start, count, device)
        if self.operation in ("all_reduce", "reduce", "reduce_scatter"):
            offset = start
            if self.operation == "reduce_scatter":
                offset += self.rank * self.received.numel()
            return sum(
                (rank_values(rank, offset, count, device) for rank in range(1, self.world)),
                start=rank_values(0, offset, count, device),
            )
        share = self.total // self.world
        skip = self.rank * share if self.operation == "all_to_all" else 0
        parts = []
        while count:
            rank, inside = divmod(start, share)
            length = min(count, share - inside)
            parts.append(rank_values(rank, skip + inside, length, device))
            start, count = start + length, count - length
        return torch.cat(parts)


def rank_values(rank: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """The whole numbers that ``rank`` sends at ``start`` and after: a hash of place and rank.

    So every rank knows what the others sent. The constants are Knuth's multiplicative hash
    (2**32 / golden ratio) and a prime.
    """
    import torch

    place = torch.arange(start, start + count, dtype=torch.int64, device=device)
    mixed = (place + 1) * 2654435761 + (rank + 1) * 40503
    return ((mixed ^ (mixed >> 15)) % _VALUES).to(torch.float32)


def collective(rank: Rank, *, effort: str, operation: str, sizes: list[int]) -> dict[str, Any]:
    """Check and time ``operation`` at each of ``sizes`` bytes; all ranks make the same calls."""
    from portagpu.suites.performance.timing import RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    factor = bus_factor(operation, rank.world) or 0.0
    reading.notes = {"bus_factor": factor}
    for size in sizes:
        exchange = Exchange.make(rank, operation, size)
        _check_answer(rank, exchange, reading, size)
        rank.step(f"timing {operation} of {size} bytes")
        timing = measure(
            stopwatch,
            partial(perform, exchange),
            PACES[Effort(effort)],
            prepare=partial(_restore_and_meet, rank, exchange),
            agree=partial(max_over_ranks, rank),
            most_repeats=_most_repeats(operation, rank.world),
        )
        _check_answer(rank, exchange, reading, size)
        reading.keep(timing, x=size, work=size * factor)
    return reading.to_json()


def _check_answer(rank: Rank, exchange: Exchange, reading: Any, size: int) -> None:
    """Call once and check the answer. A wrong one is noted, so that the ranks stay in step."""
    rank.step(f"checking {exchange.operation} of {size} bytes")
    exchange.fill()
    perform(exchange)
    rank.gpu.synchronize()
    if wrong := exchange.first_wrong():
        reading.reject(wrong, f"{exchange.operation} of {size} bytes")


def _restore_and_meet(rank: Rank, exchange: Exchange) -> None:
    exchange.restore()
    max_over_ranks(rank, 0.0)


def _most_repeats(operation: str, world: int) -> int:
    """The most calls in place: each multiplies sums by ``world``, and they stay below 2**100."""
    return max(1, int(100 / math.log2(world))) if operation in _GROWING else 1000


def max_over_ranks(rank: Rank, value: float) -> float:
    """The largest ``value`` of all ranks, over the host. It is a barrier too."""
    import torch
    import torch.distributed as dist

    rank.gpu.synchronize()
    box = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return float(box)


def perform(exchange: Exchange) -> None:
    """One call of the collective."""
    import torch.distributed as dist

    sent, received = exchange.sent, exchange.received
    if exchange.operation == "all_reduce":
        dist.all_reduce(sent)
    elif exchange.operation == "all_gather":
        dist.all_gather_into_tensor(received, sent)
    elif exchange.operation == "reduce_scatter":
        dist.reduce_scatter_tensor(received, sent)
    elif exchange.operation == "all_to_all":
        dist.all_to_all_single(received, sent)
    elif exchange.operation == "broadcast":
        dist.broadcast(sent, src=_ROOT)
    else:
        dist.reduce(sent, dst=_ROOT)
