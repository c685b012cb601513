"""``portagpu profile`` with fakes of the vendors' profilers, whose outputs are small samples.

Neither nsys nor rocprofv3 ran here: the fakes cite the sources that they follow."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from pathlib import Path
from typing import TYPE_CHECKING, Any

from portagpu.runs.results.run import Verdict
from tests.process.test_profile_vendors import OUTPUT, RANKS, TOOLS, torchrun
from tests.process.test_profile_vendors import _clean as _clean
from tests.process.test_profile_vendors import light_torch as light_torch
from tests.process.test_profile_vendors import run_with as run_with
from tests.support.profile_runs import files, result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from portagpu.runs.results.run import Run


@pytest.mark.torch
def test_a_vendors_profiler_starts_none_of_torch_and_explains_the_programs_own(
    run_with: Callable[..., Run], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    text = """
        import sys, torch
        assert sys.modules["portagpu_launched"].process.profile is None
        assert not torch.cuda.is_initialized()
        torch.cuda.is_initialized = lambda: True
        with torch.profiler.profile():
            torch.ones(2) + 1
    """
    run = run_with("rocprofv3", text, what={"kernels": 0})
    assert result(run, "command").verdict is Verdict.PASS
    assert files(tmp_path) == OUTPUT["rocprofv3"]
    reason = result(run, "captured").reason
    assert "records from the same library as rocprofv3: leave one of them out" in reason


@pytest.mark.torch
@pytest.mark.parametrize("tool", TOOLS)
def test_each_rank_of_torchrun_has_its_own_output(
    tool: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if tool != "nsys":
        # the real one under one tool, which runs itself for each rank
        request.getfixturevalue("light_torch")
    pytest.importorskip("torch")
    run = torchrun(tmp_path, monkeypatch, tool, RANKS)
    assert run.verdict is Verdict.PASS, run.results
    for rank in (0, 1):
        captured = result(run, "captured", f"rank {rank}")
        assert captured.value == 2
        assert [name.startswith(f"rank{rank}.") for name in captured.extra["files"]] == [True]
    assert len([each for each in run.results if each.id == "profile/captured"]) == 2


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"kernels": 0}, "no kernels were captured: the capture is there, and {} says nothing"),
        ({"report": False}, "nothing was captured: {} wrote nothing, and says nothing"),
        (
            {"kernels": 0, "messages": [["info", "hello"], ["warning", "3 buffers were lost"]]},
            "no kernels were captured: {} says: 3 buffers were lost",
        ),
        (
            {"kernels": 0, "messages": [["warning", "lost"], ["error", "no space"]]},
            "{} says: no space",
        ),
    ],
)
def test_an_empty_capture_fails_and_the_tool_is_heard_first(
    tool: str, what: Any, said: str, run_with: Callable[..., Run]
) -> None:
    run = run_with(tool, what=what)
    captured = result(run, "captured")
    assert result(run, "command").verdict is Verdict.PASS
    assert captured.verdict is Verdict.FAIL
    assert said.format(tool) in captured.reason
    assert run.exit_code == 1
