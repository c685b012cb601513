"""torch's printed table of averages: lines as torch prints them, with figures worked out by hand.

Public tables with the same traits: caseyhird/triton_practice (a compiled kernel has the name of a
row of the host), pages on Intel GPUs (XPU, stacks), READMEs with older versions (totals that have
annotations in them). tests/torch/test_key_averages.py compares with torch's own objects.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.reading import is_known, read
from portagpu.traces.analysis.summary import summarize

if TYPE_CHECKING:
    from pathlib import Path

HEAD = (
    "Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg     Self CUDA"
    "   Self CUDA %    CUDA total  CUDA time avg    # of Calls"
)
LINE = "-------  ------------  ------------  ------------"
NOTHING = "0.00%       0.000us         0.00%       0.000us       0.000us"


def device(name: str, total: str, share: str, mean: str, calls: int, more: str = "") -> str:
    return f"   {name}    {NOTHING}   {total}   {share}   {total}   {mean}  {more} {calls}  "


ROWS = [
    device("step", "5.028ms", "113.46%", "5.028ms", 1),
    ("   aten::add    1.10%   90.429us  25.48%   2.086ms   1.043ms   2.391ms  53.97%   3.346ms"
    "   1.673ms   2  "),
    device("void at::native::vectorized_elementwise_kernel<4, at...", "2.391ms", "53.97%",
           "1.196ms", 2),
    ("   triton_poi_fused_add_0   0.63%   26.973us   0.85%   36.602us   36.602us   1.400ms"
    "   31.6%   1.400ms   1.400ms   1 "),
    device("triton_poi_fused_add_0", "1.400ms", "31.60%", "1.400ms", 1),
    device("Memcpy HtoD (Pageable -> Device)", "600.500us", "13.55%", "600.500us", 1),
    device("Memset (Device)", "39.500us", "0.89%", "1.234us", 32),
    ("   cudaLaunchKernel  48.83%  904.870ms  48.83%  904.870ms  447.955us  0.000us  0.00%"
    "  0.000us  0.000us  2020"),
    "   step  30.17%  2.470ms  70.89%  5.805ms  5.805ms  0.000us  0.00%  5.386ms  5.386ms  1",
]  # fmt: skip
TOTALS = ["Self CPU time total: 1.853s", "Self CUDA time total: 4.431ms"]
TEXT = "\n".join(["step 3 of 10: 50%", LINE, HEAD, LINE, *ROWS, LINE, *TOTALS, "done", ""])
WANTED = [
    ("operator", "aten::add", 2, 2_086_000, 90_429),
    ("kernel", "void at::native::vectorized_elementwise_kernel<4, at...", 2, 2_391_000, None),
    ("operator", "triton_poi_fused_add_0", 1, 36_602, 26_973),
    ("kernel", "triton_poi_fused_add_0", 1, 1_400_000, None),
    ("copy", "Memcpy HtoD (Pageable -> Device)", 1, 600_500, None),
    ("set", "Memset (Device)", 32, 39_500, None),
    ("api", "cudaLaunchKernel", 2020, 904_870_000, 904_870_000),
    ("operator", "step", 1, 5_805_000, 2_470_000),
]
FORMS = {
    "as it is": lambda text: text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "in a gzip": lambda text: gzip.compress(text.encode()),
    "as a comment": lambda text: text.replace("\n", "\n# ").encode(),
    "of one rank": lambda text: text.replace("\n", "\n[rank0]: ").encode(),
}


def totals(path: Path) -> list[tuple[object, ...]]:
    found = read(path).totals
    assert found is not None
    names = ("kind", "name", "calls", "total_ns", "self_ns")
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_table_has_each_kernel_once_and_no_annotation(tmp_path: Path, form: str) -> None:
    file = tmp_path / "table.txt"
    file.write_bytes(FORMS[form](TEXT))
    assert totals(file) == WANTED
    found = read(file)
    assert (found.dropped, found.problems) == (0, ())
    assert found.source.format == "torch key_averages"


def test_the_summary_shows_kernels_by_category_and_operators_by_their_own_time(
    tmp_path: Path,
) -> None:
    file = tmp_path / "table.txt"
    file.write_text(TEXT)
    found = summarize([read(file)])
    kernels = {row["name"]: row["percent_of_kernels"] for row in found.rows.to_pylist()}
    assert kernels["triton_poi_fused_add_0"] == pytest.approx(140_000 / 3791, abs=0.01)
    assert found.api_ns == {"cudaLaunchKernel": 904_870_000}
    assert found.operators is not None
    own = {row["name"]: row["self_ns"] for row in found.operators.to_pylist()}
    assert own == {"aten::add": 90_429, "triton_poi_fused_add_0": 26_973, "step": 2_470_000}


def test_memory_shapes_stacks_and_overloads_do_not_move_the_calls(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    head = HEAD.replace("Name", "Name  Overload Name").replace(
        "# of Calls", "CPU Mem  Self CPU Mem  CUDA Mem  Self CUDA Mem  # of Calls  Input Shapes"
        "  Source Location  Total KFLOPs"
    )  # fmt: skip
    row = device(
        "sgemm_tn", "3.000ms", "100.00%", "1.000ms", 3, "0 b  -8 b  10.69 Gb  -84.50 Kb"
    )  # fmt: skip
    row += "  [[7, 3], []]  model.py(168): forward  --"
    stack = " " * 150 + "model.py(645): 50% of it"
    file.write_text("\n".join([head, row, stack, LINE, "Self CUDA time total: 3.000ms"]))
    assert totals(file) == [("kernel", "sgemm_tn", 3, 3_000_000, None)]
    assert read(file).dropped == 0


def test_other_devices_and_tables_of_the_host_alone_are_read(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    file.write_text(TEXT.replace("CUDA", "XPU").replace("cudaLaunch", "urEnqueue"))
    assert [row[0] for row in totals(file)] == [row[0] for row in WANTED]
    host = "Name  Self CPU %  Self CPU  CPU total %  CPU total  CPU time avg  # of Calls"
    file.write_text(f"{host}\n aten::to  0.55%  5.000us  NaN  5.000us  2.500us  2\n")
    assert totals(file) == [("operator", "aten::to", 2, 5000, 5000)]
    assert read(file).problems == ()


def test_the_same_profile_in_another_order_is_counted_once(tmp_path: Path) -> None:
    file = tmp_path / "tables.txt"
    first = [LINE, HEAD, LINE, *ROWS[:4], LINE, *TOTALS]
    again = [LINE, HEAD, LINE, *reversed(ROWS), LINE, *TOTALS]
    file.write_text("\n".join([*first, *again, ""]))
    assert sorted(map(str, totals(file))) == sorted(map(str, WANTED))


def test_another_profile_is_left_out_and_said(tmp_path: Path) -> None:
    file = tmp_path / "tables.txt"
    other = TEXT.replace("4.431ms", "4.432ms")
    file.write_text(TEXT + other)
    found = read(file)
    assert totals(file) == WANTED
    assert found.dropped == len(ROWS)
    assert f"their {len(ROWS)} rows are left out" in found.problems[0]


def test_rows_beyond_the_limit_are_missed(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    file.write_text("\n".join([HEAD, *ROWS[1:3], *TOTALS]))
    (said,) = read(file).problems
    assert "54.0% of the total" in said
    assert "row_limit" in said
    assert "annotation" not in said
    # a total of an older version, with the annotation: 4.431 ms and 5.028 ms
    older = TEXT.replace("Self CUDA time total: 4.431ms", "Self CUDA time total: 9.459ms")
    file.write_text(older)
    assert read(file).problems == ()
    # more than the total: an annotation whose row of the host is not in the table
    file.write_text("\n".join([HEAD, *ROWS[:-1], *TOTALS]))
    (said,) = read(file).problems
    assert "213.5% of the total" in said
    assert "annotation" in said


def test_a_table_without_kernels_says_that_times_are_of_operators(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    file.write_text("\n".join([HEAD, ROWS[1], *TOTALS]))
    assert [row[:2] for row in totals(file)] == [("operator", "aten::add")]
    assert "no row is of a kernel" in read(file).problems[0]


def test_impossible_times_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    wrong = ROWS[1].replace("90.429us", "-20746.000us")
    file.write_text("\n".join([HEAD, wrong, *ROWS[2:], *TOTALS]))
    found = read(file)
    assert found.dropped == 1
    assert "lines that cannot be read: 1 are left out" in found.problems


def test_a_table_that_ends_anywhere_gives_whole_rows_or_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    for end in range(len(TEXT)):
        file.write_text(TEXT[:end])
        try:
            found = totals(file)
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        # the last number may be cut, and a row of the host that makes an annotation of one
        known = {row[:2] for row in WANTED} | {("kernel", "step")}
        assert {row[:2] for row in found} <= known


def test_a_heading_alone_says_what_to_give(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    file.write_text(f"{HEAD}\n{LINE}\n  aten::mm  17.10%  xx.yyy ms  17.35%\n")
    assert is_known(file)
    with pytest.raises(FormatError, match="give its output"):
        read(file)
