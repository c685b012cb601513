"""What a run over several nodes begins with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.reports.fleet.request import FleetUsageError, _steps, arguments_of


def test_collectives_need_two_nodes_or_a_whole_group() -> None:
    names = ("a", "b", "c", "d")
    for group, needed in ((None, 2), (1, 2), (2, 2), (4, 4)):
        options: Any = SimpleNamespace(what="collectives", group=group, rounds=1)
        for count in range(len(names) + 1):
            if count >= needed:
                assert _steps(options, names[:count])
                continue
            with pytest.raises(FleetUsageError, match=rf"at least {needed} nodes, not {count}$"):
                _steps(options, names[:count])


def test_a_screen_has_the_day_of_the_fleet_run_on_every_node() -> None:
    def record(what: str, *arguments: str) -> Any:
        return SimpleNamespace(what=what, arguments=arguments, started="2026-12-01T23:59:58Z")

    assert arguments_of(record("screen", "--time", "10m")) == [
        "--time",
        "10m",
        "--seed",
        "20261201",
    ]
    for given in (("--seed", "7"), ("--seed=7",)):
        assert arguments_of(record("screen", *given)) == list(given)
    assert arguments_of(record("bench", "gemm")) == ["gemm"]
