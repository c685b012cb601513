"""Bring-up where no device can be opened: what files, libraries and the kernel's log show."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import OutputError
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.record import record
from portagpu.checks.recordings.replay import Recording
from portagpu.machine.inventory.sources import CommandOutput
from portagpu.runs.results.run import Verdict
from tests.process.test_bringup_broken import LOG, LOST, QUIET, Here, run, verdicts, without_torch
from tests.process.test_bringup_broken import eight as eight
from tests.support.gpu_trees import amd_gpu, machine
from tests.support.host_trees import build, two_socket_x86

if TYPE_CHECKING:
    from pathlib import Path


def test_a_recording_in_one_file_is_read_as_its_folder_and_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, links = machine(*(amd_gpu(index) for index in range(8)))
    root = build(tmp_path / "machine", two_socket_x86() | files, links)
    log = CommandOutput(("dmesg",), LOG)
    monkeypatch.setattr("portagpu.checks.recordings.record._ProbedOnce.log_output", lambda _: log)
    record(tmp_path / "saved", root, names=())
    saved = record(tmp_path / "saved.tar.gz", root, names=())
    assert saved.folder == tmp_path / "saved.tar.gz"
    folder, packed = Recording(tmp_path / "saved"), Recording(saved.folder)
    assert packed.inventory() == folder.inventory()
    assert packed.topology() == folder.topology()
    with tarfile.open(saved.folder) as archive:
        entries = archive.getmembers()
    assert any(each.issym() for each in entries), "links of the tree are kept"
    assert {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in entries} == {
        (0, 0, "", "", 0)
    }
    assert saved.folder.read_bytes()[4:8] == bytes(4), "gzip's own time"
    with pytest.raises(OutputError, match="exists already"):
        record(saved.folder, root, names=())


@pytest.mark.parametrize(("text", "verdict"), [(LOG, "FAIL"), (QUIET, "PASS"), ("", "SKIP")])
def test_a_recording_keeps_what_the_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, verdict: str
) -> None:
    files, links = machine(*(amd_gpu(index) for index in range(8)))
    root = build(tmp_path / "machine", two_socket_x86() | files, links)
    log = CommandOutput(("dmesg",), text, "" if text else "the kernel's log is not read: x")
    monkeypatch.setattr("portagpu.checks.recordings.record._ProbedOnce.log_output", lambda _: log)
    saved = record(tmp_path / "saved", root, names=())
    assert saved.problems == ((log.problem,) if log.problem else ())
    kept = "".join(each.read_text() for each in (tmp_path / "saved").rglob("*log*.json"))
    assert "Linux version" not in kept, "a quiet log is its absence of errors, and no line of it"
    made = bringup(BringupOptions(replay=Recording(tmp_path / "saved")))
    assert verdicts(made, "health")["events"] == {verdict}
    (reading,) = (each for each in made.results if each.id == "environment/recording")
    assert (reading.verdict is Verdict.PASS) is bool(text)
    assert log.problem in reading.reason


def test_the_kernels_log_is_judged_without_torch(
    eight: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_torch(monkeypatch)
    monkeypatch.setattr(eight, "text", LOG)
    made = run()
    assert made.failures[0].id == "health/events", made.summary_line()
    assert made.failures[0].device == LOST
    monkeypatch.setattr(eight, "text", QUIET)
    assert verdicts(run(), "health")["events"] == {"PASS"}
    monkeypatch.setattr(eight, "text", "")
    assert verdicts(run(), "health")["events"] == {"SKIP"}
