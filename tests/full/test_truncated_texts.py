"""A text that was cut anywhere is read as one: no number of devices is judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.replay import Recording
from tests.vendor_texts.test_pastes import ROCM, listed

if TYPE_CHECKING:
    from pathlib import Path


def test_half_a_value_and_what_is_after_it_are_not_a_fault(tmp_path: Path) -> None:
    links = "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18))
    text = "".join(f"{line}\n{links}" for line in listed(4).splitlines())
    for whole in (text, ROCM):
        for end in range(len(whole) // 2, len(whole), 7):
            (tmp_path / "text").write_text(whole[:end])
            run = bringup(BringupOptions(replay=Recording(tmp_path / "text")))
            failed = [each for each in run.results if str(each.verdict) == "FAIL"]
            # between two lines this output looks whole
            after_a_line = "\n" in (whole[end - 1], whole[end])
            assert after_a_line or not failed, (whole[:end][-30:], failed[0].reason)
