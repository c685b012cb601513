"""RPD: made-up events in tables with rocmProfileData's columns, and figures worked out by hand.

The reader was compared with SQL over the three files that ROCm/rocmProfileData has (e943e7a5e878:
examples/rocm-profile-data/results, raptor/tests): numbers and sums of every kind are equal.
"""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.reading import read
from portagpu.traces.analysis.summary import summarize

if TYPE_CHECKING:
    from pathlib import Path

STRINGS = ("", "gemm_kernel", "KernelExecution", "Task", "CopyHostToDevice", "FillBuffer",
           "Barrier", "hipLaunchKernel", "hipMemcpyAsync", "UserMarker", "train:step")  # fmt: skip
SQL = """
CREATE TABLE rocpd_metadata (id integer PRIMARY KEY, tag varchar(4096), value varchar(4096));
CREATE TABLE rocpd_string (id integer PRIMARY KEY, string varchar(4096));
CREATE TABLE rocpd_op (id integer PRIMARY KEY, gpuId integer, queueId integer, sequenceId integer,
  start integer, "end" integer, description_id bigint, opType_id bigint);
CREATE TABLE rocpd_api (id integer PRIMARY KEY, pid integer, tid integer, start integer,
  "end" integer, apiName_id bigint, args_id bigint);
CREATE TABLE rocpd_api_ops (id integer PRIMARY KEY, api_id bigint, op_id bigint);
CREATE TABLE rocpd_copyapi (api_ptr_id bigint PRIMARY KEY, stream varchar(18), size integer);
INSERT INTO rocpd_metadata(tag, value) VALUES ('schema_version', '2');
INSERT INTO rocpd_op VALUES (1, 2, 0, 1, 2000, 5000, 2, 3), (2, 2, 1, 2, 6000, 6500, 2, 4),
  (3, 3, 0, 3, 7000, 7100, 1, 5), (4, 3, 0, 4, 8000, 8040, 1, 6), (5, 3, 0, 5, 8000, 8040, 1, 7),
  (6, 2, 0, 6, 9000, 8000, 2, 3);
INSERT INTO rocpd_api VALUES (11, 77, 78, 1000, 1500, 8, 1), (12, 77, 78, 6800, 6900, 9, 1),
  (13, 77, 78, 900, 6950, 10, 11);
INSERT INTO rocpd_api_ops(api_id, op_id) VALUES (11, 1), (11, 2), (12, 3);
INSERT INTO rocpd_copyapi VALUES (12, '0x0', 4096);
"""


def write(file: Path, extra: str = "") -> Path:
    with closing(sqlite3.connect(file)) as made:
        made.executescript(SQL)
        made.executemany("INSERT INTO rocpd_string(string) VALUES (?)", [(s,) for s in STRINGS])
        made.executescript(extra)
        made.commit()
    return file


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_is_a_kernel_a_copy_or_a_fill_by_its_type(tmp_path: Path, packed: bool) -> None:
    file = write(tmp_path / "trace.rpd")
    if packed:
        file.write_bytes(gzip.compress(file.read_bytes()))
    found = read(file)
    assert (found.source.format, found.source.schema) == ("RPD", "2")
    assert [each.pid for each in found.processes] == [77]
    columns = ("start_ns", "end_ns", "name", "device", "queue", "correlation")
    kernels = found.tables["kernel"].select(columns).to_pylist()
    assert [tuple(each.values()) for each in kernels] == [
        (2000, 5000, "gemm_kernel", 2, 0, 11),
        (6000, 6500, "gemm_kernel", 2, 1, 11),
    ]
    (copy,) = found.tables["copy"].to_pylist()
    assert (copy["name"], copy["copy_kind"], copy["bytes"]) == ("Memcpy HtoD", "HtoD", 4096)
    assert found.tables["set"].column("name").to_pylist() == ["Memset"]
    calls = found.tables["api"].column("name").to_pylist()
    assert calls == ["hipLaunchKernel", "hipMemcpyAsync"]
    (marked,) = found.tables["range"].to_pylist()
    assert (marked["name"], marked["start_ns"], marked["end_ns"]) == ("train:step", 900, 6950)
    assert found.details == {"left out: Barrier": "1"}
    assert found.dropped == 1
    assert "1 events that end before they start" in found.problems[0]


def test_launches_are_joined_with_their_kernels_and_ranges(tmp_path: Path) -> None:
    found = summarize([read(write(tmp_path / "trace.rpd"))])
    rows = {row["device"]: row for row in found.rows.to_pylist() if row["category"] != "copy"}
    assert {device: (row["calls"], row["total_ns"]) for device, row in rows.items()} == {
        2: (2, 3500)
    }
    (step,) = found.ranges.to_pylist()
    assert step["path"] == "train:step"
    # what it started: two kernels, and a copy of 100 ns
    assert (step["device_ns"], step["kernels"]) == (3600, 2)


def test_schema_3_has_the_texts_of_ranges_in_a_table_of_their_own(tmp_path: Path) -> None:
    extra = """CREATE TABLE rocpd_ustring (id integer PRIMARY KEY, string varchar(4096));
    INSERT INTO rocpd_ustring VALUES (1, ''), (11, 'other:step');"""
    found = read(write(tmp_path / "trace.rpd", extra))
    assert found.tables["range"].column("name").to_pylist() == ["other:step"]


def test_a_file_that_ends_anywhere_says_so_in_one_line(tmp_path: Path) -> None:
    file = write(tmp_path / "trace.rpd")
    whole = file.read_bytes()
    for end in range(0, len(whole), 512):
        file.write_bytes(whole[:end])
        with pytest.raises(FormatError) as raised:
            read(file)
        assert "\n" not in str(raised.value)


def test_tables_without_their_columns_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "trace.rpd", "ALTER TABLE rocpd_op DROP COLUMN queueId;")
    with pytest.raises(FormatError, match="lack columns"):
        read(file)
