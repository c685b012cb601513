"""nvprof's summary: lines as the tool prints them, with figures worked out by hand."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.reading import is_known, read

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
training starts
==12== NVPROF is profiling process 12, command: ./app
==12== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   70.06%  263.96us         3  87.986us  87.581us  88.285us  [CUDA memcpy HtoD]
                   21.55%  1.27759s      1001  1.2770us     608ns  648.48ms  add(float*, int)
                    0.10%  1.5000us         1  1.5000us  1.5000us  1.5000us  [CUDA memset]
      API calls:   58.24%  302.96ms         2  151.48ms  2.0000us  302.95ms  cudaDeviceSynchronize
 OpenACC (excl):   99.00%  9.0000ms         1  9.0000ms  9.0000ms  9.0000ms  acc_launch@x.c:1
"""
ROWS = [
    ("copy", "Memcpy HtoD", 3, 263_960, 87_986.0, 87_581, 88_285),
    ("kernel", "add(float*, int)", 1001, 1_277_590_000, 1277.0, 608, 648_480_000),
    ("set", "Memset", 1, 1500, 1500.0, 1500, 1500),
    ("api", "cudaDeviceSynchronize", 2, 302_960_000, 151_480_000.0, 2000, 302_950_000),
]
CSV = """\
======== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,us,us,us,
"GPU activities",60.0,0.031647,2,15.823500,10.000000,21.647000,"scale<int, 3>(float*)"
"API calls",78.02,7570.567921,11,688233.447000,684120.984000,693194.046000,"cudaMemcpyAsync"
"""
OLD = """\
==7== Profiling result:
Time(%)      Time     Calls       Avg       Min       Max  Name
 99.98%  2.0000ms         4  500.00us  400.00us  600.00us  mul(int*)

==7== API calls:
Time(%)      Time     Calls       Avg       Min       Max  Name
 73.00%  10.000ms         1  10.000ms  10.000ms  10.000ms  cudaMalloc
"""


def totals(path: Path) -> list[tuple[object, ...]]:
    found = read(path).totals
    assert found is not None
    names = ("kind", "name", "calls", "total_ns", "mean_ns", "min_ns", "max_ns")
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


FORMS = {
    "as it is": lambda text: text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "in a gzip": lambda text: gzip.compress(text.encode()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_summary_has_the_sums_of_its_rows(tmp_path: Path, form: str) -> None:
    file = tmp_path / "nvprof.txt"
    file.write_bytes(FORMS[form](TEXT))
    assert totals(file) == ROWS
    assert read(file).dropped == 0


def test_times_of_csv_have_the_unit_of_their_column(tmp_path: Path) -> None:
    file = tmp_path / "nvprof.csv"
    file.write_text(CSV)
    assert totals(file) == [
        ("kernel", "scale<int, 3>(float*)", 2, 31_647, 15_823.5, 10_000, 21_647),
        ("api", "cudaMemcpyAsync", 11, 7_570_567_921, 688_233_447.0, 684_120_984, 693_194_046),
    ]


def test_an_old_summary_has_the_calls_below_their_heading(tmp_path: Path) -> None:
    file = tmp_path / "nvprof.txt"
    file.write_text(OLD)
    assert [row[:4] for row in totals(file)] == [
        ("kernel", "mul(int*)", 4, 2_000_000),
        ("api", "cudaMalloc", 1, 10_000_000),
    ]


def test_a_summary_that_ends_anywhere_gives_whole_rows_or_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "nvprof.txt"
    wanted = [row[3:] for row in ROWS]
    for text in (TEXT, CSV, OLD):
        for end in range(len(text)):
            file.write_text(text[:end])
            try:
                found = totals(file)
            except FormatError as error:
                assert "\n" not in str(error)
                continue
            if text is TEXT:
                assert [row[3:] for row in found] == wanted[: len(found)]


def test_a_heading_alone_says_what_to_give(tmp_path: Path) -> None:
    file = tmp_path / "nvprof.txt"
    file.write_text("\n".join(TEXT.splitlines()[:4]) + "\n")
    assert is_known(file)
    with pytest.raises(FormatError, match="give its whole output"):
        read(file)
