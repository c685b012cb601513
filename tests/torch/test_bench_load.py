"""What one rank does under load, in this process, by a clock that the test moves."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu.suites.performance import load_ranks, matmul
from tests.support.faulty_device import Fault, installed, published, region, stuck

pytestmark = pytest.mark.torch

SIZE = 32
FAULTS = {
    "a stuck bit": stuck(3),
    "a tile": region(slice(16, 32), slice(0, 16)),
    "one element": region(slice(7, 8), slice(9, 10)),
    # of 1,024 elements: one of a thousand products is wrong
    "1e-6 of the elements": published(1e-6),
}


def standing_clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of batches, each twice the one before: no product takes any time."""
    sizes: list[int] = []

    def standing(call: Any, repeats: int) -> float:
        sizes.append(repeats)
        for _ in range(repeats):
            call()
        return 0.0

    watch = SimpleNamespace(time=standing, resolution_s=4e-3)
    monkeypatch.setattr(load_ranks, "Stopwatch", lambda gpu: watch)
    return sizes


def test_a_clock_that_stands_still_ends_no_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = standing_clock(monkeypatch)
    batches = load_ranks._Batches(pg.backend("cpu"), "fp32", SIZE)
    batches.warm_up()
    assert batches.run() == (0.0, 50)
    assert sizes == [1, 2, 4, 8, 16, 32, 50]
    # with the first of each batch
    assert (batches.number, batches.judged, batches.wrong) == (7, sum(sizes) + 7, None)


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


def test_a_load_that_computes_other_bits_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()
    right = matmul.multiply

    def broken(work: Any) -> None:
        right(work)
        if next(calls) > 200:
            work.result[1, 2] += 1

    monkeypatch.setattr(matmul, "multiply", broken)
    found, _ = sustained(monkeypatch, seconds=1e9)
    assert found["wrong"].startswith("the fp32 product is wrong in row 1, column 2: ")
    assert f"; 1 of {SIZE * SIZE} elements are" in found["wrong"]
    assert found["digest"]


def test_products_that_are_wrong_from_the_start_are_not_a_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matmul, "multiply", lambda work: None)
    found, steps = sustained(monkeypatch)
    assert found["wrong"]
    assert found["throughput"] == steps == []


@pytest.mark.parametrize("first_call", [0, 40])
@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_device_fails_under_load(
    monkeypatch: pytest.MonkeyPatch, name: str, first_call: int
) -> None:
    """Also one that goes wrong later, in whichever product of a batch."""
    with installed(Fault(name, "matrix", FAULTS[name], first_call)) as state:
        found, _ = sustained(monkeypatch, seconds=1e9)
    assert state.corrupted, "it did nothing wrong"
    assert "product is wrong in row" in found["wrong"]
    assert found["digest"]


def test_one_wrong_product_of_a_batch_is_found_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing_clock(monkeypatch)
    # batches of 1, 2, 4 and 8 and the first of each are 19
    right, calls, wrong = matmul.multiply, count(), 23

    def once(work: Any) -> None:
        right(work)
        if next(calls) == wrong:
            work.result[3, 4] *= 2

    monkeypatch.setattr(matmul, "multiply", once)
    found, _ = sustained(monkeypatch, seconds=1e9)
    assert "is wrong in row 3, column 4" in found["wrong"]
    assert "; 1 of 16 products of these operands differ" in found["wrong"]


def test_each_batch_has_operands_of_its_own() -> None:
    batches = load_ranks._Batches(pg.backend("cpu"), "fp32", SIZE)
    seen = []
    for _ in range(3):
        batches.run()
        seen.append(batches.work.a.clone())
    assert not any(map(torch.equal, seen, seen[1:]))


def test_a_load_without_memory_for_exact_operands_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pg.backend("cpu")
    monkeypatch.setattr(type(gpu), "mem_get_info", lambda self: (100_000, 100_000))
    found, _ = sustained(monkeypatch)
    assert found["wrong"] == ""
    assert found["sampled"] == "exact operands and what judges them need 0.1 MiB of memory"
    assert found["judged"].startswith("sampled rows and columns, because exact operands")
