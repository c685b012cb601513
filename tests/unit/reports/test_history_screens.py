"""What all screens of a device say together."""

from __future__ import annotations

import pytest

from portagpu.reports.history.model import ALL, Judged, Machine, MeasureId, StoredRun, device_counts

DAY_S = 86_400.0
NOW_S = 100 * DAY_S


def judged(
    days_ago: float,
    results: float,
    verdict: str = "PASS",
    *,
    probe: str = "vectors/a",
    device: str | None = "cuda:0",
    suite: str = "screen",
    host: str = "node-1",
) -> Judged:
    run = StoredRun(
        key=hash((host, days_ago)),
        id=f"{host}-{days_ago}",
        started_s=NOW_S - days_ago * DAY_S,
        machine=Machine("example-1", host),
        backend=None,
        versions={},
        verdict=verdict,
        digest="",
        measures=1,
    )
    return Judged(
        run, MeasureId(suite, f"screen/{probe}", device, "results", None), results, verdict
    )


def test_runs_of_the_last_days_count_together() -> None:
    found = [
        judged(40, 1e6),
        judged(20, 2000),
        judged(1, 1000),
        # of the same run
        judged(1, 500, probe="vectors/b"),
        # what bring-up screened counts too
        judged(10, 3000, suite="bringup"),
        judged(5, 9, device="cuda:1"),
    ]
    together, first, second, other, _ = device_counts(found, NOW_S)
    assert (together.probe, together.device, together.runs) == (ALL, "cuda:0", 3)
    assert (together.newest, together.recent) == (1500, 6500)
    assert together.newest_rate == pytest.approx(3 / 1500)
    assert together.recent_rate == pytest.approx(3 / 6500)
    assert (first.probe, first.newest, first.recent) == ("vectors/a", 1000, 6000)
    assert (second.probe, second.runs) == ("vectors/b", 1)
    assert (other.device, other.recent) == ("cuda:1", 9)


def test_a_wrong_result_excludes_no_rate_while_it_counts() -> None:
    found = [judged(20, 2000, "FAIL"), judged(1, 1000)]
    one, _ = device_counts(found, NOW_S)
    assert (one.wrong, one.recent_rate) == (1, None)
    assert one.newest_rate == pytest.approx(3 / 1000)
    later, _ = device_counts(found, NOW_S + 11 * DAY_S)
    assert later.recent_rate == pytest.approx(3 / 1000)
    assert later.to_json()["probe"] is None


def test_machines_and_what_comes_later_are_apart() -> None:
    found = [judged(1, 10), judged(1, 20, host="node-2"), judged(-1, 30)]
    counts = device_counts(found, NOW_S)
    assert [(each.machine.host, each.recent) for each in counts] == [
        ("node-1", 10),
        ("node-1", 10),
        ("node-2", 20),
        ("node-2", 20),
    ]
