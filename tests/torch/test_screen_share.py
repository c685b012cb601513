"""One rank's share of a screen: what runs next, how large batches are, and what is read."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch: Any = pytest.importorskip("torch")

from portagpu.devices import registry
from portagpu.suites.screen.ranks import _Share, _Slot, described
from portagpu.train.exact.judge import NotExactError, differences
from portagpu.train.exact.probe import Probe
from tests.support.screen_probes import Sums, probe

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


class FakeRank:
    """A rank that keeps what it reports."""

    def __init__(self) -> None:
        self.gpu = registry.backend("cpu")
        self.steps: list[tuple[str, dict[str, Any]]] = []

    def step(self, name: str, **data: Any) -> None:
        self.steps.append((name, data))

    def tell_alive(self) -> None:
        pass

    @property
    def records(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, data["record"]) for name, data in self.steps if "record" in data]


def share(*probes: Probe, **given: Any) -> _Share:
    """The share of one CPU of these probes."""
    rank: Any = FakeRank()
    sampler: Any = given.pop("sampler", SimpleNamespace(latest=dict))
    return _Share(
        **{
            "rank": rank,
            "campaign": 20261201,
            "published_seed": 0,
            "seconds": None,
            "batches": 1,
            "runs": 4,
            "together": False,
            "sampler": sampler,
            "slots": [_Slot(each, order, -1) for order, each in enumerate(probes)],
            "free_bytes": 1 << 30,
            **given,
        }
    )


def at_most(scale: int, error: Exception) -> Callable[..., Sums]:
    """Makes operands up to that scale, and else raises."""

    def make(gpu: Any, draws: Any, wanted: int) -> Sums:
        if wanted > scale:
            raise error
        return Sums(draws, wanted, lambda result, run: None)

    return make


def test_probes_take_turns_between_compute_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr("portagpu.suites.screen.ranks.time.sleep", paused.append)
    names = ("products/a", "products/b", "attention/c", "vectors/d", "memory/e")
    one = share(*map(probe, names))
    one.run()
    ran = [name for name, data in one.rank.steps if not data]  # type: ignore[attr-defined]
    assert len(ran) == 2 * len(names)
    kinds = [name.startswith(("vectors", "memory")) for name in ran[:5]]
    assert kinds == [False, True, False, True, False]
    assert sorted(ran[:5]) == sorted(names), "each has its first batch before any has its second"
    assert sorted(ran[5:]) == sorted(names)
    assert len(paused) >= 4, "without load between the kinds"


@pytest.mark.parametrize(
    "error", [MemoryError("cannot allocate"), NotExactError("it would not be exact")], ids=type
)
def test_a_batch_that_does_not_fit_is_halved(error: Exception) -> None:
    one = share(Probe("products/a", "int64", at_most(2, error), lambda gpu: ""))
    (slot,) = one.slots
    slot.batch, slot.scale = 0, 8
    record = one.batch(slot)
    assert record["scale"] == slot.scale == 2
    assert "stopped" not in record
    assert not slot.grows, "the next one is no larger"
    assert slot.batch == 1


def test_a_wrong_result_stands_where_its_operands_are_not_made_again() -> None:
    made: list[Any] = []

    def flip(result: Any, run: int) -> None:
        result[0, 0] ^= 1

    def make(gpu: Any, draws: Any, scale: int) -> Sums:
        if made:
            assert made[0]() is None, "the first operands still take memory"
            raise MemoryError("cannot allocate")
        found = Sums(draws, scale, flip)
        made.append(weakref.ref(found))
        return found

    one = share(Probe("memory/a", "int64", make, lambda gpu: ""))
    one.run()
    records = [record for _, record in one.rank.records]  # type: ignore[attr-defined]
    # at once, and with what repetitions gave
    assert [each["failure"]["count"] for each in records] == [1, 1]
    assert records[-1]["failure"]["repeated"] == 0
    assert records[-1]["results"] == 8 * 32
    assert not one.slots, "it runs no further"


def test_batches_grow_while_they_are_short_and_small() -> None:
    one = share(probe("products/a"), probe("memory/b"), seconds=60.0)
    ordinary, memory = one.slots
    assert one.may_grow(ordinary, 0.05, 1 << 20)
    assert not one.may_grow(ordinary, 0.15, 1 << 20), "twice that is above 0.2 s"
    assert not one.may_grow(ordinary, 0.05, (1 << 30) // 32), "a thirty-second of what is free"
    # half of 60 s is the share of one of two probes, and 20 s the most
    assert one.may_grow(memory, 9.0, 64 << 20)
    assert not one.may_grow(memory, 9.0, 129 << 20), "of a CPU, 256 MiB"
    assert not one.may_grow(memory, 20.0, 1 << 20)
    one.seconds = 28_800.0
    assert not one.may_grow(memory, 10.0, 1 << 20), "a device that is silent for long has hung"
    counted = share(probe("products/a"))
    assert not counted.may_grow(counted.slots[0], 0.0, 1), "a number of batches is of one size"


def test_what_the_device_shows_stands_next_to_batches_and_failures() -> None:
    def flip(result: Any, run: int) -> None:
        result[0, 0] ^= 1

    readings = iter([{"power_w": 300.0}, {}, {"power_w": 350.0}])
    sampler = SimpleNamespace(latest=lambda: next(readings, {}))
    one = share(probe("vectors/a"), probe("products/b", flip), sampler=sampler)
    one.run()
    records = one.rank.records  # type: ignore[attr-defined]
    first = records[0][1]
    assert first["telemetry"]["power_w"] == 300.0
    failed = next(record for _, record in records if "failure" in record)
    assert failed["failure"]["telemetry"]["power_w"] == 300.0, "what was read last"


def test_readings_that_break_off_stop_no_probe() -> None:
    def broken() -> dict[str, float]:
        raise OSError("the library is gone")

    one = share(probe("vectors/a"), sampler=SimpleNamespace(latest=broken))
    one.run()
    records = [record for _, record in one.rank.records]  # type: ignore[attr-defined]
    assert len(records) == 2
    assert [each.get("unreadable") for each in records] == ["OSError: the library is gone", None]


def test_places_are_those_of_the_tensor() -> None:
    expected = torch.arange(64, dtype=torch.float32).reshape(4, 16) + 1
    found = expected.clone()
    found[1:3, 5] = 0.0
    wrong = differences(found, expected)
    assert wrong is not None
    known = described(wrong, 32)
    assert known["count"] == 2
    assert known["where"]["form"] == "one column"
    assert known["where"]["kinds"] == {"zeroed": 2}
    # 22.0 is 0x41b00000, and 38.0 is 0x42180000
    bits = {"19": 1, "20": 2, "21": 1, "23": 1, "24": 1, "25": 1, "30": 2}
    assert known["where"]["bits"] == bits
