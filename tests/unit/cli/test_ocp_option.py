"""``--ocp`` of every verb whose document is a run, and ``report --format``."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import pytest

from portagpu import cli
from portagpu.base.errors import OutputError
from portagpu.base.files import GrowingFile
from portagpu.cli._verbs import app
from portagpu.runs.results.run import read_json
from tests.support.ocp_rules import lines_of, of_run, of_steps, problems
from tests.support.result_samples import failing, passing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def commands(group: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        yield " ".join(names), group
        return
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield from commands(command, *names, name)


def test_every_verb_that_writes_a_run_writes_it_as_lines_too() -> None:
    found = {
        name
        for name, command in commands(app)
        if any("--ocp" in each.opts for each in command.params)
    }
    runs = {name for name, each in commands(app) if getattr(each.callback, "writes_run", False)}
    assert found == runs
    assert {"screen", "bringup", "collectives tune"} <= runs


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health judges no machine here."""
    monkeypatch.setattr("portagpu.checks.health.watchdog.health_within", lambda _: failing())


def test_a_verb_writes_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, document = tmp_path / "new" / "h.jsonl", tmp_path / "h.json"
    assert cli.main(["health", "--ocp", str(place), "--json", str(document)]) == 1
    lines = lines_of(place.read_text())
    assert problems(lines) == []
    assert len(of_steps(lines, "testStepEnd")) == len(read_json(document).results)
    assert of_run(lines, "testRunEnd") == [{"status": "COMPLETE", "result": "FAIL"}]
    assert f"wrote {place}" in capsys.readouterr().out


def test_standard_output_has_the_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--ocp", "-"]) == 1
    caught = capsys.readouterr()
    assert problems(lines_of(caught.out)) == []
    assert "FAIL" in caught.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["health", "--ocp", "-", "--json", "-"], "--json - and --ocp - both need standard output"),
        (["health", "--gate", "npd", "--ocp", "-"], "give --json and --ocp a file, not '-'"),
        (["health", "--ocp", "FOLDER"], "cannot write FOLDER: Is a directory"),
        (["health", "--ocp", "FOLDER/x", "--json", "FOLDER/x"], "two outputs go to"),
        (["bringup", "--list", "--ocp", "FOLDER/x"], "nothing runs here: leave it out"),
        (["bench", "--calibrate", "--ocp", "FOLDER/x", "FOLDER"], "leave out --ocp"),
        (["bench", "--peers", "--ocp", "FOLDER/a.json", "FOLDER/a.json"], "is also an input"),
    ],
)
def test_a_place_that_is_refused_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = passing().write_json(tmp_path / "a.json").read_bytes()
    named = [each.replace("FOLDER", str(tmp_path)) for each in words]
    assert cli.main(named) == 2
    caught = capsys.readouterr()
    assert said.replace("FOLDER", str(tmp_path)) in caught.err
    assert len(caught.err.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == kept


def test_an_error_before_the_run_is_a_run_that_was_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr("portagpu.checks.health.watchdog.health_within", broken)
    place = tmp_path / "h.jsonl"
    assert cli.main(["health", "--ocp", str(place)]) == 1
    lines = lines_of(place.read_text())
    assert problems(lines) == []
    assert "lost" in of_run(lines, "error")[0]["message"]
    assert of_run(lines, "testRunEnd") == [{"status": "ERROR", "result": "NOT_APPLICABLE"}]
    capsys.readouterr()


def test_a_full_disk_is_reported_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--ocp", "/dev/full"]) == 1
    caught = capsys.readouterr()
    assert "cannot write /dev/full" in caught.err
    assert "FAIL" in caught.out, "the verdict is lost"


def test_a_text_that_does_not_fit_leaves_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GrowingFile(tmp_path / "x")
    file.write("whole\n")
    write = os.write
    sizes = iter([3, -1, 5])

    def short(number: int, data: Any) -> int:
        size = next(sizes)
        if size < 0:
            raise OSError(28, os.strerror(28))
        return write(number, bytes(data)[:size])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(OutputError, match="No space left on device"):
            file.write("cut off\n")
        file.write("next\n")
    file.close()
    file.close()
    assert (tmp_path / "x").read_text() == "whole\nnext\n"


@pytest.mark.parametrize(
    ("form", "result_name", "other_name", "begins"),
    [
        ("html", "report.html", "a.html", "<!doctype html>"),
        ("junit", "junit.xml", "a.xml", "<?xml"),
        ("ocp", "ocp.jsonl", "a.ocp.jsonl", '{"schemaVersion"'),
    ],
)
def test_a_saved_result_is_reported_in_each_form(
    form: str, result_name: str, other_name: str, begins: str, tmp_path: Path
) -> None:
    passing().write_json(tmp_path / "result.json")
    other = failing()
    other.info = replace(other.info, id="another")
    other.write_json(tmp_path / "b" / "a.json")
    assert cli.main(["report", "--format", form, str(tmp_path)]) == 0
    for place in (tmp_path / result_name, tmp_path / "b" / other_name):
        text = place.read_text("utf-8")
        assert text.lower().startswith(begins.lower())
        if form == "ocp":
            assert problems(lines_of(text)) == []
    # what it wrote is not taken for a result of the folder
    assert cli.main(["report", "--format", form, str(tmp_path)]) == 0


def test_one_result_goes_to_the_file_that_is_named(tmp_path: Path) -> None:
    file = passing().write_json(tmp_path / "result.json")
    out = tmp_path / "x.jsonl"
    assert cli.main(["report", "--format", "ocp", str(file), "--out", str(out)]) == 0
    assert problems(lines_of(out.read_text())) == []
    assert cli.main(["report", "--format", "ocp", str(file), "--out", str(file)]) == 2
