"""Outputs of nccl-tests and rccl-tests, read and written; perf_tables/README.md has the sources."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from portagpu.facts.nccl_tests.model import (
    OPERATIONS,
    algbw_gbs,
    bus_factor,
    busbw_gbs,
    total_bytes,
)
from portagpu.facts.nccl_tests.tables import (
    TYPE_NAMES,
    PerfTable,
    RankDevice,
    Row,
    Timing,
    fitting_operations,
    item_bytes,
    operation_of,
    read_tables,
    write_json,
    write_text,
)
from portagpu.facts.readings.model import FormatError
from tests.conftest import ROOT

FOLDER = ROOT / "tests/vendor_texts/perf_tables"
RECORDED = (FOLDER / "all_reduce-2.17.1-8-ranks.txt").read_text("utf-8")
TEXTS = sorted(FOLDER.glob("*.txt"))


def one(name: str) -> PerfTable:
    (table,) = read_tables((FOLDER / name).read_text("utf-8"))
    return table


# bandwidth


@pytest.mark.parametrize(
    ("operation", "size", "busbw"),
    [
        # 1e9 bytes in half a second over 4 ranks, by hand
        ("all_reduce", 1_000_000_000, 3.0),
        ("all_gather", 4_000_000_000, 6.0),
        ("reduce_scatter", 4_000_000_000, 6.0),
        ("all_to_all", 4_000_000_000, 6.0),
        ("gather", 4_000_000_000, 6.0),
        ("scatter", 4_000_000_000, 6.0),
        ("broadcast", 1_000_000_000, 2.0),
        ("reduce", 1_000_000_000, 2.0),
        ("sendrecv", 1_000_000_000, 2.0),
    ],
)
def test_bandwidths_are_those_of_the_definition(operation: str, size: int, busbw: float) -> None:
    assert total_bytes(operation, 250_000_000, 4, 4) == size
    assert algbw_gbs(size, 0.5) == size / 5e8
    assert busbw_gbs(operation, size, 0.5, 4) == pytest.approx(busbw)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_rank_has_an_algorithm_bandwidth_alone(operation: str) -> None:
    assert busbw_gbs(operation, 1 << 20, 1.0, 1) is None


def test_a_time_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 s"):
        algbw_gbs(1, 0.0)
    with pytest.raises(ValueError, match="barrier"):
        total_bytes("barrier", 1, 4, 2)


@pytest.mark.torch
def test_the_bytes_of_an_element_are_torchs() -> None:
    import torch

    for name in TYPE_NAMES:
        assert item_bytes(name) == getattr(torch, name).itemsize


# text


def test_a_recording_is_read_whole() -> None:
    (table,) = read_tables(RECORDED)
    assert (table.program, table.operation, table.ranks) == ("all_reduce_perf", "all_reduce", 8)
    assert [row.size_bytes for row in table.rows] == [8 << step for step in range(25)]
    assert (table.out_of_bounds, table.average_busbw_gbs) == (0, 19.7866)
    assert table.ended
    assert not table.problems
    assert table.settings["iterations"] == 20
    assert table.settings["warmup_iters"] == 1
    assert table.devices[4] == RankDevice(
        rank=4,
        name="NVIDIA GH200 120GB",
        host="nid005487",
        bus="0009:01:00",
        process=155254,
    )
    last = table.rows[-1]
    assert (last.count, last.dtype, last.redop, last.root) == (33554432, "float32", "sum", None)
    assert last.out_of_place == Timing(
        time_us=1916.4,
        algbw_gbs=70.04,
        busbw_gbs=122.57,
        wrong=0,
        rounding=(pytest.approx(0.05), pytest.approx(0.005), pytest.approx(0.005)),  # type: ignore[arg-type]
    )
    assert last.in_place is not None
    assert last.in_place.busbw_gbs == 123.11


def test_the_average_of_a_recording_is_that_of_its_rows() -> None:
    (table,) = read_tables(RECORDED)
    values = [half.busbw_gbs for row in table.rows for _, half in row.timings]
    assert sum(values) / len(values) == pytest.approx(table.average_busbw_gbs, abs=0.005)


def test_the_first_layout_has_milliseconds() -> None:
    table = one("all_reduce-2017.txt")
    first = table.rows[0].out_of_place
    assert first is not None
    assert first.time_us == pytest.approx(121)
    # 1 MiB in 121 µs
    assert first.algbw_gbs == pytest.approx((1 << 20) / first.time_us / 1e3, abs=0.005)
    assert table.ranks == 2
    assert table.rows[1].in_place is not None
    assert table.rows[1].in_place.deviation == 2e-7
    assert fitting_operations(table) == ("all_reduce", "reduce")  # 2(n-1)/n is 1


def test_a_layout_with_one_half_says_which() -> None:
    broadcast = one("broadcast-2017.txt")
    assert broadcast.rows[0].in_place is None
    assert (broadcast.rows[0].root, broadcast.rows[0].redop) == (0, None)
    in_place = one("all_gather-rccl-in-place.txt")
    assert in_place.rows[0].out_of_place is None
    assert in_place.rows[1].in_place is not None
    assert in_place.rows[1].in_place.busbw_gbs == 31.27
    assert (in_place.operation, in_place.ranks) == ("all_gather", 4)
    assert in_place.versions == {"tests": "develop:ae3e635"}


def test_errors_of_the_second_layout_are_deviations() -> None:
    table = one("all_reduce-2019.txt")
    halves = [half for row in table.rows for _, half in row.timings]
    assert [half.deviation for half in halves] == [0, 0, 1e-7, 0, 0, 0]
    assert all(half.wrong is None and not half.beyond for half in halves)
    assert table.operation is None
    marked = one("all_reduce-rccl-2019.txt")
    assert [half.beyond for _, half in marked.rows[1].timings] == [True, True]
    assert marked.rows[1].out_of_place is not None
    assert marked.rows[1].out_of_place.deviation == 2
    assert marked.out_of_bounds == 2
    assert (marked.rows[0].dtype, marked.settings["warmup_iters"]) == ("float16", 5)


def test_columns_of_options_are_skipped() -> None:
    table = one("all_reduce-2.19-per-iteration.txt")
    (row,) = table.rows
    assert row.out_of_place is not None
    assert row.in_place is not None
    assert (row.out_of_place.wrong, row.in_place.wrong) == (0, 3)
    assert row.in_place.busbw_gbs == 51.40
    assert table.versions == {"tests": "2.19.6", "headers": "23007", "library": "23007"}
    assert table.settings["step_bytes"] == 1 << 20


def test_authors_remove_columns_and_add_separators() -> None:
    text = """$ ./build/reduce_scatter_perf -b 32k -e 1M -g 4 -n 50
           size    time   algbw   busbw
            (B)    (us)  (GB/s)  (GB/s)
         32_768   40.00    0.82    0.61
       1048_576   70.25   14.93   11.19
     1,073,741,824  9000   119.3   89.5
"""
    (table,) = read_tables(text)
    assert [row.size_bytes for row in table.rows] == [32768, 1 << 20, 1 << 30]
    assert (table.operation, table.ranks, table.ended) == ("reduce_scatter", 4, False)
    assert table.rows[0].dtype is None
    assert fitting_operations(table) == (
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "gather",
        "scatter",
    )


def test_columns_may_be_collapsed() -> None:
    lines = [" ".join(line.split()) for line in RECORDED.splitlines()]
    (table,) = read_tables("\n".join(lines) + "\n")
    (whole,) = read_tables(RECORDED)
    assert table.rows == whole.rows
    assert table.devices == whole.devices


PREFIXES = {
    "srun --label": "0: {}",
    "srun --label, 16 ranks": " 0: {}",
    "mpirun --tag-output": "[1,0]<stdout>:{}",
    "pdsh": "nid005471: {}",
    "docker compose": "rank-0  | {}",
    "quoted": "> {}",
    "a log with times": "2026-07-10T12:00:00.123456Z {}",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_prefixes_of_lines_are_removed(prefix: str) -> None:
    body = RECORDED.split("\n", 1)[1]
    (whole,) = read_tables(body)
    (table,) = read_tables("".join(prefix.format(line) + "\n" for line in body.splitlines()))
    assert table == whole


def test_the_librarys_log_comes_between_and_inside_rows() -> None:
    log = "nid005471:204199:204230 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x7f recvbuff 0x7e"
    (whole,) = read_tables(RECORDED)
    lines = []
    for number, line in enumerate(RECORDED.splitlines()):
        # in the program's own order: after the root, or after the first half
        at = {0: 0, 1: line.find("-1") + 2, 2: line.find("      0") + 7}[number % 3]
        is_row = line.lstrip()[:1].isdigit()
        lines += [line[:at] + log, line[at:]] if is_row else [log, line]
    (table,) = read_tables("\n".join(lines) + "\n")
    assert [replace(row, line=0) for row in table.rows] == [
        replace(row, line=0) for row in whole.rows
    ]


def test_several_tables_stand_in_one_text() -> None:
    texts = [path.read_text("utf-8") for path in TEXTS]
    tables = read_tables("".join(texts))
    apart = [table for text in texts for table in read_tables(text)]
    assert len(tables) == len(apart)
    assert [(each.program, each.ranks, len(each.rows)) for each in tables] == [
        (each.program, each.ranks, len(each.rows)) for each in apart
    ]


def test_a_table_that_breaks_off_is_followed_by_another() -> None:
    cut = RECORDED[: RECORDED.index("  524288  ")] + "\nslurmstepd: error: CANCELLED\n"
    first, second = read_tables(cut + RECORDED)
    assert (first.ended, len(first.rows)) == (False, 16)
    assert (second.ended, len(second.rows)) == (True, 25)


def test_the_devices_of_a_long_line_are_not_counted() -> None:
    """The program has 2048 characters for the devices of a process."""
    head = RECORDED.replace(
        "#  Rank  7 Group  0 Pid 155257 on  nid005487 device  3 [0039:01:00] NVIDIA GH200 120GB",
        "#  Rank  7 Group  0 Pid 155257 on  nid0...",
    )
    body = head.split("\n", 1)[1]
    (table,) = read_tables(body)
    assert table.ranks is None


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("./all_reduce_perf -b 8 -g 4", 4),
        ("mpirun -np 16 -N 8 /opt/bin/all_reduce_perf -g 1", 16),
        ("srun -N 4 --ntasks-per-node=8 ./all_reduce_perf -t 1 -g 1", 32),
        ("srun all_reduce_perf -b 8", None),
    ],
)
def test_the_command_line_states_the_ranks_where_no_device_does(
    command: str, ranks: int | None
) -> None:
    table = "size count type redop root time algbw busbw #wrong\n8 2 float sum -1 1.0 0.01 0.01 0\n"
    assert read_tables(f"$ {command}\n{table}")[0].ranks == ranks


def test_with_groups_the_ranks_are_those_of_rank_0() -> None:
    text = RECORDED.replace("Rank  2 Group  0", "Rank  2 Group  1")
    assert read_tables(text)[0].ranks == 7


@pytest.mark.parametrize(
    "cell",
    ["inf", "-nan", "1e999", "1" * 40, "0x10", "12.3.4", "--"],
)
def test_a_row_with_what_is_not_a_number_is_left_out(cell: str) -> None:
    text = RECORDED.replace("   1916.4 ", f" {cell} ")
    (table,) = read_tables(text)
    assert len(table.rows) == 24
    (problem,) = table.problems
    assert problem.startswith("line 42 is not read, because ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        RECORDED[: RECORDED.index("           8             2")],
        '{"config": {"nthreads": 1}, "results": []}',
        '{"traceEvents": []}',
        '{"config": 3}',
        "{",
        '{"config": {}, "results": [1, null, {"size": "x"}]}',
        '{"config": {}, "results": ' + "[" * 5000,
    ],
)
def test_a_text_without_a_row_is_one_clear_error(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_tables(text)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # columns in an order that no program has
        ("#wrong     time   algbw   busbw #wrong\n", "#wrong     algbw   time   time   busbw\n"),
        ("  redop    root     time", "  #wrong   root     time"),
        ("nThread 1 nGpus 1", "nThread 0 nGpus 0"),
        ("   1916.4 ", " 0e+400 "),
    ],
)
def test_what_no_program_prints_is_not_another_error(old: str, new: str) -> None:
    assert old in RECORDED
    try:
        tables = read_tables(RECORDED.replace(old, new))
    except FormatError:
        return
    for table in tables:
        write_text(table)
        write_json(table)


def test_damaged_texts_are_read_or_refused() -> None:
    random = Random(20260710)  # noqa: S311 - a test
    texts = [path.read_text("utf-8") for path in [*TEXTS, FOLDER / "all_reduce-2.19.json"]]
    pieces = [*'0123456789.-+eE#/ \n\t:[]{}",*_\x00\x1b', "N/A", "nan", "time", " " * 300]
    for _ in range(1500):
        text = random.choice(texts)
        for _ in range(random.randint(1, 8)):
            at = random.randrange(len(text) + 1)
            end = min(len(text), at + random.randint(0, 60))
            other = random.choice(texts)[random.randint(0, 2000) :][: random.randint(0, 600)]
            text = random.choice(
                [
                    text[:at] + random.choice(pieces) + text[at:],
                    text[:at] + text[end:],
                    text[:at] + other + text[end:],
                    text[:at],
                ]
            )
        try:
            tables = read_tables(text)
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        for table in tables:
            fitting_operations(table)
            write_json(table)
            (again,) = read_tables(write_text(table))
            assert len(again.rows) <= len(table.rows)


# JSON


def test_the_json_has_the_same_model() -> None:
    table = one("all_reduce-2.19.json")
    assert (table.program, table.operation, table.ranks) == ("all_reduce_perf", "all_reduce", 2)
    first, second = table.rows
    assert first.out_of_place is not None
    assert (first.out_of_place.time_us, first.out_of_place.wrong) == (20.1, 0)
    assert second.out_of_place is None
    assert second.in_place is not None
    assert second.in_place.wrong is None
    assert table.average_busbw_gbs == 58.880081
    assert table.versions == {"library": "23007"}
    assert table.ended
    assert not table.problems
    assert "hidden" not in repr(table)
    assert fitting_operations(table) == ("all_reduce", "reduce")  # 2(n-1)/n is 1


def test_the_first_version_of_the_json_has_other_keys() -> None:
    text = (FOLDER / "all_reduce-2.19.json").read_text("utf-8")
    old = text.replace("average_bus_bandwidth", "average_bus_bandwidith").replace(
        '"bandwidth"', '"bandwidith"'
    )
    assert old != text
    assert read_tables(old)[0].average_busbw_gbs == 58.880081
    assert read_tables(text.replace("58.880081", '"nan"'))[0].average_busbw_gbs is None
    assert read_tables(text.replace('"time"', '"cpu_time"'))[0] == read_tables(text)[0]


def test_each_process_of_the_json_lists_its_first_device() -> None:
    document = json.loads((FOLDER / "all_reduce-2.19.json").read_text("utf-8"))
    (device,) = document["config"]["devices"]
    document["config"]["devices"] = [device, {**device, "rank": 2}, {**device, "rank": 4}]
    assert read_tables(json.dumps(document))[0].ranks == 6


def test_a_json_that_is_cut_gives_no_other_number() -> None:
    text = (FOLDER / "all_reduce-2.19.json").read_text("utf-8").strip()
    (whole,) = read_tables(text)
    for end in range(len(text)):
        try:
            (table,) = read_tables(text[:end])
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        assert table.rows == whole.rows[: len(table.rows)]
        assert table.average_busbw_gbs in (None, whole.average_busbw_gbs)
        assert not table.ended
        assert table.problems


# writing


def written_fields(table: PerfTable) -> PerfTable:
    """Without what depends on places in the text, and on digits that were rounded away."""

    def plain(half: Timing | None) -> Timing | None:
        return half and replace(half, rounding=(0.0, 0.0, 0.0), deviation=None, beyond=False)

    rows = tuple(
        replace(
            row,
            line=0,
            redop=row.redop or "none",
            out_of_place=plain(row.out_of_place),
            in_place=plain(row.in_place),
        )
        for row in table.rows
    )
    return replace(table, rows=rows)


@pytest.mark.parametrize(
    "name",
    [
        "all_reduce-2.17.1-8-ranks.txt",
        "all_gather-rccl-in-place.txt",
        "all_reduce-2.19-per-iteration.txt",
    ],
)
def test_a_table_that_was_read_is_written_and_read_again(name: str) -> None:
    table = one(name)
    kept = written_fields(table)
    (of_text,) = read_tables(write_text(table, note="in the form of another program"))
    assert replace(written_fields(of_text), versions=kept.versions) == kept
    (of_json,) = read_tables(write_json(table))
    assert written_fields(of_json).rows == kept.rows
    assert (of_json.ranks, of_json.average_busbw_gbs) == (table.ranks, table.average_busbw_gbs)


def test_rows_are_written_as_the_program_prints_them() -> None:
    (table,) = read_tables(RECORDED)
    rows = [line for line in RECORDED.splitlines() if line.lstrip()[:1].isdigit()]
    written = [line for line in write_text(table).splitlines() if line.lstrip()[:1].isdigit()]
    # since 2.19 times have two places while there is room, and #wrong is one character wider
    assert {len(line) for line in written} == {len(line) + 2 for line in rows}
    assert [line[:69] for line in written[:15]] == [line[:69] for line in rows[:15]]
    for mine, theirs in zip(written, rows, strict=True):
        cells = zip(mine.split(), theirs.split(), strict=True)
        assert all(a == b or float(a) == float(b) for a, b in cells)


def test_numbers_take_the_room_that_they_have() -> None:
    """The cases of getFloatStr: two places, one, none, an exponent."""
    half = Timing(time_us=12345.678, algbw_gbs=1234.567, busbw_gbs=123456.7, wrong=1234567)
    wide = replace(half, time_us=1e9, algbw_gbs=1e7, busbw_gbs=0.004, wrong=None)
    row = Row(size_bytes=4, count=1, type_name="float", out_of_place=half, in_place=wide)
    line = write_text(PerfTable(rows=(row,))).splitlines()[-4 - 1 :]
    cells = next(each for each in line if "float" in each).split()
    assert cells[5:] == [
        "12345.7",
        "1234.6",
        "123457",
        "1.23457e+06",
        "1.0e+09",
        "1e+07",
        "0.00",
        "N/A",
    ]


def test_the_program_names_the_operation() -> None:
    assert operation_of("alltoall_perf") == "all_to_all"
    assert operation_of("sendrecv_perf") == "sendrecv"
    assert operation_of("hypercube_perf") is None
    assert operation_of("alltoallv_perf") is None
    assert operation_of(None) is None
    assert bus_factor("sendrecv", 8) == 1.0
