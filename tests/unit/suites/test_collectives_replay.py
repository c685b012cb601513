"""Recorded outputs of nccl-tests and rccl-tests are judged by the rules of verify."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import RecordingError
from portagpu.runs.engine import RunOptions
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.collectives.replay import judge_recordings
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run

FOLDER = ROOT / "tests/vendor_texts/perf_tables"
RECORDED = FOLDER / "all_reduce-2.17.1-8-ranks.txt"


def judged(*paths: Path, operation: str | None = None) -> Run:
    return judge_recordings(paths, RunOptions(), operation=operation)


def checks(run: Run) -> dict[str, Result]:
    return {result.id.rpartition("/")[2]: result for result in run.results}


def changed(folder: Path, old: str, new: str, source: Path = RECORDED) -> dict[str, Result]:
    text = source.read_text("utf-8")
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    file = folder / "output.txt"
    file.write_text(text.replace(old, new), encoding="utf-8")
    return checks(judged(file))


def test_a_recording_passes() -> None:
    run = judged(RECORDED)
    assert run.verdict is Verdict.PASS
    assert [result.id for result in run.results] == [
        f"collectives/verify/replay/all_reduce/{check}"
        for check in ("values", "bandwidths", "average", "rows")
    ]
    assert all(not result.evidence for result in run.results)
    assert run.info.replay[0]["name"] == RECORDED.name
    assert checks(run)["bandwidths"].value == 1.75


def test_tables_of_another_operation_alone_are_refused() -> None:
    assert judged(RECORDED, operation="all_reduce").verdict is Verdict.PASS
    with pytest.raises(RecordingError, match=r"no table in these files is of broadcast .*all_redu"):
        judged(RECORDED, operation="broadcast")
    both = judged(RECORDED, FOLDER / "broadcast-2017.txt", operation="broadcast")
    assert len(both.results) == 8


def test_wrong_elements_fail(tmp_path: Path) -> None:
    found = changed(tmp_path, "48.87   85.52      0", "48.87   85.52     17")["values"]
    assert found.verdict is Verdict.FAIL
    assert found.value == 17
    assert found.reason == "line 40, 33554432 bytes in place: 17 wrong elements"


def test_values_out_of_bounds_fail_without_a_count(tmp_path: Path) -> None:
    marked = checks(judged(FOLDER / "all_reduce-rccl-2019.txt"))["values"]
    assert marked.verdict is Verdict.FAIL
    assert "2097152 bytes out of place: a deviation out of bounds" in marked.reason
    said = changed(tmp_path, "values : 0 OK", "values : 3 FAILED")["values"]
    assert (said.verdict, said.value) == (Verdict.FAIL, 3)
    per_iteration = checks(judged(FOLDER / "all_reduce-2.19-per-iteration.txt"))["values"]
    assert (per_iteration.verdict, per_iteration.value) == (Verdict.FAIL, 3)


def test_values_that_nobody_checked_are_not_judged(tmp_path: Path) -> None:
    text = re.sub(r"      0(?=\s)", "    N/A", RECORDED.read_text("utf-8"))
    text = text.replace("validation: 1", "validation: 0")
    file = tmp_path / "unchecked.txt"
    file.write_text(text, encoding="utf-8")
    run = judged(file)
    assert checks(run)["values"].reason == "the program checked no value (validation: 0)"
    assert run.exit_code == 3


def test_a_bus_bandwidth_by_another_factor_fails(tmp_path: Path) -> None:
    # 70.04 GB/s over 8 ranks is 122.57: with (n-1)/n it would be half
    found = changed(tmp_path, "70.04  122.57", "70.04   61.28")["bandwidths"]
    assert found.verdict is Verdict.FAIL
    assert found.reason == (
        "line 42, 134217728 bytes out of place: busbw 61.28 is not algbw 70.04 times 1.75 "
        "(all_reduce over 8 ranks)"
    )


@pytest.mark.parametrize(("busbw", "verdict"), [("122.58", Verdict.PASS), ("122.60", Verdict.FAIL)])
def test_the_prints_rounding_is_allowed_and_no_more(
    tmp_path: Path, busbw: str, verdict: Verdict
) -> None:
    # 70.035 to 70.045 times 1.75 is 122.56 to 122.58, and half a place is lost of busbw too
    assert changed(tmp_path, "122.57", busbw)["bandwidths"].verdict is verdict


def without_lines(folder: Path, *words: str) -> Result:
    """The judgement of bandwidths of the recording without its lines that have any of ``words``."""
    text = RECORDED.read_text("utf-8")
    lines = [each for each in text.splitlines(keepends=True) if not any(w in each for w in words)]
    file = folder / "output.txt"
    file.write_text("".join(lines), encoding="utf-8")
    return checks(judged(file, operation="all_reduce"))["bandwidths"]


def test_another_number_of_ranks_fails(tmp_path: Path) -> None:
    assert changed(tmp_path, "Rank  7", "Rank  8")["bandwidths"].verdict is Verdict.FAIL


@pytest.mark.parametrize("missing", ["Rank  7", "Rank  0", "Rank  4"])
def test_ranks_whose_lines_are_missing_are_no_fault(tmp_path: Path, missing: str) -> None:
    assert without_lines(tmp_path, missing).verdict is Verdict.PASS


def test_lines_of_ranks_alone_bound_their_number_from_below(tmp_path: Path) -> None:
    found = without_lines(tmp_path, "_perf", "Rank  6", "Rank  7")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "list 6 ranks, and the bandwidths are those of 8" in found.reason


def test_two_runs_side_by_side_are_said_to_be_that(tmp_path: Path) -> None:
    text = RECORDED.read_text("utf-8")
    file = tmp_path / "output.txt"
    file.write_text(text.replace("Rank  1 ", "Rank  0 "), encoding="utf-8")
    found = checks(judged(file))["bandwidths"]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "rank 0 is listed 2 times: these are 2 runs side by side" in found.reason


# NVIDIA/nccl-tests issue 78, of 2021: no column redop in the rows, and an error of 1 in place
ALL_TO_ALL = """\
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   268435456       1048576     float           520935    0.52    0.51  {0}   519562    0.52    0.51  1e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.51
"""  # noqa: E501


@pytest.mark.parametrize(
    ("deviation", "verdict"), [("0e+00", Verdict.INCONCLUSIVE), ("1e+00", Verdict.FAIL)]
)
def test_a_deviation_where_nothing_is_reduced_is_not_lost(
    tmp_path: Path, deviation: str, verdict: Verdict
) -> None:
    file = tmp_path / "output.txt"
    file.write_text(ALL_TO_ALL.format(deviation), encoding="utf-8")
    found = checks(judged(file, operation="all_to_all"))
    assert found["values"].verdict is verdict
    assert "a deviation of 1, though nothing is reduced" in found["values"].reason
    assert found["rows"].verdict is Verdict.PASS


def test_a_program_that_ended_with_an_error_is_quoted(tmp_path: Path) -> None:
    said = "node66: Test NCCL failure common.cu:303 'unhandled cuda error'"
    found = changed(tmp_path, "# Out of bounds values : 0 OK", said)
    assert found["rows"].verdict is Verdict.FAIL
    assert "Test NCCL failure common.cu:303 'unhandled cuda error'" in found["rows"].reason
    file = tmp_path / "none.txt"
    file.write_text(f"{ALL_TO_ALL.splitlines()[0]}\n{said}\n", encoding="utf-8")
    with pytest.raises(RecordingError, match=r"Test NCCL failure common\.cu:303"):
        judged(file)


def test_prefixes_of_two_kinds_at_once_are_taken_off(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    prefix = "2026-10-06T12:01:02.123456789Z launcher-abc: "
    text = "".join(f"{prefix}{line}\n" for line in RECORDED.read_text("utf-8").splitlines())
    file.write_text(text, encoding="utf-8")
    assert judged(file).verdict is Verdict.PASS


def test_an_average_that_is_not_of_the_rows_fails(tmp_path: Path) -> None:
    found = changed(tmp_path, "19.7866", "21.7866")["average"]
    assert found.verdict is Verdict.FAIL
    assert "21.7866 GB/s is not the mean of the rows" in found.reason


def test_missing_rows_are_inconclusive(tmp_path: Path) -> None:
    text = RECORDED.read_text("utf-8")
    lines = [
        line for line in text.splitlines(keepends=True) if " 262144         65536 " not in line
    ]
    file = tmp_path / "less.txt"
    file.write_text("".join(lines), encoding="utf-8")
    run = judged(file)
    assert checks(run)["rows"].verdict is Verdict.INCONCLUSIVE
    assert "24 rows, and the program runs 25 sizes" in checks(run)["rows"].reason
    assert checks(run)["average"].verdict is Verdict.INCONCLUSIVE
    assert run.exit_code == 3


def test_a_table_that_breaks_off_is_inconclusive(tmp_path: Path) -> None:
    text = RECORDED.read_text("utf-8")
    file = tmp_path / "cut.txt"
    file.write_text(text[: text.index("# Out of bounds")], encoding="utf-8")
    found = checks(judged(file))
    assert found["rows"].verdict is Verdict.INCONCLUSIVE
    assert found["average"].verdict is Verdict.INCONCLUSIVE
    assert found["values"].verdict is Verdict.PASS


def test_an_output_without_a_name_is_held_against_every_operation() -> None:
    file = FOLDER / "all_reduce-rccl-2019.txt"
    unnamed = checks(judged(file))["bandwidths"]
    assert unnamed.verdict is Verdict.PASS
    assert unnamed.reason.endswith("fit all_reduce, reduce")
    named = judged(file, operation="all_gather")
    assert checks(named)["bandwidths"].verdict is Verdict.FAIL
    assert named.results[0].id == "collectives/verify/replay/all_gather/values"


def test_one_rank_has_no_bandwidth_to_judge(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text(
        "$ ./all_reduce_perf -g 1\n"
        "size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "8 2 float sum -1 5.00 0.00 0.00 0 5.00 0.00 0.00 0\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth : 0\n#\n",
        encoding="utf-8",
    )
    found = checks(judged(file))
    assert found["bandwidths"].verdict is Verdict.SKIP
    assert "not applicable" in found["bandwidths"].reason


def test_json_is_judged_too(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "all_reduce-2.19.json").read_text("utf-8"))
    assert judged(FOLDER / "all_reduce-2.19.json").verdict is Verdict.PASS
    document["results"][0]["in_place"]["nwrong"] = 2.0
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert checks(judged(file))["values"].reason == "1048576 bytes in place: 2 wrong elements"


def test_several_files_and_tables_are_distinguished(tmp_path: Path) -> None:
    both = tmp_path / "both.txt"
    text = RECORDED.read_text("utf-8")
    both.write_text(text + text, encoding="utf-8")
    run = judged(both, RECORDED, RECORDED)
    assert {result.device for result in run.results} == {
        "both.txt, table 1",
        "both.txt, table 2",
        RECORDED.name,
        f"{RECORDED.name} (2)",
    }
    assert len(run.info.replay) == 3


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\xff" * 50, b"nothing here\n", b'{"a": 1}', b'{"config": {}, "results": ['],
)
def test_a_file_without_a_table_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "odd.txt"
    file.write_bytes(data)
    with pytest.raises(RecordingError) as caught:
        judged(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_packed_table_is_judged_as_the_plain_one(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    file = tmp_path / "table.txt"
    with arrow.CompressedOutputStream(str(file), kind) as packed:
        packed.write(RECORDED.read_bytes())
    assert [(r.id, r.verdict) for r in judged(file).results] == [
        (r.id, r.verdict) for r in judged(RECORDED).results
    ]
    file.write_bytes(file.read_bytes()[:2] + b"broken")
    with pytest.raises(RecordingError):
        judged(file)


def test_tables_of_several_programs_in_one_text_are_each_judged_as_what_they_are(
    tmp_path: Path,
) -> None:
    """A text of 2021 with all_reduce and alltoall: https://github.com/NVIDIA/nccl-tests/issues/78"""
    head = "# size count type redop time algbw busbw error time algbw busbw error\n"
    file = tmp_path / "two.txt"
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth : {}\n\n"
    file.write_text(
        head
        + "268435456 67108864 float sum 122131 2.20 4.33 2e-06 122165 2.20 4.33 2e-06\n"
        + end.format(4.33)
        + head
        + "268435456 1048576 float 520935 0.52 0.51 0e+00 519562 0.52 0.51 1e+00\n"
        + end.format(0.51),
        encoding="utf-8",
    )
    values = {
        r.id.split("/")[3]: r
        for r in judged(file, operation="all_reduce").results
        if r.id.endswith("/values")
    }
    assert values["all_reduce"].verdict is Verdict.PASS
    assert values["unnamed"].verdict is Verdict.INCONCLUSIVE
    assert "though nothing is reduced" in values["unnamed"].reason


def test_a_table_in_lines_of_json_is_read(tmp_path: Path) -> None:
    text = RECORDED.read_text("utf-8")
    whole, lines = tmp_path / "whole.log", tmp_path / "lines.log"
    whole.write_text(
        "starting\n" + json.dumps({"level": "fatal", "msg": "it failed", "output": text}) + "\n",
        encoding="utf-8",
    )
    each = (json.dumps({"log": f"{line}\n", "stream": "stdout"}) for line in text.splitlines())
    lines.write_text("\n".join(each), encoding="utf-8")
    expected = [(r.id, r.verdict) for r in judged(RECORDED).results]
    assert [(r.id, r.verdict) for r in judged(whole).results] == expected
    assert [(r.id, r.verdict) for r in judged(lines).results] == expected
