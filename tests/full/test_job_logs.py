"""The doctor on logs of jobs as people publish them; ``job_logs.toml`` has the right answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from portagpu.checks.collectives_doctor import known_findings
from tests.vendor_texts.test_job_logs import LOGS, judged

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["id"])
def test_half_of_a_log_is_judged_without_an_error(tmp_path: Path, log: dict[str, Any]) -> None:
    text = log["text"]
    for end in range(0, len(text), max(1, len(text) // 12)):
        run = judged(tmp_path, text[:end])
        assert all(r.id.rpartition("/")[2] in known_findings() for r in run.results)
