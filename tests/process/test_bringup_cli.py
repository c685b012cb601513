"""``portagpu bringup`` as a user calls it: wrong options, places that cannot be written, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from portagpu.base.errors import OutputError
from portagpu.checks.bringup import load_gates
from portagpu.cli._run_output import Files
from portagpu.cli.bringup import bringup as bringup_verb
from portagpu.runs.results.plain import UNSAFE
from portagpu.runs.results.run import Result, Verdict, new_run, read_json, validate
from portagpu.runs.results.wording import headline

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


def portagpu(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "portagpu", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )


def test_another_machine_fails_in_a_pipe_with_plain_lines_and_complete_files(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "new" / "out"
    ended = portagpu("bringup", "--target", "nvidia-h200-sxm", "--out", str(out), cwd=tmp_path)
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert "\x1b" not in ended.stdout
    assert lines[0].startswith("PASS         Environment")
    assert lines[1].startswith("FAIL         Identity and count")
    assert "FAIL: identity/target on cpu" in lines[-4]
    assert sorted(path.name for path in out.iterdir()) == [
        "junit.xml",
        "report.html",
        "result.json",
    ]
    run = read_json(out / "result.json")
    assert run.first_failed == "identity/target"
    assert {result.blocked_by for result in run.results if result.blocked_by} == {"identity/target"}
    assert all(each.expected is not None and each.value is not None for each in run.failures)
    if "this machine is cpu-x86-64" in ended.stdout:
        readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
        shown = readme.partition("--target nvidia-h200-sxm\n")[2].partition("```")[0]
        failures = shown.splitlines()
        assert len(failures) > 5
        for line in failures:
            assert line in lines or line == "...", f"README shows what is not printed: {line}"


def test_json_on_standard_output_is_the_document_alone(tmp_path):
    pytest.importorskip("torch")
    ended = portagpu("bringup", "--target", "amd-mi300x", "--json", "-", cwd=tmp_path)
    document = json.loads(ended.stdout)
    validate(document)
    assert document["verdict"] == "FAIL"
    assert "Identity and count" in ended.stderr


def test_a_full_disk_keeps_the_last_whole_result(tmp_path, monkeypatch):
    """What was written stays valid when the next write fails, and nothing half-written stays."""
    files = Files(folder=tmp_path)
    run = new_run(["portagpu", "bringup"])
    run.add(Result(id="a/b", suite="bringup", area="a", verdict=Verdict.PASS))
    files.begin(run)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        files.write(run.finish())
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert read_json(tmp_path / "result.json").info.interrupted


def test_a_pipe_gets_one_whole_document(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    files = Files(str(pipe))
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        run = new_run(["portagpu", "bringup"])
        files.begin(run)
        files.update(run)
        files.write(run.finish())
        assert json.loads(reader.read())["run"]["id"] == run.info.id, "not the document alone"


def test_a_disk_that_fills_meanwhile_does_not_end_the_run(tmp_path, monkeypatch):
    files = Files(folder=tmp_path)
    run = new_run(["portagpu", "bringup"])
    files.begin(run)
    run.add(Result(id="a/b", suite="bringup", area="a", verdict=Verdict.PASS))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        files.update(run)
    assert read_json(tmp_path / "result.json").results == []
    files.update(run)
    assert len(read_json(tmp_path / "result.json").results) == 1


@pytest.mark.parametrize("name", ["result.json", "junit.xml", "report.html"])
def test_a_folder_in_the_place_of_an_output_is_said_before_anything_runs(tmp_path, name):
    pytest.importorskip("torch")
    (tmp_path / "out" / name).mkdir(parents=True)
    ended = portagpu("bringup", "--out", "out", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert f"cannot write out/{name}: Is a directory" in lines[0]


def test_an_older_report_does_not_stay_next_to_a_new_run(tmp_path):
    (tmp_path / "report.html").write_text("PASS")
    (tmp_path / "junit.xml").write_text("<testsuites/>")
    (tmp_path / "notes.txt").write_text("mine")
    Files(folder=tmp_path).begin(new_run())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "result.json"]


def test_a_gates_line_states_the_worst_first():
    def result(verdict, reason="", device=None):
        return Result(
            id=f"g/{verdict}",
            suite="s",
            area="g",
            verdict=Verdict(verdict),
            reason=reason,
            device=device,
        )

    passed, failed = result("PASS"), result("FAIL", "is broken", "cuda:3")
    unjudged = result("INCONCLUSIVE", "was not read")
    assert headline([passed, unjudged, failed]) == "cuda:3: is broken (1 not judged, 1 passed)"
    assert headline([passed, unjudged]) == "was not read (1 passed)"
    assert headline([failed, failed]) == "cuda:3: is broken (1 more failed)"
    assert headline([passed, result("SKIP", "x")]) == "1 passed, 1 skipped"
    assert headline([result("UNVERIFIED", "3 GB/s")]) == "3 GB/s"


def test_the_name_of_a_folder_commands_no_terminal(tmp_path):
    (tmp_path / "list").write_text("GPU 0: NVIDIA H200 (UUID: GPU-a)\n")
    out = tmp_path / "of\x1b[2J\x7f\x9b31m\u202eevil"
    done = CliRunner().invoke(
        bringup_verb, ["--replay", str(tmp_path / "list"), "--out", str(out), "--json", "-"]
    )
    assert "evil/report.html" in done.stderr
    assert UNSAFE.search(done.output) is None
    assert (out / "report.html").is_file()


def test_the_gates_are_listed_and_none_runs(tmp_path):
    ended = portagpu("bringup", "--list", "--json", "gates.json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    listed = json.loads((tmp_path / "gates.json").read_text())["gates"]
    gates = load_gates()
    assert [each["id"] for each in listed] == [gate.id for gate in gates]
    for gate in gates:
        assert gate.spec in ended.stdout
