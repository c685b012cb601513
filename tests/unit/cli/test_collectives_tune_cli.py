"""A tuning run that gives no profile says why in one line, and has the exit code of its verdict."""

from __future__ import annotations

from typing import Any

import pytest

from portagpu.cli import main
from portagpu.runs.results.run import Result, Verdict
from portagpu.suites import collectives
from tests.support.history_samples import run


def result(verdict: Verdict) -> Result:
    return Result(
        id="collectives/tune/all_reduce", suite="collectives", area="tune", verdict=verdict,
        reason="for the test",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("results", "fields", "code", "said"),
    [
        ([Verdict.FAIL], {}, 1, "no profile: collectives/tune/all_reduce is FAIL"),
        ([Verdict.ERROR], {}, 1, "no profile: collectives/tune/all_reduce is ERROR"),
        ([Verdict.PASS], {"interrupted": True}, 130, "no profile: the run was interrupted"),
        ([Verdict.SKIP], {}, 3, "no profile: nothing was measured"),
        ([], {}, 3, "no profile: nothing was measured"),
    ],
)
def test_no_profile_is_a_line_and_no_file(
    results: list[Verdict],
    fields: dict[str, Any],
    code: int,
    said: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = run(0, [result(each) for each in results], **fields)
    monkeypatch.setitem(vars(collectives), "tune", lambda *_: made)
    monkeypatch.setattr("portagpu.cli.collectives_sweep.require_torch", lambda _: None)
    profile = tmp_path / "profile.json"
    assert main(["collectives", "tune", "--profile", str(profile)]) == code
    assert said in capsys.readouterr().out.splitlines()
    assert not profile.exists()
