"""One made-up timeline, written in three formats, reads in the same way from all three."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("adbc_driver_sqlite")

from tests.support.trace_samples import (
    WRITERS,
    timeline,
    write_kineto,
    write_nsys,
    write_rocpd,
)

if TYPE_CHECKING:
    from pathlib import Path

SHARED = ("start_ns", "end_ns", "name", "device", "stream", "correlation", "bytes", "copy_kind")
SHARED += ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "pid", "tid")


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name, writer in WRITERS.items():
        first = writer(timeline(300, seed=5), tmp_path / f"{name}-a").read_bytes()
        assert writer(timeline(300, seed=5), tmp_path / f"{name}-b").read_bytes() == first
        assert writer(timeline(300, seed=6), tmp_path / f"{name}-c").read_bytes() != first


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_host_calls_and_ranges_nest_on_their_thread(count: int) -> None:
    made = timeline(count, devices=2, sets=True)
    for thread in (0, 1):
        spans = []
        for columns in (made.ranges, made.collectives, made.calls):
            own = columns["thread"] == thread
            spans += zip(columns["start"][own].tolist(), columns["end"][own].tolist(), strict=True)
        stack: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], "two spans of a thread cross"
            stack.append(end)


def test_a_call_begins_before_its_kernel() -> None:
    made = timeline(500)
    starts = dict(
        zip(made.calls["correlation"].tolist(), made.calls["start"].tolist(), strict=True)
    )
    for correlation, start in zip(
        made.kernels["correlation"].tolist(), made.kernels["start"].tolist(), strict=True
    ):
        assert starts[correlation] == start - 8000


def test_what_a_format_has_no_place_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="memsets"):
        write_rocpd(timeline(10, sets=True), tmp_path / "a")
    with pytest.raises(ValueError, match="marks"):
        write_kineto(timeline(10, marks=True), tmp_path / "b")


def test_a_rank_that_waits_has_longer_collectives_alone(tmp_path: Path) -> None:
    kernel = "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE streamId = {}"
    sums = []
    for wait in (0, 5000):
        path = write_nsys(timeline(640, wait_ns=wait), tmp_path / f"{wait}")
        with sqlite3.connect(path) as connection:
            sums.append([connection.execute(kernel.format(each)).fetchone()[0] for each in (7, 13)])
        connection.close()
    assert sums[1][0] == sums[0][0]
    assert sums[1][1] == sums[0][1] + 40 * 5000


def test_the_json_says_of_which_rank_it_is(tmp_path: Path) -> None:
    path = write_kineto(timeline(10, rank=3, world_size=8), tmp_path / "a.json")
    document = json.loads(path.read_text())
    assert document["distributedInfo"] == {"rank": 3, "world_size": 8}
