"""``portagpu collectives doctor``: what it prints and writes, its exit codes, and wrong use."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from portagpu.checks.collectives_doctor import DoctorOptions
from portagpu.checks.collectives_doctor import doctor as engine
from portagpu.cli.collectives import doctor
from portagpu.runs.engine import Progress
from portagpu.runs.results.run import Verdict, read_json
from tests.process.test_doctor_dumps import OPEN, document, entry

if TYPE_CHECKING:
    from pathlib import Path


def portagpu(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "portagpu", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """A folder with the dumps of two ranks, of which rank 1 is late."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank, entries in enumerate(([entry(0), entry(1, **OPEN)], [entry(0)])):
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(document(entries), 2))
    return folder


def test_a_finding_is_printed_with_cause_remedy_and_source(dumps: Path, tmp_path: Path) -> None:
    done = portagpu("collectives", "doctor", dumps, "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "PASS dumps: ranks 0 and 1: 3 calls in 1 group"
    assert lines[1].startswith("FAIL behind rank 1: rank 1 did not call all_reduce")
    assert [line.split(":")[0].strip() for line in lines[2:5]] == ["cause", "remedy", "source"]
    assert "FAIL: collectives/doctor/behind on rank 1" in lines[-1]
    run = read_json(tmp_path / "run.json")
    assert (run.verdict, run.culprit) == (Verdict.FAIL, "rank 1")
    assert tuple(run.info.command[1:3]) == ("collectives", "doctor")


def test_json_on_standard_output_is_one_document(dumps: Path, tmp_path: Path) -> None:
    done = portagpu("collectives", "doctor", dumps, "--json", "-", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert [each["id"] for each in document["results"]] == [
        "collectives/doctor/dumps",
        "collectives/doctor/behind",
    ]
    assert "FAIL behind rank 1" in done.stderr


def test_without_files_it_looks_at_this_machine(tmp_path: Path) -> None:
    done = portagpu("collectives", "doctor", cwd=tmp_path)
    assert done.stdout.startswith("PASS machine: this machine")


def test_a_recording_is_looked_at_with_replay(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "tree/etc").mkdir(parents=True)
    (tmp_path / "tree/proc").mkdir()
    (tmp_path / "tree/etc/nccl.conf").write_text("NCCL_IB_DISABLE=1\n")
    done = CliRunner().invoke(doctor, [str(dumps), "--replay", str(tmp_path / "tree")])
    assert "PASS machine: a recording" in done.output
    assert "UNVERIFIED rdma-turned-off NCCL_IB_DISABLE" in done.output
    assert "FAIL behind rank 1" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "nothing: No such file or directory"),
        (["--replay", "nothing"], "nothing: no such file or folder"),
        (["--what"], "No such option"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = portagpu("collectives", "doctor", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_an_empty_folder_judges_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = portagpu("collectives", "doctor", "empty", cwd=tmp_path)
    assert done.returncode == 3
    assert "INCONCLUSIVE: nothing was judged" in done.stdout


def test_an_unverified_finding_counts_with_strict(tmp_path: Path, dumps: Path) -> None:
    (dumps / "rank_1").write_bytes((dumps / "rank_0").read_bytes())
    assert portagpu("collectives", "doctor", dumps, cwd=tmp_path).returncode == 0
    assert portagpu("collectives", "doctor", dumps, "--strict", cwd=tmp_path).returncode == 3


class Interrupts(Progress):
    """Ctrl-C while the second file is read."""

    def item_begins(self, name: str, number: int, total: int) -> None:
        if number == 2:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_run_is_a_run(dumps: Path) -> None:
    run = engine(DoctorOptions(paths=[dumps]), Interrupts())
    assert run.info.interrupted
    assert run.exit_code == 130
