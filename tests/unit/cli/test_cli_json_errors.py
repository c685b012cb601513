"""Every verb that is asked for JSON writes one document, whatever its exit code.

The verbs are those of the command tree, so that a new one is tested by itself.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from portagpu.base.errors import BackendNotFound
from portagpu.cli import main
from portagpu.cli._common import check_kept, write_json
from portagpu.cli._verbs import app
from portagpu.runs.results.run import Result, Run, Verdict, new_run, read_json, validate

if TYPE_CHECKING:
    from collections.abc import Iterator


def verbs(command: click.Command = app, *names: str) -> Iterator[tuple[str, ...]]:
    """Every verb with ``--json``."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from verbs(below, *names, name)
    elif any(each.name == "json_to" for each in command.params):
        yield names


VERBS = sorted(verbs())


def command_of(names: tuple[str, ...]) -> click.Command:
    command: click.Command = app
    for name in names:
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), name)
        assert below is not None
        command = below
    return command


def check(text: str, names: tuple[str, ...], code: int, said: str) -> None:
    """``text`` is one document that states the error: of a run, or of the small form."""
    document = json.loads(text)
    if document["schema"] == "portagpu.error/1":
        assert set(document) == {"schema", "verb", "exit_code", "error"}
        assert (document["verb"], document["exit_code"]) == (" ".join(names), code)
        assert said in document["error"]
        return
    assert document["schema"] == "portagpu.result/1"
    validate(document)
    run = Run.from_json(document)
    assert run.exit_code == code
    assert run.verdict is (Verdict.ERROR if code == 1 else Verdict.INCONCLUSIVE)
    assert said in run.summary_line()


@pytest.mark.parametrize("names", VERBS, ids=" ".join)
def test_wrong_usage_of_any_verb_has_its_document(
    names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    for words in (["--json", "-", "--no-such-option"], ["--no-such-option", "--json=-"]):
        if names == ("profile",) and words[0] == "--no-such-option":
            continue  # what follows may be the program's own
        assert main([*names, *words]) == 2
        check(capsys.readouterr().out, names, 2, "--no-such-option")
    assert main([*names, "--json", str(file), "--no-such-option"]) == 2
    assert capsys.readouterr().out == ""
    assert file.exists() is (names != ("monitor",))
    if file.exists():
        check(file.read_text(), names, 2, "--no-such-option")


@pytest.mark.parametrize("words", [["--json", "-"], ["--json=-"]])
def test_an_unknown_verb_has_a_document_on_standard_output(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bnech", *words]) == 2
    check(capsys.readouterr().out, ("bnech",), 2, "did you mean")
    assert main(["bnech", "--json", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists(), "nobody knows whose file it would be"


def test_a_file_that_is_read_too_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    path = folder / "result.json"
    made = new_run(["portagpu", "bench"]).finish()
    for words in (
        [str(path), "--json", str(path)],
        [str(path), "--json", str(path), "--no-such-option"],
        [str(folder), "--json", str(path), "--no-such-option"],
        [f"--target={path}", "--json", str(path), "--no-such-option"],
    ):
        made.write_json(path)
        assert main(["matrix", "show", *words]) == 2
        assert read_json(path) == made
    with pytest.raises(click.UsageError, match="is also an input"):
        check_kept([path], path)
    capsys.readouterr()


def test_wrong_usage_replaces_documents_and_nothing_that_may_be_an_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.json"
    made = new_run(["portagpu", "health"]).finish().to_text()
    error = '{\n  "schema": "portagpu.error/1"\n}\n'
    for names, before, replaced in (
        # the argument is missing, and is what --json was given
        (("trace", "summary"), '{"traceEvents": []}', False),
        (("fleet", "report"), made, False),
        (("fleet", "report"), error, True),
        (("fleet", "report"), "", True),
        (("health",), made, True),
        (("targets", "list"), error, True),
        (("health",), "import torch\n", False),
    ):
        file.write_text(before)
        bad = [] if command_of(names).params[0].required else ["--no-such-option"]
        assert main([*names, *bad, "--json", str(file)]) == 2
        if replaced:
            check(file.read_text(), names, 2, "")
        else:
            assert file.read_text() == before
    capsys.readouterr()


def test_an_error_of_a_run_replaces_what_an_older_one_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command_of(("bench",))

    @functools.wraps(command.callback)  # type: ignore[arg-type]
    def cannot(**_: Any) -> None:
        raise BackendNotFound("cannot be used")

    monkeypatch.setattr(command, "callback", cannot)
    file = new_run(["portagpu", "bench"]).finish().write_json(tmp_path / "result.json")
    assert main(["bench", "--json", str(file)]) == 3
    check(file.read_text(), ("bench",), 3, "cannot be used")
    capsys.readouterr()


def test_a_document_that_was_written_is_not_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command_of(("targets", "list"))

    def writes_and_breaks(json_to: str, **_: Any) -> None:
        write_json({"schema": "portagpu.targets/1", "targets": []}, json_to)
        raise RuntimeError("afterwards")

    monkeypatch.setattr(command, "callback", writes_and_breaks)
    assert main(["targets", "list", "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == "portagpu.targets/1"


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["info", "--json", str(tmp_path / "file" / "x.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot write" in line
    assert main(["info", "--json", str(tmp_path)]) == 2
    assert main(["info", "--no-such-option", "--json", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_results_so_far_stay_in_the_document_of_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from portagpu.cli._run_output import Files, View

    command = command_of(("bench",))

    @functools.wraps(command.callback)  # type: ignore[arg-type]
    def breaks(json_to: str, **_: Any) -> None:
        run = new_run(["portagpu", "bench"])
        View(Files(json_to)).begin(run)
        run.add(Result(id="a/b", suite="performance", area="a", verdict=Verdict.PASS))
        raise RuntimeError("half way")

    monkeypatch.setattr(command, "callback", breaks)
    for to in ("-", str(tmp_path / "result.json")):
        assert main(["bench", "--json", to]) == 1
        out = capsys.readouterr().out
        run = Run.from_json(json.loads(out if to == "-" else Path(to).read_text()))
        assert [each.id for each in run.results] == ["a/b"]
        assert run.verdict is Verdict.ERROR
        assert "half way" in run.why


@pytest.mark.parametrize("gate", ["prolog", "npd"])
def test_a_gate_whose_judgement_breaks_writes_its_file(
    gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(_: Any) -> None:
        raise RuntimeError("no child")

    monkeypatch.setattr("portagpu.checks.health.watchdog.health_within", breaks)
    file = tmp_path / "result.json"
    words = ["--gate", gate, "--json", str(file), "--reason-file", str(tmp_path / "reason")]
    assert main(["health", *words]) == (2 if gate == "npd" else 0)
    run = read_json(file)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert "no child" in run.why
    capsys.readouterr()


def test_an_older_result_does_not_stay_in_the_folder_of_a_run_that_did_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command_of(("bringup",))

    @functools.wraps(command.callback)  # type: ignore[arg-type]
    def cannot(**_: Any) -> None:
        raise BackendNotFound("cannot be used")

    monkeypatch.setattr(command, "callback", cannot)
    old = new_run(["portagpu", "bringup"])
    old.add(Result(id="a/b", suite="bringup", area="a", verdict=Verdict.PASS))
    path = old.finish().write_json(tmp_path / "result.json")
    assert main(["bringup", "--out", str(tmp_path), "--no-such-option"]) == 2
    assert read_json(path) == old
    assert main(["bringup", "--out", str(tmp_path)]) == 3
    assert read_json(path).exit_code == 3
    assert "cannot be used" in read_json(path).why
    assert "cannot be used" in (tmp_path / "report.html").read_text()
    assert 'type="INCONCLUSIVE"' in (tmp_path / "junit.xml").read_text()
    capsys.readouterr()
