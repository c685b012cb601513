"""Bring-up over recordings: what it judges, what it cannot, and what it says of either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.machine.inventory.sources import origin_of
from tests.support.ocp_rules import lines_of, of_run, problems
from tests.vendor_texts.test_bringup_replay import mi300x

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs


def test_the_command_writes_every_form_and_no_bundle(tmp_path: Path, verbs: ForkedVerbs) -> None:
    path = mi300x(tmp_path / "eight")
    words = ["--replay", str(path), "--full", "--out", "made", "--ocp", "run.jsonl"]
    done = verbs("bringup", *words, folder=tmp_path)
    assert done.code == 3, done.err
    made = sorted(file.name for file in (tmp_path / "made").iterdir())
    assert made == ["junit.xml", "report.html", "result.json"]
    ocp = lines_of((tmp_path / "run.jsonl").read_text("utf-8"))
    assert problems(ocp) == []
    assert len(of_run(ocp, "testRunStart")[0]["dutInfo"]["hardwareInfos"]) == 8
    lines = done.out.splitlines()
    assert lines[0] == f"recording eight, sha256 {origin_of(path).sha256}"
    assert any("a recording cannot run this" in line for line in lines)
    assert any(line.startswith("INCONCLUSIVE: ") for line in lines)
