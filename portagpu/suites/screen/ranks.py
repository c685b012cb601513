"""What ranks run: probes in turn, each batch with operands of its own, every result judged.

Needs torch. Ranks report each batch in a step, so that what was judged counts however they end.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import error_line
from portagpu.devices.oom import is_oom
from portagpu.runs.world.rank import load_function
from portagpu.suites.performance.timing import Sampler
from portagpu.suites.screen.tally import AGAIN, BY_UNIT, MAX_PLACES, REPEATS, locate
from portagpu.train.exact.draws import Draws, batch_seed
from portagpu.train.exact.judge import NotExactError, complement, digest
from portagpu.train.exact.units import can_ask, find_units

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from portagpu.runs.world import Rank
    from portagpu.train.exact.judge import Wrong
    from portagpu.train.exact.probe import Probe, Work

_BATCH_S: Final = 0.2
"""How long a batch lasts at most before its next one has no more results."""
_PAUSE_S: Final = 0.02
"""Without load, after each turn of kinds: a change of load is a fault's opportunity."""
_REPEAT_S: Final = 10.0
_MIN_REPEAT_S: Final = 1.0
"""How long the operands of a wrong result are run again, while there is time and after it."""
_READ_S: Final = 0.2
"""Between two readings of clocks, power and temperature."""
_MOVES_MEMORY: Final = frozenset({"copies", "memory", "reductions", "vectors"})
"""Areas whose probes are bound by memory; the others compute. They take turns."""
MEMORY: Final = "memory"
"""The area whose batches have as much of the memory as the time allows."""
_QUICK_PART: Final = 0.25
"""Of the free memory, in a batch of that area."""
_LONG_S: Final = 600.0
_LONG_PART: Final = 0.9
"""The same in a screen of ``_LONG_S`` and more."""
_MEMORY_S: Final = 20.0
"""How long a batch of that area lasts at most: a device that is silent for a minute has hung."""
_RESULT_PART: Final = 1 / 32
"""Of the free memory, a result of another area; operands and what judges them are larger."""
_SHARED_BYTES: Final = 256 << 20
"""Of a device that is the host itself, whose memory is everybody's."""


def catalogue(place: str) -> tuple[Probe, ...]:
    """The probes that "package.module:NAME" or "/path/file.py:NAME" names."""
    found: Any = load_function(place)
    return tuple(found)


@dataclass(slots=True)
class _Slot:
    """A probe on this rank: its next batch, how large it is, and the time that it has had."""

    probe: Probe
    order: int
    batch: int
    """Its next one; -1 is that of the published digest."""
    scale: int = 1
    grows: bool = True
    """Whether its batches may become larger."""
    spent_s: float = 0.0

    @property
    def moves_memory(self) -> bool:
        """Whether it is bound by memory; others compute."""
        return self.probe.area in _MOVES_MEMORY


@dataclass(slots=True, kw_only=True)
class _Share:
    """One rank's share of a screen."""

    rank: Rank
    campaign: int
    published_seed: int
    seconds: float | None
    batches: int | None
    runs: int
    together: bool
    sampler: Sampler
    slots: list[_Slot]
    free_bytes: int
    started_s: float = field(default_factory=time.monotonic)
    reading: Mapping[str, float] = field(default_factory=dict)
    unreadable: str = ""
    """Why there are no readings any more."""

    def agree(self, value: float) -> float:
        """The largest value of all ranks, where they run the same; else this rank's own."""
        if not self.together:
            return value
        import torch
        import torch.distributed as dist

        # over the host: what decides must not go through what is tested
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest[0])

    def is_over(self) -> bool:
        """Whether the time is over."""
        over = self.seconds is not None and time.monotonic() - self.started_s >= self.seconds
        return bool(self.agree(float(over)))

    def run(self) -> None:
        """Batches of all probes in turn, one of each at least, until time or number is over."""
        last: _Slot | None = None
        # the first batch of each probe needs no time left: no verdict depends on the load
        while (slot := self.next_slot(last)) is not None and not (
            slot.batch >= 0 and self.is_over()
        ):
            if last is not None and slot.moves_memory is not last.moves_memory:
                time.sleep(_PAUSE_S)
            self.rank.step(slot.probe.name)
            began_s = time.monotonic()
            record = self.batch(slot)
            seconds = time.monotonic() - began_s
            slot.spent_s += self.agree(seconds)
            self.rank.step(slot.probe.name, record={**record, "seconds": seconds, **self.read()})
            if any(record.get(key) for key in ("refused", "stopped", "broke", "blind", "failure")):
                self.slots.remove(slot)
            last = slot

    def read(self) -> dict[str, Any]:
        """What the device shows of itself, where it does since the last batch."""
        if self.unreadable:
            return {}
        try:
            found = self.sampler.latest()
        except Exception as error:  # noqa: BLE001 - whatever a vendor's library raises
            self.unreadable = error_line(error)
            return {"unreadable": self.unreadable}
        if not found:
            return {}
        self.reading = {"t_s": round(time.monotonic() - self.started_s, 3), **found}
        return {"telemetry": self.reading}

    def next_slot(self, last: _Slot | None) -> _Slot | None:
        """What runs next: whatever had the least time, of the other kind where it is as far.

        Every probe has its first batch before any has its second one.
        """
        left = [each for each in self.slots if self.batches is None or each.batch < self.batches]
        if not left:
            return None
        turn = min(each.batch for each in left)
        if self.batches is not None or turn < 0:
            left = [each for each in left if each.batch == turn]
        ahead_s = min(each.spent_s for each in left) + 2 * _BATCH_S
        other = [
            each
            for each in left
            if last is not None
            and each.moves_memory is not last.moves_memory
            and (each.batch < 0 or each.spent_s <= ahead_s)
        ]
        return min(other or left, key=lambda each: (each.spent_s, each.order))

    def batch(self, slot: _Slot) -> dict[str, Any]:
        """Run a batch and judge it; a record for ``Tally.add``."""
        probe, first = slot.probe, slot.batch < 0
        if first and (why := self.refusal(probe)):
            return {"refused": why}
        seed = self.published_seed if first else batch_seed(self.campaign, probe.name, slot.batch)
        while True:
            try:
                began_s = time.monotonic()
                record, result_bytes = self.judged(slot, seed)
                break
            except Exception as error:  # noqa: BLE001 - whatever a probe raises is its result
                slot.grows = False
                if not (isinstance(error, NotExactError) or is_oom(error)):
                    return self.broken(error)
                if slot.scale == 1:
                    return {"stopped": f"not run: {error_line(error)}"}
            # outside of the block, which keeps the operands
            self.rank.gpu.empty_cache()
            slot.scale //= 2
        if not first and self.may_grow(slot, time.monotonic() - began_s, result_bytes):
            slot.scale *= 2
        slot.batch += 1
        return record

    def broken(self, error: Exception) -> dict[str, Any]:
        """A record of a probe that raised; raises where the device can go on with no other."""
        if self.together:
            # the others wait in a collective
            raise error
        try:
            self.rank.gpu.synchronize()
        except RuntimeError:
            raise error from None
        return {"broke": f"the probe raised {error_line(error)}"}

    def may_grow(self, slot: _Slot, seconds: float, result_bytes: int) -> bool:
        """Whether the next batch may have twice as many results."""
        if not slot.grows or self.seconds is None:
            return False
        limit_s, part = _BATCH_S, _RESULT_PART
        if slot.probe.area == MEMORY:
            limit_s = min(max(_BATCH_S, self.seconds / len(self.slots)), _MEMORY_S)
            part = _QUICK_PART if self.seconds < _LONG_S else _LONG_PART
        most = part * self.free_bytes
        if self.rank.gpu.plugin.shared:
            most = min(most, _SHARED_BYTES)
        return self.agree(2 * result_bytes) <= most and self.agree(seconds) < limit_s / 2

    def refusal(self, probe: Probe) -> str:
        """Why a rank cannot run a probe; where ranks run it together, none does then."""
        why = probe.refuses(self.rank.gpu)
        if self.agree(float(bool(why))) and not why:
            return "another rank cannot run it"
        return why

    def judged(self, slot: _Slot, seed: int) -> tuple[dict[str, Any], int]:
        """What a batch gave, and the bytes of one result."""
        gpu, first = self.rank.gpu, slot.batch < 0
        work = self.made(slot, seed)
        runs, judging_s, found, any_wrong = 0, 0.0, "", False
        while runs < self.runs and not any_wrong:
            runs += 1
            result = work.run()
            gpu.synchronize()
            ran_s = time.monotonic()
            wrong = work.judge(result)
            if first and not found:
                found = digest(result)
            # of a run that writes nothing the memory must not hold this one's result
            complement(result)
            judging_s += time.monotonic() - ran_s
            self.rank.tell_alive()
            any_wrong = bool(self.agree(float(wrong is not None)))
        record = {
            "results": runs * work.results,
            "inputs": work.inputs,
            "batches": int(not first),
            "judging_s": judging_s,
            "scale": slot.scale,
            "digest": found,
        }
        result_bytes = result.numel() * result.element_size()
        if not any_wrong:
            blind = first and not _sees_one(work, result)
            if self.agree(float(blind)):
                ended = {"stopped": "ended: another rank compares wrong"}
                record |= {"blind": True} if blind else ended
            return record, result_bytes
        self.read()
        failure: dict[str, Any] = {}
        if wrong is None:
            record["stopped"] = "ended: another rank had a wrong result"
        else:
            failure = {"batch": slot.batch, "run": runs, "seed": seed, "scale": slot.scale}
            failure |= {"of": work.results, "telemetry": dict(self.reading)}
            failure |= described(wrong, gpu.arch.warp_size) | repetitions([])
            # reported now: whatever ends this process takes no failure with it
            self.rank.step(slot.probe.name, record={"failure": dict(failure)})
        asks = can_ask(gpu, work)
        # what is run again needs the memory
        del work, result, wrong
        again = self.again(slot, seed)
        if failure:
            failure |= again
            known = self.units(slot.probe.name, self.made(slot, seed), failure) if asks else {}
            record["failure"] = failure | known
        return record, result_bytes

    def made(self, slot: _Slot, seed: int) -> Work:
        """The operands of a batch; where ranks run together, all raise if one cannot make its own.

        The others would wait for it in a collective.
        """
        gpu = self.rank.gpu
        try:
            work = slot.probe.make(gpu, Draws(seed, gpu.device), slot.scale)
        except Exception:
            self.agree(1.0)
            raise
        if self.agree(0.0):
            raise MemoryError("another rank could not make its operands")
        return work

    def repeats_until_s(self) -> float:
        """Until when the operands of a wrong result are run again; infinite without a time."""
        if self.seconds is None:
            return math.inf
        now_s = time.monotonic()
        # what was wrong is repeated for a moment where the time is over, too
        return now_s + min(_REPEAT_S, max(_MIN_REPEAT_S, self.started_s + self.seconds - now_s))

    def units(self, name: str, work: Work, failure: Mapping[str, Any]) -> dict[str, Any]:
        """On which units wrong tiles of a product are computed, where that can be asked."""
        gpu, until_s = self.rank.gpu, 0.0
        if self.together or not can_ask(gpu, work):
            return {}
        # reported now: a compiler that ends this process takes no failure with it
        self.rank.step(name, record={"failure": dict(failure)})
        self.rank.step(f"{name}{BY_UNIT}")

        def going_on() -> bool:
            nonlocal until_s
            self.rank.tell_alive()
            # from the first run on, which compiles the kernel
            until_s = until_s or self.repeats_until_s()
            return time.monotonic() < until_s

        found = find_units(gpu, work, going_on)
        return {} if found is None else {"units": found.to_json()}

    def again(self, slot: _Slot, seed: int) -> dict[str, int]:
        """How often the operands of a wrong result go wrong again, within a limit of time."""
        until_s = self.repeats_until_s()
        outcomes: list[str] = []
        try:
            work = self.made(slot, seed)
            while len(outcomes) < REPEATS:
                outcomes.append(_wrong_digest(work))
                self.rank.tell_alive()
                if self.agree(float(time.monotonic() >= until_s)):
                    break
        except Exception:
            # the failure stands; alone, whatever broke the device breaks its next batch too
            if self.together:
                raise
        return repetitions(outcomes)


def repetitions(outcomes: Sequence[str]) -> dict[str, int]:
    """What repetitions gave, by the digest of what was wrong in each; empty where all was right."""
    found = [each for each in outcomes if each]
    return {
        "repeated": len(outcomes),
        "repeated_wrong": len(found),
        "outcomes": len(set(found)),
    }


def _wrong_digest(work: Work) -> str:
    result = work.run()
    wrong = work.judge(result)
    complement(result)
    return "" if wrong is None else wrong.digest()


def _sees_one(work: Work, inverted: torch.Tensor) -> bool:
    """Whether one wrong element of a right result is seen; ``inverted`` has all bits inverted."""
    complement(inverted)
    middle = tuple(each // 2 for each in inverted.shape)
    complement(inverted[middle])
    return work.judge(inverted) is not None


def described(wrong: Wrong, lanes: int | None) -> dict[str, Any]:
    """What is wrong, as JSON has it: how much, its digest and where; ``lanes`` run together."""
    some = slice(MAX_PLACES)
    places, found, expected = (
        each[some].tolist() for each in (wrong.places, wrong.found, wrong.expected)
    )
    bits = 8 * wrong.found.element_size()
    where = (
        locate(places, wrong.shape, found, expected, wrong.dtype, bits, lanes) if places else None
    )
    return {
        "count": wrong.count,
        "shape": list(wrong.shape),
        "dtype": wrong.dtype,
        "digest": wrong.digest(),
        "where": None if where is None else where.to_json(),
    }


def screen(
    rank: Rank,
    *,
    place: str,
    plans: Sequence[Mapping[str, int]],
    campaign: int,
    published_seed: int,
    seconds: float | None,
    batches: int | None,
    runs: int,
    threads: int | None,
    together: bool,
) -> None:
    """Run this rank's share: ``plans`` has the next batch of each probe, for each rank."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    plan = plans[rank.rank]
    chosen = [each for each in catalogue(place) if each.name in plan]
    with Sampler(rank.gpu, _READ_S) as sampler:
        _Share(
            rank=rank,
            campaign=campaign,
            published_seed=published_seed,
            seconds=seconds,
            batches=batches,
            runs=runs,
            together=together,
            sampler=sampler,
            slots=[_Slot(probe, order, plan[probe.name]) for order, probe in enumerate(chosen)],
            free_bytes=rank.gpu.mem_get_info()[0],
        ).run()
    rank.step("", ended=True)


def replay(
    rank: Rank, *, place: str, items: Sequence[Mapping[str, Any]], runs: int
) -> list[list[str]]:
    """Run the operands of others' wrong results: the digests of what is wrong, in each run.

    ``items`` have a probe, a seed and a scale. An item that this device cannot run has no digests.
    """
    probes = {each.name: each for each in catalogue(place)}
    answers = []
    for item in items:
        rank.step(f"{item['probe']}{AGAIN}")
        probe = probes[item["probe"]]
        answers.append([] if probe.refuses(rank.gpu) else list(_again(rank, probe, item, runs)))
    rank.step("", ended=True)
    return answers


def _again(rank: Rank, probe: Probe, item: Mapping[str, Any], runs: int) -> Iterator[str]:
    try:
        work = probe.make(rank.gpu, Draws(item["seed"], rank.gpu.device), item["scale"])
        for _ in range(runs):
            rank.tell_alive()
            yield _wrong_digest(work)
    except (RuntimeError, MemoryError, NotExactError):
        # a peer that cannot run it says nothing, and a device that is lost is named elsewhere
        return
