"""The prolog, epilog and HealthCheckProgram that are generated."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from portagpu.reports.fleet.scripts import write_scripts
from tests.support.fleet_scripts import scripts_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    return scripts_in(tmp_path)


@pytest.mark.parametrize(("code", "ends_with"), [(0, 0), (1, 1), (2, 0), (3, 0), (127, 0)])
@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh"])
def test_only_a_fault_fails_the_prolog(
    name: str, code: int, ends_with: int, scripts: Path, tmp_path: Path
) -> None:
    (tmp_path / "n1").write_text(f"{code}\n")
    # Slurm gives a prolog next to nothing
    ended = subprocess.run(
        [scripts / name], env={"SLURMD_NODENAME": "n1"}, capture_output=True, timeout=60,
        check=False, cwd="/",
    )  # fmt: skip
    assert ended.returncode == ends_with
    assert ended.stdout == b""


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh"])
def test_a_program_that_is_gone_is_not_a_fault_of_the_node(name: str, tmp_path: Path) -> None:
    write_scripts(tmp_path, [sys.executable, "-m", "portagpu_that_is_gone"], [])
    assert subprocess.run([tmp_path / name], env={}, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh"])
def test_the_prolog_calls_no_command_of_slurm(name: str, scripts: Path) -> None:
    text = (scripts / name).read_text()
    code = [line for line in text.splitlines() if not line.startswith("#")]
    for word in ("scontrol", "sinfo", "squeue", "scancel", "srun", "sbatch", "sacct"):
        assert word not in "\n".join(code)
    assert f"--gate {name.removesuffix('.sh')} --expect-devices 8" in text


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh", "healthcheck.sh"])
def test_the_scripts_are_well_formed_and_may_run(name: str, scripts: Path) -> None:
    assert os.access(scripts / name, os.X_OK)
    assert "@" not in (scripts / name).read_text().replace("%@+", "").replace("=()%+@-", "")
    subprocess.run(["sh", "-n", scripts / name], check=True, timeout=60)


def test_the_instructions_name_the_scripts(scripts: Path) -> None:
    text = (scripts / "README.txt").read_text()
    for name in ("prolog.sh", "epilog.sh", "healthcheck.sh"):
        assert f"{scripts}/{name}" in text
