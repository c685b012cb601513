"""The SQLite files of nsys: recordings, and files made to be wrong.

The oracle is plain SQL through Python's sqlite3, and values worked out by hand.
"""

from __future__ import annotations

import gzip
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("adbc_driver_sqlite")

from portagpu.facts.captures.model import EVENT_COLUMNS, Capture
from portagpu.facts.captures.sqlite import opened
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis import reading
from portagpu_cuda.captures import nsys_sqlite
from tests.conftest import ROOT
from tests.support.trace_samples import short, timeline, write_nsys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

RECORDINGS = ROOT / "tests/vendor_texts/trace_recordings"
PERLMUTTER = "nsys-saxpy-mpi-perlmutter.sqlite.gz"
H100 = "nsysai-h100_2gpu_1s.sqlite.gz"
HEALTHY = "nsysai-healthy_1pct.sqlite.gz"


def recorded(name: str) -> Capture:
    return nsys_sqlite.read(RECORDINGS / name)


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute(sql).fetchall()
    connection.close()
    return rows


def change(path: Path, *statements: str, values: Sequence[Any] = ()) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement, values)
    connection.close()
    return path


def column(capture: Capture, kind: Any, name: str) -> list[Any]:
    found: list[Any] = capture.tables[kind].column(name).to_pylist()
    return found


@pytest.fixture
def unpacked(tmp_path: Path) -> Iterator[Any]:
    def unpack(name: str) -> Path:
        file = tmp_path / name.removesuffix(".gz")
        file.write_bytes(gzip.decompress((RECORDINGS / name).read_bytes()))
        return file

    return unpack


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A file of nsys with 200 kernels on two devices."""
    return write_nsys(timeline(200, devices=2, sets=True), tmp_path / "made.sqlite")


@pytest.mark.parametrize(
    ("name", "counts", "version", "schema"),
    [
        # nvtx: of 24 rows one creates a domain and one names a thread
        (PERLMUTTER, {"kernel": 5, "copy": 15, "set": 0, "api": 95, "range": 22}, "", ""),
        (
            H100,
            {"kernel": 3442, "copy": 904, "set": 22, "api": 5796, "range": 16782, "sync": 244},
            "2026.2.1.210",
            "3.25.0",
        ),
        (HEALTHY, {"kernel": 400, "api": 400, "copy": 0}, "2026.1.1.204", "3.24.14"),
    ],
)
def test_a_recording_has_as_many_events_as_its_tables_have_rows(
    name: str, counts: dict[Any, int], version: str, schema: str
) -> None:
    capture = recorded(name)
    assert {kind: capture.count(kind) for kind in counts} == counts
    assert (capture.source.version, capture.source.schema) == (version, schema)
    assert capture.dropped == 0
    assert capture.problems == ()


def test_kernels_of_a_recording_are_those_that_sql_finds(unpacked: Any) -> None:
    sql = """SELECT start, end, d.value, s.value, (globalPid >> 24) & 16777215, deviceId, streamId,
        correlationId, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread,
        staticSharedMemory + dynamicSharedMemory, localMemoryPerThread
        FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds d ON d.id = k.demangledName
        JOIN StringIds s ON s.id = k.shortName ORDER BY k.rowid"""
    names = "start_ns end_ns name short_name pid device stream correlation grid_x grid_y grid_z"
    names += " block_x block_y block_z registers shared_bytes scratch_bytes"
    table = recorded(H100).tables["kernel"].select(names.split())
    found = zip(*[each.to_pylist() for each in table.columns], strict=True)
    assert list(found) == query(unpacked(H100), sql)


def test_copies_and_sets_of_a_recording_are_those_that_sql_finds(unpacked: Any) -> None:
    sql = "SELECT start, bytes, CASE copyKind WHEN 1 THEN 'HtoD' WHEN 2 THEN 'DtoH' WHEN 8 THEN"
    sql += " 'DtoD' WHEN 10 THEN 'PtoP' END FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY rowid"
    capture = recorded(H100)
    lists = [column(capture, "copy", name) for name in ("start_ns", "bytes", "copy_kind")]
    assert list(zip(*lists, strict=True)) == query(unpacked(H100), sql)
    assert set(column(capture, "copy", "name")) == {f"Memcpy {kind}" for kind in set(lists[2])}
    total = query(unpacked(H100), "SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET")[0][0]
    assert sum(column(capture, "set", "bytes")) == total


def test_calls_have_no_version_in_their_names_and_ranges_no_numbers_of_operators() -> None:
    capture = recorded(H100)
    assert not [name for name in set(column(capture, "api", "name")) if "_v" in name]
    assert Counter(column(capture, "api", "name"))["cudaLaunchKernel"] > 1000
    assert not [name for name in set(column(capture, "range", "name")) if "op_id" in name]
    assert {each.pid for each in capture.processes} == {111, 112}


def test_the_perlmutter_recording_has_its_device_domain_and_rank() -> None:
    capture = recorded(PERLMUTTER)
    (device,) = capture.devices
    assert (device.name, device.architecture, device.units) == (
        "NVIDIA A100-SXM4-40GB",
        "sm_80",
        108,
    )
    assert (device.memory_bytes, device.warp_size) == (42297524224, 32)
    ranges = capture.tables["range"].to_pylist()
    # 59 is the id of MPI_Init in StringIds; the domain 1 is created as "MPI"
    assert (ranges[0]["name"], ranges[0]["domain"]) == ("MPI_Init", "MPI")
    assert [each["domain"] for each in ranges if each["name"] == "saxpy"] == [None] * 5
    assert capture.rank == 0  # the thread is named "MPI Rank 0"


def test_a_column_or_table_that_the_file_lacks_is_absent() -> None:
    capture = recorded(HEALTHY)
    assert "registers" not in capture.tables["kernel"].column_names
    assert "pid" not in capture.tables["kernel"].column_names
    assert capture.count("range") is None
    # the tables of CUDA are there and their export is lazy: there was no memset
    assert capture.count("set") == 0


def test_the_reader_of_a_file_is_found_also_in_gzip(made: Path) -> None:
    assert reading.read(made).source.format == nsys_sqlite.KIND
    assert reading.read(RECORDINGS / PERLMUTTER).source.format == nsys_sqlite.KIND
    wanted = ("start_ns", "end_ns", "short_name", "device")
    few = reading.read(made, wanted).tables["kernel"]
    assert set(few.column_names) == set(wanted)
    assert few.equals(nsys_sqlite.read(made).tables["kernel"].select(few.column_names))


def test_every_table_follows_the_schema(made: Path) -> None:
    for file in (made, RECORDINGS / H100, RECORDINGS / HEALTHY):
        for kind, table in nsys_sqlite.read(file).tables.items():
            order = [name for name in EVENT_COLUMNS if name in table.column_names]
            assert table.column_names == order, kind
            assert "kind" not in order
            table.validate(full=True)


def test_a_made_timeline_comes_back(tmp_path: Path) -> None:
    lines = timeline(3000, devices=3, shuffled=True, sets=True, marks=True, labelled=True)
    capture = nsys_sqlite.read(write_nsys(lines, tmp_path / "a.sqlite"))
    order = lines.shuffled
    assert order is not None
    assert column(capture, "kernel", "start_ns") == lines.kernels["start"][order].tolist()
    assert column(capture, "kernel", "end_ns") == lines.kernels["end"][order].tolist()
    names = [lines.names[index] for index in lines.kernels["name"][order].tolist()]
    assert column(capture, "kernel", "name") == names
    assert column(capture, "kernel", "short_name") == [short(name) for name in names]
    assert column(capture, "set", "bytes") == lines.sets["bytes"].tolist()
    marks = lines.ranges["start"] == lines.ranges["end"]
    assert capture.count("range") == marks.size
    ends = column(capture, "range", "end_ns")
    assert ends == lines.ranges["end"].tolist()
    found = capture.tables["collective"].to_pylist()
    assert {each["operation"] for each in found} == {"all_reduce"}
    assert [each["sequence"] for each in found] == lines.collectives["sequence"].tolist()
    assert {(each["bytes"], each["dtype"], each["group"]) for each in found} == {
        (1 << 22, "bfloat16", "0")
    }


@pytest.mark.parametrize("count", [0, 1])
def test_a_capture_of_next_to_nothing(tmp_path: Path, count: int) -> None:
    file = write_nsys(timeline(count), tmp_path / "a.sqlite", lazy=False)
    capture = nsys_sqlite.read(file)
    assert capture.count("kernel") == count
    assert capture.count("range") is not None
    assert (capture.dropped, capture.problems) == (0, ())


def test_what_is_on_or_off_in_the_options_is_empty_or_absent(tmp_path: Path) -> None:
    file = write_nsys(timeline(0), tmp_path / "a.sqlite")
    change(
        file,
        "CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)",
        "INSERT INTO META_DATA_CAPTURE VALUES ('COLLECT_CUDA_TRACE', 'true'),"
        " ('COLLECT_NVTX_TRACE', 'false')",
    )
    capture = nsys_sqlite.read(file)
    assert (capture.count("kernel"), capture.count("range")) == (0, None)
    change(file, "UPDATE META_DATA_CAPTURE SET value = 'false' WHERE name LIKE '%CUDA%'")
    change(file, "DROP TABLE TARGET_INFO_CUDA_STREAM")
    assert nsys_sqlite.read(file).count("kernel") is None


def test_what_nsys_says_of_its_own_capture_is_kept(made: Path) -> None:
    # the columns that other public programs read of the exports of nsys 2023 to 2026
    change(
        made,
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, timestampType INTEGER, source INTEGER,"
        " severity INTEGER, text TEXT, globalPid INTEGER)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (10, 2, 3, 2, 'Not all NVTX events might have been"
        " collected.', 1), (20, 1, 3, 1, 'Profiling has started.', 1), (30, 1, 3, 3, 'boom', 1)",
        "CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER, startTime INTEGER,"
        " stopTime INTEGER)",
        "INSERT INTO ANALYSIS_DETAILS VALUES (1, 90000000000, 1700000000000000000,"
        " 1700000090000000000)",
        "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT)",
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '')",
        "CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
        "INSERT INTO PROCESSES VALUES (1, 4242, 'python3'), (2, 1, 'init')",
        "CREATE TABLE MPI_RANKS (globalPid INTEGER, rank INTEGER)",
        "INSERT INTO MPI_RANKS VALUES ((1 << 48) + (4242 << 24), 3)",
    )
    capture = nsys_sqlite.read(made)
    assert [(each.level, each.text) for each in capture.messages] == [
        ("warning", "Not all NVTX events might have been collected."),
        ("info", "Profiling has started."),
        ("error", "boom"),
    ]
    # the start is on the clock of the day, the events are not: the capture begins at 0
    assert capture.span_ns == (0, 90_000_000_000)
    assert capture.epoch_ns == 1_700_000_000_000_000_000
    assert [(each.pid, each.name, each.rank) for each in capture.processes] == [
        (4242, "python3", 3)
    ]


def test_kernels_inside_of_graphs_are_distinguished_from_none(tmp_path: Path) -> None:
    file = write_nsys(timeline(3), tmp_path / "a.sqlite")
    change(
        file,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER,"
        " deviceId INTEGER, graphId INTEGER, graphExecId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (5, 9, 0, 17, 1, 7, 70, 0)",
    )
    capture = nsys_sqlite.read(file)
    last = capture.tables["kernel"].to_pylist()[-1]
    assert (last["name"], last["graph"], last["start_ns"]) == ("(CUDA graph)", 17, 5)
    assert capture.count("kernel") == 4
    assert "--cuda-graph-trace=node" in capture.messages[0].text


def test_processes_that_number_their_devices_differently_keep_them_apart(tmp_path: Path) -> None:
    file = write_nsys(timeline(4, calls=False, copies=False), tmp_path / "a.sqlite")
    change(
        file,
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (2, 0, 4242), (5, 0, 77)",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 77 << 24 WHERE rowid > 2",
    )
    capture = nsys_sqlite.read(file)
    assert column(capture, "kernel", "device") == [2, 2, 5, 5]
    assert {2, 5} <= {each.index for each in capture.devices}


def test_payloads_of_ranges_are_json(tmp_path: Path) -> None:
    file = write_nsys(timeline(10), tmp_path / "a.sqlite", lazy=False)
    change(
        file,
        "DELETE FROM NVTX_EVENTS",
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, jsonText, int64Value, textId)"
        " VALUES (1, 2, 59, 'a', '{\"k\":1}', NULL, NULL), (1, 2, 60, 'b', NULL, -7, NULL),"
        " (3, NULL, 34, NULL, NULL, NULL, 0), (4, NULL, 60, 'open', NULL, NULL, NULL)",
    )
    rows = nsys_sqlite.read(file).tables["range"].to_pylist()
    assert [each["payload"] for each in rows] == ['{"k":1}', '{"payload":-7}', None, None]
    assert [each["end_ns"] for each in rows] == [2, 2, 3, None]
    first = query(file, "SELECT value FROM StringIds WHERE id = 0")[0][0]
    assert rows[2]["name"] == first


def test_our_labels_are_read_from_the_text_where_a_payload_stands_next_to_it(
    tmp_path: Path,
) -> None:
    # the package nvtx takes a single number as a payload of its own, and a domain apart
    file = write_nsys(timeline(10), tmp_path / "a.sqlite", lazy=False)
    change(
        file,
        "DELETE FROM NVTX_EVENTS",
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, int64Value,"
        " jsonText) VALUES (0, NULL, 75, 'portagpu.collective', 5, 2, NULL, NULL),"
        " (0, NULL, 75, 'portagpu', 5, 3, NULL, NULL),"
        " (1, 2, 59, 'step {''number'':7}', 5, 3, 7, NULL),"
        " (3, 9, 59, 'all_reduce {''bytes'':8,''dtype'':''float16'',''sequence'':3}', 5, 2, NULL,"
        " '{\"schema\":1}')",
    )
    capture = nsys_sqlite.read(file)
    (step,) = capture.tables["range"].to_pylist()
    assert (step["name"], step["domain"], step["payload"]) == ("step", "portagpu", '{"number":7}')
    (found,) = capture.tables["collective"].to_pylist()
    assert (found["operation"], found["bytes"], found["dtype"]) == ("all_reduce", 8, "float16")
    assert (found["sequence"], found["start_ns"], found["end_ns"]) == (3, 3, 9)


# --- wrong files


def test_events_that_end_before_they_start_are_left_out_and_counted(made: Path) -> None:
    change(made, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE rowid IN (3, 5, 8)")
    capture = nsys_sqlite.read(made)
    assert capture.count("kernel") == 197
    assert capture.dropped == 3
    assert capture.problems == (
        "CUPTI_ACTIVITY_KIND_KERNEL: left out 3 events that end before they start",
    )


def test_kernels_whose_times_could_not_be_collected_are_left_out(made: Path) -> None:
    change(
        made,
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0, end = 0 WHERE rowid = 2",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0 WHERE rowid = 3",
    )
    capture = nsys_sqlite.read(made)
    assert (capture.count("kernel"), capture.dropped) == (199, 1)
    assert 0 in column(capture, "kernel", "start_ns")


def test_values_of_another_type_are_left_out_and_the_rest_is_read(tmp_path: Path) -> None:
    file = write_nsys(timeline(40, calls=False, copies=False), tmp_path / "a.sqlite")
    change(
        file,
        "CREATE TABLE plain AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",  # no types, no rules
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "ALTER TABLE plain RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL WHERE rowid <= 10",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 'abc' WHERE rowid = 20",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 9223372036854775807 WHERE rowid = 21",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1099511627776 WHERE rowid = 22",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 30",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 1.5 WHERE rowid = 31",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775807 WHERE rowid = 32",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = 123456789 WHERE rowid = 33",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = x'00ff', end = NULL WHERE rowid = 34",
    )
    capture = nsys_sqlite.read(file)
    assert capture.count("kernel") == 36
    assert capture.dropped == 4
    assert "left out 4 events without usable times" in capture.problems[0]
    correlations = column(capture, "kernel", "correlation")
    assert correlations[:10] == [None] * 10
    assert (correlations[18], correlations[19], correlations[20]) == (19, None, 21)
    assert column(capture, "kernel", "stream")[20] == (1 << 63) - 1
    assert column(capture, "kernel", "device")[21] is None
    assert "(name missing)" in column(capture, "kernel", "short_name")


def test_a_type_that_changes_after_the_first_batch_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.facts.captures.sqlite_batches.BATCH_ROWS", 64)
    file = write_nsys(timeline(1000, calls=False, copies=False), tmp_path / "a.sqlite")
    change(
        file,
        "CREATE TABLE plain AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "ALTER TABLE plain RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 'text' WHERE rowid = 900",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 2.5 WHERE rowid = 901",
    )
    streams = column(nsys_sqlite.read(file), "kernel", "stream")
    assert len(streams) == 1000
    assert [place for place, each in enumerate(streams, 1) if each is None] == [900, 901]


def test_names_that_are_not_utf8_have_a_sign_in_their_place(made: Path) -> None:
    change(
        made,
        "UPDATE StringIds SET value = CAST(? AS TEXT) WHERE value LIKE 'triton%'",
        values=(b"tri\xff\xfeton\x1b[31m<b>",),
    )
    names = set(column(nsys_sqlite.read(made), "kernel", "name"))
    assert "tri\ufffd\ufffdton\x1b[31m<b>" in names


def test_rows_out_of_order_keep_the_order_of_the_file(tmp_path: Path) -> None:
    lines = timeline(500, shuffled=True)
    capture = nsys_sqlite.read(write_nsys(lines, tmp_path / "a.sqlite"))
    starts = column(capture, "kernel", "start_ns")
    assert starts != sorted(starts)
    assert sorted(starts) == lines.kernels["start"].tolist()


@pytest.mark.parametrize("part", [0.02, 0.5, 0.999])
def test_a_file_that_breaks_off_is_refused_in_one_line(made: Path, part: float) -> None:
    whole = made.read_bytes()
    made.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(FormatError) as error:
        reading.read(made)
    assert "breaks off after" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gzip_that_breaks_off_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite.gz"
    file.write_bytes((RECORDINGS / H100).read_bytes()[:200_000])
    with pytest.raises(FormatError, match="the gzip breaks off"):
        reading.read(file)


def test_a_gzip_of_far_more_than_its_size_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.facts.captures.model._BYTES", 1 << 20)
    file = tmp_path / "a.sqlite.gz"
    file.write_bytes(gzip.compress(b"SQLite format 3\0" + bytes(64 << 20)))
    with pytest.raises(FormatError, match="unpack it with gunzip"):
        nsys_sqlite.read(file)


def test_damaged_pages_cost_their_rows_and_no_more(tmp_path: Path) -> None:
    file = write_nsys(timeline(5000, calls=False, copies=False), tmp_path / "a.sqlite")
    sql = (
        "SELECT pageno FROM dbstat WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL' AND pagetype = 'leaf'"
    )
    try:
        pages = [row[0] for row in query(file, sql)]
    except sqlite3.OperationalError:
        pytest.skip("this sqlite3 has no dbstat")
    size = query(file, "PRAGMA page_size")[0][0]
    data = bytearray(file.read_bytes())
    for page in pages[3:5]:
        data[(page - 1) * size : page * size] = b"\xa5" * size
    file.write_bytes(data)
    capture = nsys_sqlite.read(file)
    count = capture.count("kernel")
    assert count is not None
    assert 5000 * (1 - 8 / len(pages)) < count < 5000
    assert capture.dropped == 5000 - count
    assert "rows are lost in damaged pages" in capture.problems[0]


@pytest.mark.parametrize("child", ["the root", "the first leaf"])
def test_pages_that_are_linked_in_circles_end(tmp_path: Path, child: str) -> None:
    file = write_nsys(timeline(20_000, calls=False, copies=False), tmp_path / "a.sqlite")
    sql = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
    (root,) = query(file, sql)[0]
    size = query(file, "PRAGMA page_size")[0][0]
    data = bytearray(file.read_bytes())
    page = data[(root - 1) * size : root * size]
    assert page[0] == 5, "the root is an inner page"
    places = [
        int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell], "big")
        for cell in range(int.from_bytes(page[3:5], "big"))
    ]
    first = page[places[0] : places[0] + 4]
    for at in places:
        page[at : at + 4] = root.to_bytes(4, "big") if child == "the root" else first
    data[(root - 1) * size : root * size] = page
    file.write_bytes(data)
    capture = nsys_sqlite.read(file)
    count = capture.count("kernel")
    assert count is not None
    # a row has at least 5 bytes, and half a byte for each of its 40 columns
    assert count <= len(data) // 25
    assert child == "the first leaf" or capture.dropped > 19_000


def test_a_view_in_place_of_a_table_is_not_run(made: Path) -> None:
    change(
        made,
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO hidden",
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL"
        " SELECT start + 1 FROM n) SELECT start, start AS end FROM n",
    )
    capture = nsys_sqlite.read(made)
    assert capture.count("kernel") == 0
    assert capture.count("api") == 208


def test_a_computed_column_is_not_run(tmp_path: Path) -> None:
    file = write_nsys(timeline(5), tmp_path / "a.sqlite")
    change(
        file,
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER"
        " GENERATED ALWAYS AS (length(hex(zeroblob(1000)))))",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2)",
    )
    capture = nsys_sqlite.read(file)
    assert capture.tables["kernel"].to_pylist() == [{"start_ns": 1, "end_ns": 2}]


def test_a_table_without_times_is_not_a_reason_to_fail(made: Path) -> None:
    change(
        made,
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (a TEXT)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x')",
        "DROP TABLE StringIds",
        "CREATE TABLE StringIds (id TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",
    )
    capture = nsys_sqlite.read(made)
    assert capture.count("kernel") == 0
    assert any("CUPTI_ACTIVITY_KIND_KERNEL" in problem for problem in capture.problems)
    assert set(column(capture, "api", "name")) == {"(name missing)"}


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + b"\0" * 4096]
)
def test_what_is_not_a_database_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.sqlite"
    file.write_bytes(content)
    with pytest.raises(FormatError) as error:
        nsys_sqlite.read(file)
    assert "\n" not in str(error.value)


def test_another_program_s_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    change(file, "CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(FormatError, match="not an export of nsys"):
        nsys_sqlite.read(file)
    with pytest.raises(FormatError, match="no reader knows this file"):
        reading.read(file)


def test_changes_in_a_journal_next_to_the_file_are_mentioned(made: Path) -> None:
    made.with_name(made.name + "-wal").write_bytes(b"x")
    assert "has changes that are not read" in nsys_sqlite.read(made).problems[0]


def test_a_newer_schema_is_read_with_a_warning(made: Path) -> None:
    change(made, "UPDATE META_DATA_EXPORT SET value = '4.0.1' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    capture = nsys_sqlite.read(made)
    assert capture.source.schema == "4.0.1"
    assert "newer than 3.x" in capture.problems[0]


def test_the_file_is_not_changed(made: Path) -> None:
    before = made.read_bytes()
    with opened(made) as file:
        assert file._connection is not None
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            file._connection.execute("DELETE FROM StringIds")
    nsys_sqlite.read(made)
    assert made.read_bytes() == before


def test_a_schema_that_is_not_utf8_is_refused_in_one_line(made: Path) -> None:
    # SQLite's message quotes the statement, and Python cannot decode it
    data = made.read_bytes()
    made.write_bytes(data.replace(b"CREATE TABLE StringIds (", b"CREATE TABLE StringIds \xc9"))
    with pytest.raises(UnicodeDecodeError):
        query(made, "SELECT 1 FROM sqlite_master")
    with pytest.raises(FormatError) as error:
        nsys_sqlite.read(made)
    assert "\n" not in str(error.value)


def test_texts_in_utf16_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16le'")
        connection.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT)")
    connection.close()
    with pytest.raises(FormatError, match="UTF-16le"):
        nsys_sqlite.read(file)


def test_a_statement_that_takes_too_long_is_stopped(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(
        made,
        "CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
        "INSERT INTO PROCESSES WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
        " WHERE i < 30000) SELECT i, i, 'x' FROM n",
    )
    assert nsys_sqlite.read(made).problems == ()
    monkeypatch.setattr("portagpu.facts.captures.sqlite.STATEMENT_S", -1.0)
    capture = nsys_sqlite.read(made)
    assert capture.count("kernel") == 200
    (problem,) = capture.problems
    assert problem.startswith("PROCESSES: only ")
    assert problem.endswith("rows could be read: interrupted")


def test_without_short_names_a_nameless_kernel_has_its_short_one(made: Path) -> None:
    change(
        made,
        "CREATE TABLE copied AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "ALTER TABLE copied RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = NULL WHERE rowid = 7",
    )
    with_short = nsys_sqlite.read(made)
    expected = column(with_short, "kernel", "name")
    assert expected[6] is None
    expected[6] = column(with_short, "kernel", "short_name")[6]
    few = nsys_sqlite.read_columns(made, ("start_ns", "end_ns", "name"))
    assert column(few, "kernel", "name") == expected
    assert "short_name" not in few.tables["kernel"].column_names


def test_correlations_without_calls_are_left_out_unless_all_is_wanted(made: Path) -> None:
    wanted = ("start_ns", "end_ns", "correlation")
    assert "correlation" in nsys_sqlite.read_columns(made, wanted).tables["kernel"].column_names
    change(made, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    assert "correlation" not in nsys_sqlite.read_columns(made, wanted).tables["kernel"].column_names
    assert "correlation" in nsys_sqlite.read(made).tables["kernel"].column_names
