"""The committed results, the table that is made from them, and how bring-up comes to a bundle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from portagpu.cli.bringup import bundle_line
from portagpu.reports.bundles import read_bundle, write_bundle
from tests.conftest import CHILD_LIMIT_S, ROOT
from tests.support.bundle_samples import full_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

RESULTS = ROOT / "matrix" / "results"
COMMITTED = sorted(RESULTS.glob("*"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_every_committed_result_is_a_valid_bundle(path: Path) -> None:
    read_bundle(path)


def test_a_bundle_is_written_whole_under_its_name(tmp_path: Path) -> None:
    path = write_bundle(full_run(), "full", tmp_path / "new")
    assert re.fullmatch(r"cpu-x86-64-20260301-[0-9a-f]{8}\.json", path.name)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert read_bundle(path)["result"]["run"]["host"] == "<host-1>"
    assert "jdoe" not in path.read_text("ascii")


def test_bringup_says_what_became_of_the_bundle(tmp_path: Path) -> None:
    run = full_run()
    assert bundle_line(run, "full", tmp_path).startswith(f"wrote {tmp_path}/cpu-x86-64-20260301-")
    run.info = replace(run.info, interrupted=True)
    assert bundle_line(run, "full", tmp_path) == "no bundle: the run was interrupted"


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_a_run_of_another_machine_gives_no_bundle_and_keeps_its_exit_code(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "portagpu", "bringup", "--level", "full"),
            *("--target", "amd-mi300x", "--backend", "cpu", "--out", "out"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
        env=os.environ,
    )
    assert ended.returncode == 1, ended.stderr
    last = ended.stdout.splitlines()[-1]
    assert last == "no bundle: result.run.backend: a run of cpu did not execute on amd-mi300x"
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["junit.xml", "report.html", "result.json"]


def test_the_validator_needs_no_torch(child: Callable[..., Child], tmp_path: Path) -> None:
    path = write_bundle(full_run(), "full", tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None; "
        "from portagpu.reports.bundles.__main__ import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    assert child("-c", code, str(path)).ok() == f"{path}: valid, cpu-x86-64, PASS, 15 results\n"
