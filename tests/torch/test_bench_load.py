"""What one rank does under load, in this process, by a clock that the test moves."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import portagpu as pg
from portagpu.suites.performance import load_ranks, matmul

pytestmark = pytest.mark.torch

SIZE = 32


def test_a_clock_that_stands_still_ends_no_batch_sizes() -> None:
    sizes: list[int] = []
    watch = SimpleNamespace(
        time=lambda call, repeats: sizes.append(repeats) or 0.0, resolution_s=1e-3
    )
    batches = load_ranks._Batches(None, watch)
    assert batches.run() == (0.0, 50)
    assert sizes == [1, 2, 4, 8, 16, 32, 50]


def sustained(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[dict[str, Any], list[Any]]:
    """The answer of a rank on the CPU, and its steps; each look at the clock takes 0.1 s."""
    looks = count()
    monkeypatch.setattr(load_ranks, "time", SimpleNamespace(monotonic=lambda: next(looks) * 0.1))
    steps: list[Any] = []
    rank: Any = SimpleNamespace(
        gpu=pg.backend("cpu"), rank=0, world=1, step=lambda name, **more: steps.append(more)
    )
    options = {"seconds": 2.0, "interval_s": 0.3, "dtype": "fp32", "size": SIZE, **given}
    return load_ranks.sustain(rank, **options), steps


def test_a_load_states_its_rate_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    found, steps = sustained(monkeypatch)
    assert found["wrong"] == ""
    assert found["shape"]["m"] == SIZE
    # a look before each interval, four in it (of 0.0, 0.1, 0.2 and 0.3 s), and one after it
    times = [at for at, _ in found["throughput"]]
    assert times == pytest.approx([0.6, 1.2, 1.8, 2.4])
    assert all(rate > 0 for _, rate in found["throughput"])
    assert found["compared"] == 4 * 3
    assert [each["t_s"] for each in steps] == times


def test_a_load_that_computes_other_bits_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()
    right = matmul.multiply

    def broken(work: Any) -> None:
        right(work)
        if next(calls) > 200:
            work.result[1, 2] += 1

    monkeypatch.setattr(matmul, "multiply", broken)
    found, _ = sustained(monkeypatch, seconds=1e9)
    assert found["wrong"] == (
        f"1 of {SIZE * SIZE} elements of a fp32 product differ from the first product of the same "
        "operands"
    )


def test_products_that_are_wrong_from_the_start_are_not_a_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matmul, "multiply", lambda work: None)
    found, steps = sustained(monkeypatch)
    assert found["wrong"]
    assert found["throughput"] == steps == []
