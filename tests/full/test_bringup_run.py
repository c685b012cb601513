"""How the checklist runs: order, blocking, broken checks, ranks that die, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from portagpu.runs.results.run import validate
from tests.support.processes import descendants
from tests.support.waits import wait_until

pytestmark = pytest.mark.torch


RUNNER = """
import sys
from pathlib import Path
from portagpu.checks.bringup import Gate, BringupOptions, bringup
from portagpu.cli._bringup_view import progress_view
from portagpu.cli._run_output import Files
amounts = {effort: {"limit_s": 60} for effort in ("quick", "full")}
gates = [Gate(name, name, "One sentence.", f"tests.support.bringup_checks:{check}", (), amounts)
         for name, check in (("one", "good"), ("two", "sleeps"), ("three", "good"))]
files = Files(folder=Path(sys.argv[1]))
run = bringup(BringupOptions(backend="cpu"), progress_view(None, sys.stdout, files, gates), gates)
files.write(run)
sys.exit(run.exit_code)
"""


@pytest.mark.usefixtures("started")
def test_ctrl_c_leaves_a_valid_partial_result_and_no_process(tmp_path):
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(descendants(child.pid)) >= 3, "no rank server with two ranks runs")
        below = descendants(child.pid)
        assert len(below) == 3
        partial = json.loads((tmp_path / "result.json").read_text())
        validate(partial)
        assert partial["verdict"] == "INCONCLUSIVE"
        os.killpg(child.pid, signal.SIGINT)
        output, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, output
    document = json.loads((tmp_path / "result.json").read_text())
    validate(document)
    assert document["run"]["interrupted"] is True
    assert [entry["id"] for entry in document["results"]] == [
        "one/fine",
        "two/fine",
        "two/interrupted",
        "three/interrupted",
    ]
    assert (tmp_path / "report.html").exists()
    alive = [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert not alive, f"processes {alive} outlived the run"
