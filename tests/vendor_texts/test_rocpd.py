"""rocpd files: made with AMD's own SQL for the tables, and changed to be wrong.

The oracle is the timeline that was written, plain SQL, and values worked out by hand.
"""

# ruff: noqa: S608 - the names of tables are ours
from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("adbc_driver_sqlite")

from portagpu.facts.captures.model import EVENT_COLUMNS, METRIC_COLUMNS, Capture
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis import reading
from portagpu_rocm.captures import rocpd
from tests.support.trace_samples import (
    AMD_KERNELS,
    HIP_CALLS,
    Timeline,
    rocpd_schema,
    short,
    timeline,
    write_nsys,
    write_rocpd,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_, S = rocpd_schema()
"""What follows the tables' names."""


def amd(kernels: int = 200, **options: Any) -> Timeline:
    return timeline(kernels, names=AMD_KERNELS, call_names=HIP_CALLS, **options)


def change(path: Path, *statements: str, values: Sequence[Any] = ()) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement, values)
    connection.close()
    return path


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute(sql).fetchall()
    connection.close()
    return rows


def column(capture: Capture, kind: Any, name: str) -> list[Any]:
    found: list[Any] = capture.tables[kind].column(name).to_pylist()
    return found


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A file of rocprofv3 with 200 kernels on two devices."""
    return write_rocpd(amd(devices=2), tmp_path / "made.db")


def test_a_made_timeline_comes_back(tmp_path: Path) -> None:
    lines = amd(3000, devices=3, shuffled=True, marks=True, labelled=True, rank=3, world_size=8)
    capture = rocpd.read(write_rocpd(lines, tmp_path / "a.db"))
    assert (capture.problems, capture.dropped) == ((), 0)
    order = lines.shuffled
    assert order is not None
    for name in ("start", "end"):
        assert column(capture, "kernel", f"{name}_ns") == lines.kernels[name][order].tolist()
    names = [lines.names[index] for index in lines.kernels["name"][order].tolist()]
    assert column(capture, "kernel", "name") == names
    assert column(capture, "kernel", "short_name") == [short(name) for name in names]
    for name in ("device", "stream", "correlation"):
        assert column(capture, "kernel", name) == lines.kernels[name][order].tolist()
    assert column(capture, "kernel", "grid_x") == lines.kernels["grid"][order].tolist()
    assert column(capture, "kernel", "block_x") == lines.kernels["block"][order].tolist()
    assert set(column(capture, "copy", "name")) == {"Memcpy HtoD"}
    assert column(capture, "copy", "device") == lines.copies["device"].tolist()
    assert sorted(column(capture, "api", "start_ns")) == sorted(lines.calls["start"].tolist())
    assert set(column(capture, "api", "correlation")) >= set(lines.kernels["correlation"].tolist())
    marks = lines.ranges["start"] == lines.ranges["end"]
    ranges = capture.tables["range"].to_pylist()
    assert len(ranges) == marks.size
    assert sorted(each["name"] for each in ranges if each["start_ns"] == each["end_ns"]) == [
        "mark"
    ] * int(marks.sum())
    collectives = capture.tables["collective"].to_pylist()
    assert [each["sequence"] for each in collectives] == lines.collectives["sequence"].tolist()
    assert capture.rank == 3
    assert capture.processes[0].world_size == 8
    assert capture.processes[0].name == "python"


def test_the_same_timeline_reads_the_same_from_nsys_and_rocpd(tmp_path: Path) -> None:
    from portagpu_cuda.captures import nsys_sqlite

    lines = amd(700, devices=2, shuffled=True, labelled=True)
    left = nsys_sqlite.read(write_nsys(lines, tmp_path / "a.sqlite"))
    right = rocpd.read(write_rocpd(lines, tmp_path / "b.db"))
    for kind in ("kernel", "copy", "api", "range", "collective"):
        one, other = left.tables[kind], right.tables[kind]  # type: ignore[index]
        shared = [name for name in one.column_names if name in other.column_names]
        assert {"start_ns", "end_ns", "name"} <= set(shared)
        assert one.select(shared).to_pylist() == other.select(shared).to_pylist()


def test_work_items_become_blocks_and_the_last_may_be_smaller(made: Path) -> None:
    change(
        made,
        f"UPDATE rocpd_kernel_dispatch{S} SET grid_size_x = 1000, workgroup_size_x = 256,"
        " grid_size_y = 1, workgroup_size_y = 1, grid_size_z = 7, workgroup_size_z = 0"
        " WHERE rowid = 1",
    )
    first = rocpd.read(made).tables["kernel"].to_pylist()[0]
    assert (first["grid_x"], first["grid_y"], first["grid_z"]) == (4, 1, None)
    assert (first["block_x"], first["block_y"], first["block_z"]) == (256, 1, 0)


def test_kernels_that_amd_s_view_leaves_out_are_kept(made: Path) -> None:
    change(
        made,
        f"UPDATE rocpd_kernel_dispatch{S} SET event_id = NULL WHERE rowid = 1",
        f"UPDATE rocpd_kernel_dispatch{S} SET event_id = 99999999 WHERE rowid = 2",
        f"UPDATE rocpd_kernel_dispatch{S} SET region_name_id = NULL WHERE rowid = 3",
        f"UPDATE rocpd_kernel_dispatch{S} SET queue_id = 55, stream_id = 56 WHERE rowid = 4",
        f"UPDATE rocpd_kernel_dispatch{S} SET agent_id = 77 WHERE rowid = 5",
        f"UPDATE rocpd_kernel_dispatch{S} SET kernel_id = 7777 WHERE rowid = 6",
    )
    assert query(made, "SELECT count(*) FROM kernels") == [(194,)]
    capture = rocpd.read(made)
    assert capture.count("kernel") == 200
    assert column(capture, "kernel", "correlation")[:3] == [None, None, 3]
    assert column(capture, "kernel", "stream")[3] == 56
    assert column(capture, "kernel", "device")[4] is None
    assert column(capture, "kernel", "name")[5] == "(name missing)"


def test_times_are_nanoseconds_where_the_view_has_microseconds(made: Path) -> None:
    capture = rocpd.read(made).tables["kernel"].to_pylist()
    name, calls, microseconds, *_ = query(made, "SELECT * FROM top_kernels")[0]
    ours = [each["end_ns"] - each["start_ns"] for each in capture if each["name"] == name]
    assert (len(ours), sum(ours) / 1000) == (calls, pytest.approx(microseconds))


def test_registers_of_both_kinds_and_memory_of_a_kernel(made: Path) -> None:
    change(
        made,
        f"UPDATE rocpd_info_kernel_symbol{S} SET arch_vgpr_count = 128, accum_vgpr_count = 4,"
        " sgpr_count = 96",
        f"UPDATE rocpd_kernel_dispatch{S} SET group_segment_size = 512, private_segment_size = 8",
    )
    first = rocpd.read(made).tables["kernel"].to_pylist()[0]
    assert (first["registers"], first["scalar_registers"]) == (132, 96)
    assert (first["shared_bytes"], first["scratch_bytes"]) == (512, 8)


def test_copies_have_their_kind_from_their_name_or_their_agents(tmp_path: Path) -> None:
    file = write_rocpd(amd(400, devices=2), tmp_path / "a.db")
    table = f"rocpd_memory_copy{S}"
    change(
        file,
        f"UPDATE {table} SET name_id = 1, src_agent_id = 1, dst_agent_id = 0 WHERE rowid = 1",
        f"UPDATE {table} SET name_id = 1, src_agent_id = 1, dst_agent_id = 2 WHERE rowid = 2",
        f"UPDATE {table} SET name_id = 1, src_agent_id = 2, dst_agent_id = 2 WHERE rowid = 3",
        f"UPDATE {table} SET name_id = 1, src_agent_id = NULL, dst_agent_id = 2 WHERE rowid = 4",
    )
    copies = rocpd.read(file).tables["copy"].to_pylist()
    assert [each["copy_kind"] for each in copies[:5]] == ["DtoH", "PtoP", "DtoD", None, "HtoD"]
    assert [each["name"] for each in copies[:4]] == [
        "Memcpy DtoH",
        "Memcpy PtoP",
        "Memcpy DtoD",
        "Memcpy",
    ]
    assert [each["device"] for each in copies[:4]] == [0, 1, 1, 1]


def test_calls_of_rccl_are_collectives_with_what_their_arguments_say(made: Path) -> None:
    lines = amd(devices=2)
    capture = rocpd.read(made)
    collectives = capture.tables["collective"].to_pylist()
    assert len(collectives) == lines.collectives["start"].size
    assert {
        (each["operation"], each["bytes"], each["dtype"], each["group"]) for each in collectives
    } == {("all_reduce", 1 << 22, "bfloat16", "0x7f0000001000")}
    assert {each["name"] for each in collectives} == {"ncclAllReduce"}
    change(
        made,
        f"UPDATE rocpd_arg{S} SET value = '-5' WHERE name = 'count'",
        f"UPDATE rocpd_arg{S} SET value = 'ncclFloat32' WHERE name = 'datatype'",
        f"UPDATE rocpd_string{S} SET string = 'ncclCommInitRank' WHERE string = 'ncclAllReduce'",
    )
    changed = rocpd.read(made)
    assert changed.count("collective") is None
    assert "ncclCommInitRank" in set(column(changed, "api", "name"))
    assert changed.count("api") == (capture.count("api") or 0) + len(collectives)


def test_several_processes_of_one_file_are_all_read(tmp_path: Path) -> None:
    first = write_rocpd(amd(50, rank=0, world_size=2), tmp_path / "a.db")
    guid = "0198c3a1-5f00-7abc-8def-00000000abcd"
    other = write_rocpd(amd(30, pid=99, rank=1, world_size=2), tmp_path / "b.db", guid=guid)
    end = "_" + guid.replace("-", "_")
    with sqlite3.connect(first) as connection:
        connection.execute("ATTACH ? AS other", (str(other),))
        sql = (
            "SELECT name, sql FROM other.sqlite_master WHERE type = 'table' AND name LIKE 'rocpd%'"
        )
        for name, text in connection.execute(sql).fetchall():
            assert name.endswith(end)
            connection.execute(text)
            connection.execute(f'INSERT INTO main."{name}" SELECT * FROM other."{name}"')
    connection.close()
    capture = rocpd.read(first)
    assert capture.count("kernel") == 80
    assert sorted((each.pid, each.rank) for each in capture.processes) == [(99, 1), (4242, 0)]
    assert capture.rank is None
    # both on one machine: the same GPU
    assert [each.index for each in capture.devices] == [0]
    change(first, f"UPDATE rocpd_info_agent{end} SET nid = 8")
    apart = rocpd.read(first)
    assert [each.index for each in apart.devices] == [0, 1]
    assert column(apart, "kernel", "device") == [0] * 50 + [1] * 30


def test_counters_of_kernels_are_metrics(made: Path) -> None:
    change(
        made,
        f"INSERT INTO rocpd_info_pmc{S} (id, nid, pid, name, symbol, units) VALUES"
        " (5, 7, 4242, 'SQ_WAVES', 'SQ_WAVES', 'waves')",
        f"INSERT INTO rocpd_pmc_event{S} (event_id, pmc_id, value) SELECT event_id, 5,"
        f" dispatch_id * 2.5 FROM rocpd_kernel_dispatch{S} WHERE rowid <= 3",
        f"INSERT INTO rocpd_pmc_event{S} (event_id, pmc_id, value) VALUES (1, 5, 1.0)",
    )
    metrics = rocpd.read(made).metrics
    assert metrics is not None
    assert metrics.column_names == list(METRIC_COLUMNS)
    launches = query(made, f"SELECT dispatch_id FROM rocpd_kernel_dispatch{S} WHERE rowid <= 3")
    assert metrics.column("launch").to_pylist() == [row[0] for row in launches]
    assert metrics.column("value").to_pylist() == [row[0] * 2.5 for row in launches]
    assert set(metrics.column("metric").to_pylist()) == {"SQ_WAVES"}
    assert set(metrics.column("unit").to_pylist()) == {"waves"}


def test_what_rocprofv3_was_asked_decides_between_empty_and_absent(tmp_path: Path) -> None:
    file = write_rocpd(amd(0), tmp_path / "a.db")
    assert rocpd.read(file).count("kernel") == 0
    options = {"kernel_trace": False, "counter_collection": False, "memory_copy_trace": True}
    options |= {"rccl_api_trace": True, "marker_api_trace": False}
    sql = f"UPDATE rocpd_info_process{S} SET extdata = ?"
    change(file, sql, values=(json.dumps(options),))
    capture = rocpd.read(file)
    counts = [capture.count(kind) for kind in ("kernel", "copy", "range", "collective")]  # type: ignore[arg-type]
    assert counts == [None, 0, None, 0]


def test_the_schema_with_tracks_is_read(tmp_path: Path) -> None:
    # versions/4.1.0/rocpd_tables.sql at a195360b2bc5: process, thread, agent, queue and stream of a
    # row are its track's, and categories have a table of their own
    file = tmp_path / "a.db"
    change(
        file,
        "CREATE TABLE rocpd_metadata_x (id INTEGER PRIMARY KEY, tag TEXT, value TEXT)",
        "INSERT INTO rocpd_metadata_x VALUES (1, 'schema_version', '4')",
        "CREATE TABLE rocpd_string_x (id INTEGER PRIMARY KEY, guid TEXT, string TEXT)",
        "INSERT INTO rocpd_string_x VALUES (1, '', 'hipLaunchKernel'), (2, '', 'roctxRangeA')",
        "CREATE TABLE rocpd_info_category_x (id INTEGER PRIMARY KEY, guid TEXT, name TEXT)",
        "INSERT INTO rocpd_info_category_x VALUES (1, '', 'HIP_RUNTIME_API'),"
        " (2, '', 'MARKER_CORE_RANGE_API')",
        "CREATE TABLE rocpd_info_agent_x (id INTEGER PRIMARY KEY, nid INTEGER, pid INTEGER,"
        " type TEXT, absolute_index INTEGER, type_index INTEGER, name TEXT, product_name TEXT,"
        " model_name TEXT, uuid INTEGER, extdata TEXT)",
        "INSERT INTO rocpd_info_agent_x VALUES (4, 1, 5, 'GPU', 4, 0, 'gfx942', '', '', 4, '{}')",
        "CREATE TABLE rocpd_info_kernel_symbol_x (id INTEGER PRIMARY KEY, display_name TEXT)",
        "INSERT INTO rocpd_info_kernel_symbol_x VALUES (1, 'attn_fwd')",
        "CREATE TABLE rocpd_track_x (id INTEGER PRIMARY KEY, nid INTEGER, ppid INTEGER,"
        " pid INTEGER, tid INTEGER, agent_id INTEGER, queue_id INTEGER,"
        " stream_id INTEGER, name_id INTEGER)",
        "INSERT INTO rocpd_track_x VALUES (1, 1, 0, 5, 6, NULL, NULL, NULL, NULL),"
        " (2, 1, 0, 5, 6, 4, 8, 9, NULL)",
        "CREATE TABLE rocpd_event_x (id INTEGER PRIMARY KEY, category_id INTEGER, stack_id INTEGER,"
        " extdata TEXT)",
        "INSERT INTO rocpd_event_x VALUES (1, 1, 31, '{}'), (2, 2, 32, '{\"message\": \"step\"}'),"
        " (3, NULL, 31, '{}')",
        "CREATE TABLE rocpd_region_x (id INTEGER PRIMARY KEY, track_id INTEGER, name_id INTEGER,"
        " start INTEGER, end INTEGER, event_id INTEGER)",
        "INSERT INTO rocpd_region_x VALUES (1, 1, 1, 10, 20, 1), (2, 1, 2, 5, 40, 2)",
        "CREATE TABLE rocpd_kernel_dispatch_x (id INTEGER PRIMARY KEY, track_id INTEGER,"
        " kernel_id INTEGER, dispatch_id INTEGER, start INTEGER, end INTEGER, event_id INTEGER)",
        "INSERT INTO rocpd_kernel_dispatch_x VALUES (1, 2, 1, 1, 15, 30, 3)",
    )
    capture = rocpd.read(file)
    (kernel,) = capture.tables["kernel"].to_pylist()
    assert (kernel["name"], kernel["pid"], kernel["tid"], kernel["device"]) == ("attn_fwd", 5, 6, 0)
    assert (kernel["queue"], kernel["stream"], kernel["correlation"]) == (8, 9, 31)
    (call,) = capture.tables["api"].to_pylist()
    assert (call["name"], call["pid"], call["tid"], call["correlation"]) == (
        "hipLaunchKernel",
        5,
        6,
        31,
    )
    (span,) = capture.tables["range"].to_pylist()
    assert (span["name"], span["start_ns"], span["end_ns"]) == ("step", 5, 40)
    assert capture.source.schema == "4"


def test_every_table_follows_the_schema(made: Path) -> None:
    for kind, table in rocpd.read(made).tables.items():
        order = [name for name in EVENT_COLUMNS if name in table.column_names]
        assert table.column_names == order, kind
        table.validate(full=True)


def test_the_reader_of_a_file_is_found(made: Path) -> None:
    wanted = ("start_ns", "end_ns", "short_name", "device")
    few = reading.read(made, wanted)
    assert few.source.format == rocpd.KIND
    assert set(few.tables["kernel"].column_names) == set(wanted)


def test_the_process_s_arguments_and_variables_are_not_kept(made: Path) -> None:
    change(
        made,
        f"UPDATE rocpd_info_process{S} SET command = '/opt/python3 train.py --token hunter2',"
        ' environment = \'{"API_KEY": "hunter2"}\'',
    )
    capture = rocpd.read(made)
    assert capture.processes[0].name == "python3"
    assert "hunter2" not in repr(capture)


# --- wrong files


def test_impossible_times_are_left_out_and_counted(made: Path) -> None:
    change(
        made,
        f"UPDATE rocpd_kernel_dispatch{S} SET end = start - 1 WHERE rowid = 1",
        f"UPDATE rocpd_kernel_dispatch{S} SET start = 'x' WHERE rowid = 2",
        # rocprofv3 writes what is above 2^63 as a floating-point number
        f"UPDATE rocpd_kernel_dispatch{S} SET end = 1.8446744073709552e19 WHERE rowid = 3",
    )
    capture = rocpd.read(made)
    assert (capture.count("kernel"), capture.dropped) == (197, 3)
    assert len(capture.problems) == 2


@pytest.mark.parametrize(
    "missing", ["event", "string", "info_agent", "info_kernel_symbol", "track", "arg", "sample"]
)
def test_a_missing_table_is_not_a_reason_to_fail(made: Path, missing: str) -> None:
    change(made, "PRAGMA foreign_keys = OFF", f"DROP TABLE rocpd_{missing}{S}")
    assert rocpd.read(made).count("kernel") == 200


def test_views_in_place_of_tables_are_not_read(made: Path) -> None:
    change(
        made,
        f"ALTER TABLE rocpd_kernel_dispatch{S} RENAME TO hidden",
        f"CREATE VIEW rocpd_kernel_dispatch{S} AS SELECT 1 AS start, 2 AS end",
    )
    assert rocpd.read(made).count("kernel") is None


def test_numbers_of_events_far_apart_cost_only_the_correlation(made: Path) -> None:
    change(made, f"INSERT INTO rocpd_event{S} (id) VALUES (9223372036854775807)")
    capture = rocpd.read(made)
    assert capture.count("kernel") == 200
    assert set(column(capture, "kernel", "correlation")) == {None}
    assert "too far apart" in capture.problems[0]


def test_names_and_json_that_are_not_utf8_or_json(made: Path) -> None:
    change(
        made,
        f"UPDATE rocpd_info_kernel_symbol{S} SET display_name = CAST(? AS TEXT) WHERE id = 1",
        values=(b"Cijk_\xff",),
    )
    change(
        made,
        f"UPDATE rocpd_event{S} SET extdata = '[[[' WHERE extdata LIKE '%message%'",
        f"UPDATE rocpd_info_agent{S} SET extdata = '[1]', type_index = 'x'",
        f"UPDATE rocpd_info_kernel_symbol{S} SET extdata = '{{\"truncated_kernel_name\": 5}}'",
        f"UPDATE rocpd_info_process{S} SET environment = '{{\"RANK\": \"x\"}}', extdata = '7'",
    )
    capture = rocpd.read(made)
    assert "Cijk_\ufffd" in set(column(capture, "kernel", "name"))
    assert set(column(capture, "range", "name")) == {"(range without a name)"}
    assert [each.index for each in capture.devices] == [1, 2]
    assert capture.rank is None


def test_a_file_that_breaks_off_is_refused_in_one_line(made: Path) -> None:
    whole = made.read_bytes()
    made.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="breaks off after"):
        reading.read(made)


def test_another_program_s_database_is_refused(tmp_path: Path) -> None:
    file = change(tmp_path / "a.db", "CREATE TABLE rocpd_kernel_dispatcher (a TEXT)")
    with pytest.raises(FormatError, match="not a file of rocprofv3"):
        rocpd.read(file)
