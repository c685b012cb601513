"""A text that was cut anywhere is read as one: no number of devices is judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.replay import Recording
from tests.vendor_texts.test_pastes import TABLE, listed

if TYPE_CHECKING:
    from pathlib import Path


def count_verdict(tmp_path: Path, text: str, expected: int) -> str | None:
    (tmp_path / "text").write_text(text)
    try:
        run = bringup(BringupOptions(replay=Recording(tmp_path / "text"), expect_devices=expected))
    except RecordingError:
        return None
    return next(str(each.verdict) for each in run.results if each.id.endswith("identity/count"))


@pytest.mark.parametrize(
    "mark",
    ["...", "[...]", "…", "[output truncated]", "<snip>", "[snip]", "(truncated)", "--More--",
     "... 5 more ...", "|  ...  |", "-- 8< --", "[... rest of the output omitted ...]"],
)  # fmt: skip
def test_words_that_say_that_lines_were_left_out_make_the_number_unknown(
    tmp_path: Path, mark: str
) -> None:
    assert count_verdict(tmp_path, listed(3), 3) == "PASS"
    for expected in (3, 8):
        assert count_verdict(tmp_path, listed(3) + mark + "\n", expected) == "INCONCLUSIVE"
    problems = Recording(tmp_path / "text").inventory().problems
    assert problems == ("the text says that parts of it were left out",)


def test_a_whole_list_next_to_a_cut_one_counts(tmp_path: Path) -> None:
    half = "".join(TABLE.splitlines(keepends=True)[:12])
    assert count_verdict(tmp_path, half, 4) == "INCONCLUSIVE"
    assert count_verdict(tmp_path, f"{half}$ nvidia-smi -L\n{listed(4)}", 4) == "PASS"
    assert count_verdict(tmp_path, f"{half}$ nvidia-smi -L\n{listed(4)}", 8) == "FAIL"
