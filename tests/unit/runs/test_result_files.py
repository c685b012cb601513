"""Which files are results, and what one of them holds: one rule for every verb that takes them."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import BundleError, ResultError
from portagpu.cli import main
from portagpu.reports.bundles.document import (
    OtherDocument,
    Others,
    find_files,
    read_file,
    read_files,
)
from portagpu.runs.results.run import MAX_BYTES, Run, read_json
from tests.conftest import ROOT
from tests.support import bundle_samples
from tests.support.result_samples import gate, info

if TYPE_CHECKING:
    from pathlib import Path

BUNDLES = ROOT / "matrix" / "results"
WHOLE = "result.json"


def written(path: Path, run_id: str, host: str = "node") -> Path:
    run = Run(info(id=run_id, host=host), [gate("links", "a")])
    path.parent.mkdir(parents=True, exist_ok=True)
    return run.write_json(path)


def paths(*places: Path) -> list[Path]:
    return [each.path for each in read_files(places)]


def test_results_bundles_and_folders_of_them_are_read_in_the_order_of_their_names(
    tmp_path: Path,
) -> None:
    single = written(tmp_path / "x.json", "one")
    second = written(tmp_path / "many" / "run.json", "two")
    below = written(tmp_path / "many" / "b" / "deep" / "run.json", "three")
    before = written(tmp_path / "many" / "a" / "z.json", "four")
    (tmp_path / "many" / "other.json").write_text('{"schema": "of-something-else/1"}')
    (tmp_path / "many" / "list.json").write_text("[1, 2]")
    (tmp_path / "many" / "notes.txt").write_text("no result")
    bundles = sorted(BUNDLES.glob("*.json"))
    found = read_files([single, tmp_path / "many", BUNDLES])
    assert [each.path for each in found] == [single, second, before, below, *bundles]
    assert [each.is_bundle for each in found] == [False] * 4 + [True] * len(bundles)
    for each in found:
        assert each.data == each.path.read_bytes()
        raw = json.loads(each.data)
        assert each.schema == raw["schema"]
        written_run = raw["result"] if each.is_bundle else raw
        # older documents lack it
        written_run["run"].setdefault("switches", {})
        assert each.run.to_json() == written_run
    assert found[0].run == read_json(single)


def test_a_digest_does_not_depend_on_line_breaks(tmp_path: Path) -> None:
    first = written(tmp_path / "x.json", "one")
    second = tmp_path / "y.json"
    second.write_text(json.dumps(json.loads(first.read_text())))
    assert read_file(first).digest == read_file(second).digest


def test_a_bundle_next_to_the_result_of_its_run_does_not_count_again(tmp_path: Path) -> None:
    made = bundle_samples.bundle()
    whole = written(tmp_path / WHOLE, made["result"]["run"]["id"])
    bundle = tmp_path / "of-the-same-run.json"
    bundle.write_bytes(bundle_samples.data(made))
    other = written(tmp_path / "conform.json", "another run")
    below = written(tmp_path / "again" / WHOLE, "two")
    assert paths(tmp_path) == [whole, other, below]
    assert paths(bundle) == [bundle], "a file that is named is read"
    shutil.copy(bundle, tmp_path / "again" / "x.json")
    assert paths(tmp_path / "again") == [below, tmp_path / "again" / "x.json"]


def test_nothing_in_a_folder_is_passed_over_in_silence(tmp_path: Path) -> None:
    written(tmp_path / WHOLE, "one")
    (tmp_path / "junit.xml").write_text("written with the result")
    (tmp_path / "info.json").write_text('{"schema": "of-something-else/1"}')
    (tmp_path / "more.json.gz").write_bytes(b"")
    (tmp_path / "away").symlink_to(tmp_path)
    others = Others()
    assert [each.run.info.id for each in read_files([tmp_path], None, others)] == ["one"]
    assert {each.path.name: each.reason for each in others.aside} == {
        "info.json": "is neither a result, as --json and --out write it, nor a bundle",
        "more.json.gz": "is not JSON",
        "away": "is a link to a folder, which is not followed",
    }


def test_a_run_of_the_future_is_left_out_and_the_others_count(tmp_path: Path) -> None:
    written(tmp_path / "a.json", "20250301T101500Z-0a1b2c3d")
    late = Run(info(id="x", started="2099-01-01T00:00:00Z"), [gate("links", "a")])
    late.write_json(tmp_path / "b.json")
    now, others = datetime(2026, 1, 1, tzinfo=UTC), Others()
    (found,) = read_files([tmp_path], now, others)
    assert found.path.name == "a.json"
    (aside,) = others.aside
    assert aside.path.name == "b.json"
    assert "in the future" in aside.reason
    with pytest.raises(ResultError, match=r"b\.json: run\.started: .* in the future"):
        read_files([tmp_path / "b.json"], now)


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    inside = written(tmp_path / "in" / "x.json", "one")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    written(tmp_path / "elsewhere" / "y.json", "two")
    (tmp_path / "in" / "away").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "z.json").symlink_to(tmp_path / "third.json")
    third = written(tmp_path / "third.json", "three")
    assert paths(tmp_path / "in") == [inside, tmp_path / "in" / "z.json"]
    assert read_file(tmp_path / "in" / "z.json").run == read_file(third).run
    linked = tmp_path / "in" / "away"
    assert paths(linked) == [linked / "y.json"], "a link that is named is a folder"


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    file = written(tmp_path / "x.json", "one")
    assert paths(file, tmp_path, file) == [file]


def test_json_of_something_else_is_refused_where_it_is_named(tmp_path: Path) -> None:
    other = tmp_path / "x.json"
    other.write_text('{"schema": "of-something-else/1"}')
    written(tmp_path / "y.json", "one")
    with pytest.raises(OtherDocument) as caught:
        read_files([tmp_path, other])
    assert str(caught.value).startswith(
        f"{other}: is neither a result, as --json and --out write it"
    )


def test_what_is_named_or_looks_like_json_is_read(tmp_path: Path) -> None:
    inside = written(tmp_path / "x.json", "one")
    text = written(tmp_path / "y.txt", "two")
    assert list(find_files([tmp_path, text])) == [(inside, False), (text, True)]


def test_two_files_with_one_run_are_reported(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.json", "same"), written(tmp_path / "b.json", "same", "h2")
    with pytest.raises(ResultError) as caught:
        read_files([tmp_path])
    assert str(caught.value) == (
        f"{first} and {second} both hold the run same for two machines, 'node' and 'h2', so one "
        "was edited or copied: name one of them"
    )
    written(second, "same")
    with pytest.raises(ResultError) as caught:
        read_files([tmp_path])
    assert str(caught.value) == f"{first} and {second} both hold the run same: name one of them"


def test_a_folder_without_results_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ResultError) as caught:
        read_files([tmp_path])
    assert str(caught.value) == f"{tmp_path}: no file in this folder is a result"


def test_a_folder_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "x.json", "one")
    closed = tmp_path / "closed"
    closed.mkdir()
    real = os.scandir

    def scandir(place: Any) -> Any:
        if os.fspath(place) == str(closed):
            raise PermissionError(13, "Permission denied", str(closed))
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(ResultError, match="closed: cannot be read: "):
        read_files([tmp_path])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_refused_in_a_folder_too(tmp_path: Path, share: float) -> None:
    file = written(tmp_path / "x.json", "one")
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ResultError) as caught:
        read_files([tmp_path])
    assert str(caught.value).startswith(f"{file}: is not JSON, or was cut off")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        ("[" * 100_000, "is nested too deeply"),
        (
            '{"schema": "portagpu.result/9"}',
            "schema: is portagpu.result/9; this version reads portagpu.result/1: upgrade portagpu",
        ),
        (
            '{"schema": "portagpu.bundle/12"}',
            "schema: is portagpu.bundle/12; this version reads portagpu.bundle/1: upgrade portagpu",
        ),
        ('{"schema": "portagpu.result/x"}', "schema: must be one of portagpu.result/1"),
        ('{"schema": "portagpu.result/1"}', "verdict: is missing"),
        ('{"schema": "portagpu.bundle/1"}', "is not a bundle"),
    ],
)
def test_each_error_is_one_line_that_begins_with_the_path(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    file = tmp_path / "x\n.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ResultError) as caught:
        read_files([file])
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/x .json: ")
    assert problem in said
    assert "\n" not in said


def test_a_pipe_is_refused_at_once_and_a_file_without_end_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(ResultError, match=r"x\.json: cannot be read: not a regular file"):
        read_files([tmp_path])
    (tmp_path / "x.json").unlink()
    with (tmp_path / "x.json").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(ResultError, match=r"x\.json: is larger than 64 MiB"):
        read_files([tmp_path])


def test_what_was_altered_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "x.json", "one")
    file.write_text(file.read_text().replace('"PASS"', '"FAIL"', 1))
    with pytest.raises(ResultError, match="verdict: is 'FAIL', but the results give 'PASS'"):
        read_files([file])
    (tmp_path / "y.json").write_bytes(
        bundle_samples.data(bundle_samples.bundle()).replace(b'"value": 18.5', b'"value": 99.5')
    )
    with pytest.raises(BundleError, match=r"y\.json: was altered after it was written"):
        read_files([tmp_path / "y.json"])


VERBS = {
    "report": ("report",),
    "matrix show": ("matrix", "show"),
    "matrix report": ("matrix", "report", "--out", "page.html"),
    "bench --peers": ("bench", "--peers"),
    "bench --calibrate": ("bench", "--calibrate"),
}


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a.json": "one", "b.json": "one"}, "{0}/a.json and {0}/b.json both hold the run one"),
        ({}, "{0}: no file in this folder is a result"),
        ({"a.json": None}, "{0}/a.json: is not JSON, or was cut off"),
    ],
)
def test_every_verb_has_this_rule(
    words: tuple[str, ...],
    files: dict[str, str | None],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "runs"
    place.mkdir()
    for name, run_id in files.items():
        if run_id is None:
            (place / name).write_text("{")
        else:
            written(place / name, run_id)
    monkeypatch.chdir(tmp_path)
    assert main([*words, str(place)]) == 2
    said = capfd.readouterr().err
    assert re.match(f"portagpu: [a-z ]+: {re.escape(problem.format(place))}", said)
    assert said.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["runs"], "nothing is written"
