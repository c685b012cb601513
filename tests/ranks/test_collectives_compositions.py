"""Every composition of the library's calls leaves what its own call leaves, on two ranks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from portagpu.devices.collectives.algorithms import DEFAULT, ONLY_SUMS, WAYS, Pending, perform

pytestmark = pytest.mark.torch


def test_rounds_begin_one_after_the_other() -> None:
    reported: list[str] = []

    def work(name: str) -> Any:
        return SimpleNamespace(wait=partial(reported.append, f"waits for {name}"))

    def way() -> Any:
        reported.append("begins")
        yield [work("a"), work("b")]
        reported.append("goes on")
        yield [work("c")]
        reported.append("ends")

    pending = Pending(way())
    assert reported == ["begins"]
    assert not pending.is_completed()
    assert pending.wait()
    assert pending.is_completed()
    assert reported[1:] == ["waits for a", "waits for b", "goes on", "waits for c", "ends"]


def test_there_is_a_way_for_each_operation_and_no_other() -> None:
    names = {name for ways in WAYS.values() for name in ways}
    assert all(next(iter(ways)) == DEFAULT for ways in WAYS.values())
    assert names >= ONLY_SUMS
    with pytest.raises(KeyError):
        perform("all_reduce", "no such way", SimpleNamespace())  # type: ignore[arg-type]
