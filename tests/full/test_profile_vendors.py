"""``portagpu profile`` with fakes of the vendors' profilers, whose outputs are small samples.

Neither nsys nor rocprofv3 ran here: the fakes cite the sources that they follow."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from typing import TYPE_CHECKING

from portagpu.runs.results.run import Verdict
from tests.process.test_profile_vendors import OUTPUT
from tests.process.test_profile_vendors import _clean as _clean
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
