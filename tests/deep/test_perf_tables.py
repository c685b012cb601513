"""The time that outputs of nccl-tests and rccl-tests take to read."""

from __future__ import annotations

import time

import pytest

from portagpu.facts.nccl_tests.tables import read_tables
from tests.vendor_texts.test_perf_tables import RECORDED


@pytest.mark.parametrize(
    "unit",
    [
        "           8             2     float     sum      -1    17.93    0.00    0.00      0\n",
        "# size count type redop root time algbw busbw #wrong\n",
        "a" * 2000,
        "1 " * 1000,
        "node:1:1 [0] NCCL INFO x\n",
        "#  Rank  0 Group  0 Pid 1 on " + "x" * 300 + "\n",
        "/all_reduce_perf" * 50 + "\n",
        "size " * 100 + "time algbw busbw\n",
        " " * 2000,
    ],
)
def test_the_time_grows_with_the_size_of_a_hostile_text(unit: str) -> None:
    def seconds(count: int) -> float:
        text = RECORDED + unit * count
        # allowed: how it grows is what this tier judges
        started = time.process_time()
        read_tables(text)
        # allowed: the same
        return time.process_time() - started

    few = 40_000 // len(unit) + 1
    short = min(seconds(few) for _ in range(3))
    # 16 times the text: a square law would need 256 times the time
    assert min(seconds(16 * few) for _ in range(2)) < 80 * max(short, 0.002)
