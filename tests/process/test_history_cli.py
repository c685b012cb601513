"""``portagpu matrix history``: what each verb prints, writes and exits with."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

np: Any = pytest.importorskip("numpy")
pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from portagpu.cli import main
from portagpu.runs.results.run import Result, Verdict
from tests.conftest import ROOT
from tests.support.history_samples import measure, run, write
from tests.support.history_stores import place, postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

__all__ = ["place", "postgres_server"]

HOSTS = [f"node-{number}" for number in range(5)]
DAYS = 24


def fleet(folder: Path) -> list[Path]:
    """Five nodes over 24 days. With torch 2.13, from day 12, a product is slower on each.

    On the last day node-3 copies slowly, and one of its four devices has no bandwidth.
    """
    random = np.random.default_rng(7)

    def near(value: float) -> float:
        return float(value * random.normal(1, 0.003))

    runs = []
    for day in range(DAYS):
        new = day >= 12
        for host in HOSTS:
            bad = host == "node-3" and day == DAYS - 1
            results = [
                measure("gemm/bf16[4096]", near(80 if new else 100), "TFLOPS"),
                measure("memory/copy", near(30 if bad else 50)),
                measure("launch/issue", near(4), "us"),
                *(
                    measure(
                        "transfer/h2d", near(5 if bad and index == 2 else 25), device=f"{index}"
                    )
                    for index in range(4)
                ),
            ]
            versions = {"torch": "2.13.0" if new else "2.12.0"}
            runs.append(run(day, results, host=host, versions=versions))
    return write(folder, runs)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("fleet")
    fleet(folder)
    place = str(tmp_path_factory.mktemp("store") / "store.db")
    assert main(["matrix", "history", "import", str(folder), "--store", place]) == 0
    return place


Said = tuple[int, str, str]


@pytest.fixture
def say(store: str, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*words: str, place: str = store) -> Said:
        capfd.readouterr()
        code = main(["matrix", "history", *words, "--store", place])
        return code, *capfd.readouterr()

    return call


def test_runs_are_listed_with_the_newest_last(say: Callable[..., Said]) -> None:
    code, out, _ = say("runs", "--last", "3")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["run", "started", "host", "target", "verdict", "measures"]
    assert lines[3].split()[1:] == ["2025-01-24T08:00:00Z", lines[3].split()[2], "example-1",
                                    "INCONCLUSIVE", "7"]  # fmt: skip
    assert lines[4] == "and 117 older runs: --last and --json"
    code, out, _ = say("runs", "--of", "host=node-1,since=2025-01-20", "--json", "-")
    found = json.loads(out)["runs"]
    assert [each["started"][:10] for each in found] == [f"2025-01-{day}" for day in range(20, 25)]
    assert found[0]["versions"]["torch"] == "2.13.0"


def test_two_versions_are_compared(say: Callable[..., Said]) -> None:
    code, out, _ = say("compare", "torch=2.12.0", "torch=2.13.0")
    assert code == 1
    row, *rest = [line for line in out.splitlines()[1:] if line]
    assert row.split()[0] == "gemm/bf16[4096]"
    assert row.split()[-1] == "worse"
    assert "0.80" in row
    assert rest == ["newest runs: torch 2.12.0 -> 2.13.0", "7 measures in both: 6 alike, 1 worse"]
    code, out, _ = say("compare", "torch=2.13.0", "torch=2.12.0", "--json", "-")
    document = json.loads(out)
    assert code == 0
    assert {each["id"]: each["word"] for each in document["differences"]} == {
        "gemm/bf16[4096]": "better",
        "memory/copy": "alike",
        "launch/issue": "alike",
        "transfer/h2d": "alike",
    }
    assert say("compare", "host=node-1", "host=node-2", "--least", "50")[0] == 0


def test_a_trend_has_a_row_for_each_machine_or_run(say: Callable[..., Said]) -> None:
    code, out, _ = say("trend", "gemm/bf16[4096]")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()[1:]] == HOSTS
    assert "24" in out.splitlines()[1]
    code, out, _ = say("trend", "memory/copy", "--of", "host=node-3", "--last", "2")
    lines = out.splitlines()
    assert lines[0] == "memory/copy: example-1 on node-3"
    assert lines[3].startswith("2025-01-24T08:00:00Z")
    assert lines[4] == "and 22 older runs: --last and --json"
    _, out, _ = say("trend", "transfer/h2d", "--json", "-")
    assert {each["device"] for each in json.loads(out)["trends"]} == {"0", "1", "2", "3"}


def test_regressions_name_the_software(say: Callable[..., Said]) -> None:
    code, out, _ = say("regressions")
    assert code == 1
    rows = out.splitlines()[1:6]
    for host, row in zip(HOSTS, rows, strict=True):
        assert row.startswith(f"example-1 on {host}")
        for part in ("gemm/bf16[4096]", "2025-01-13T08:00:00Z", "torch 2.12.0 -> 2.13.0", "worse"):
            assert part in row
    assert "torch 2.12.0 -> 2.13.0: 5 regressions on 5 machines" in out
    assert "and 4 smaller ones: --top and --json" in say("regressions", "--top", "1")[1]
    assert "5 regressions and 0 other changes in 35 series of 120 runs" in out
    assert "at most 5 % of such searches find anything" in out
    code, out, _ = say("regressions", "--of", "until=2025-01-13", "--json", "-")
    assert (code, json.loads(out)["changes"], json.loads(out)["searched"]) == (0, [], 35)
    assert say("regressions", "--of", "until=2025-01-03")[0] == 3
    assert say("regressions", "memory/copy")[0] == 0


def test_outliers_are_found_among_devices_nodes_and_over_time(say: Callable[..., Said]) -> None:
    code, out, _ = say("outliers", "--json", "-")
    found = json.loads(out)["outliers"]
    assert code == 1
    assert [(each["among"], each["id"], each["who"]) for each in found[:2]] == [
        ("devices", "transfer/h2d", "2"),
        ("nodes", "memory/copy", "node-3"),
    ]
    assert {each["host"] for each in found} == {"node-3"}
    assert {(each["id"], each["device"]) for each in found if each["among"] == "time"} == {
        ("memory/copy", None),
        ("transfer/h2d", "2"),
    }
    assert {each["word"] for each in found} == {"worse"}
    code, out, _ = say("outliers")
    assert out.splitlines()[-1].startswith("4 outliers in ")
    assert say("outliers", "--of", "host=node-1")[0] == 0
    assert say("outliers", "--of", "host=node-1,until=2025-01-02,since=2025-01-01")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trend", "memory/cop"), "the store has no measure 'memory/cop': did you mean 'memory/c"),
        (("regressions", "memory/cop"), "the store has no measure 'memory/cop': did you mean 'mem"),
        (("trend", "memory/copy", "--of", "host=x"), "no run of the store has host=x"),
        (("compare", "2024", "2025"), "no run of the store has the id '2024'"),
        (("compare", "2025", "2025"), "'2025' begins 120 ids"),
        (("regressions", "--least", "nan"), "nan is not a finite number"),
        (("regressions", "--rate", "0"), "0"),
        (("runs", "--of", "since=now"), "'now' is not a time"),
        (("runs", "--of", "host=node-1,host=node-2"), "host is given twice"),
        (
            ("runs", "--of", "torhc=2.13.0"),
            "'torhc' is not a condition of these runs; did you mean 'torc",
        ),
        (("runs", "--of", "torch=9"), "no run of the store has torch=9 ("),
    ],
)
def test_wrong_words_are_one_line(
    say: Callable[..., Said], words: tuple[str, ...], said: str
) -> None:
    code, out, err = say(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    "words",
    [("runs",), ("trend", "a/b"), ("compare", "2025", "2025"), ("regressions",), ("outliers",)],
)
def test_no_verb_writes_over_its_store(
    tmp_path: Path, say: Callable[..., Said], words: tuple[str, ...]
) -> None:
    place = tmp_path / "store.db"
    (file,) = write(tmp_path, [run(0, [measure("a/b", 1.0)])])
    assert say("import", str(file), place=str(place))[0] == 0
    (tmp_path / "link").symlink_to(place)
    before = place.read_bytes()
    for verb in (words, ("import", str(file))):
        code, out, err = say(*verb, "--json", str(tmp_path / "link"), place=str(place))
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "is also an input: name another file to write" in err
    assert place.read_bytes() == before


def test_an_import_that_cannot_say_begins_nothing(tmp_path: Path, say: Callable[..., Said]) -> None:
    place = tmp_path / "store.db"
    (file,) = write(tmp_path, [run(0, [measure("a/b", 1.0)])])
    for wrong, said in ((tmp_path, "cannot write"), (file, "is also an input")):
        code, out, err = say("import", str(file), "--json", str(wrong), place=str(place))
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert said in err
    assert not place.exists()
    assert json.loads(file.read_text())["schema"] == "portagpu.result/1"


def test_runs_without_measures_say_so(tmp_path: Path, say: Callable[..., Said]) -> None:
    place = str(tmp_path / "store.db")
    write(tmp_path, [run(0, [])])
    assert say("import", str(tmp_path), place=place)[0] == 0
    for words in (("trend", "a/b"), ("regressions", "a/b")):
        code, _, err = say(*words, place=place)
        assert (code, "the runs of the store have no measures" in err) == (2, True)


def test_there_is_no_store_or_nothing_in_it(tmp_path: Path, say: Callable[..., Said]) -> None:
    place = str(tmp_path / "store.db")
    code, _, err = say("runs", place=place)
    assert (code, err) == (
        2,
        f"portagpu: {place}: the store does not exist; portagpu matrix history import makes one\n",
    )
    (tmp_path / "empty").mkdir()
    code, out, _ = say("import", str(tmp_path / "empty"), place=place)
    assert (code, out) == (3, "no files: there is no *.json in these folders\n")
    (tmp_path / "empty" / "other.json").write_text("{}")
    code, out, _ = say("import", str(tmp_path / "empty"), place=place)
    assert (code, out) == (3, "1 passed over\n")
    code, _, err = say("outliers", place=place)
    assert code == 2
    assert "the store has no runs: add some with portagpu matrix history import" in err


def test_an_unreachable_server_is_an_error(say: Callable[..., Said]) -> None:
    pytest.importorskip("psycopg")
    code, out, err = say("runs", place="postgresql+psycopg://me:secret@127.0.0.1:1/x")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "check that the server runs" in err
    assert "secret" not in err


def test_hostile_names_are_one_printable_line(tmp_path: Path, say: Callable[..., Said]) -> None:
    place = str(tmp_path / "store.db")
    host = "\x1b[31mred\nnode'); DROP TABLE portagpu_runs; --" + "x" * 1900
    write_to = tmp_path / "runs"
    write_to.mkdir()
    for number, each in enumerate(
        [run(day, [measure("a/b", 1.0 + day)], host=host) for day in range(2)]
    ):
        each.write_json(write_to / f"{number}.json")
    assert say("import", str(write_to), place=place)[0] == 0
    for words in (("runs",), ("trend", "a/b"), ("outliers",)):
        code, out, err = say(*words, place=place)
        assert code in (0, 3)
        assert "\x1b" not in out + err
        assert max(map(len, out.splitlines())) < 300
    assert json.loads(say("runs", "--json", "-", place=place)[1])["runs"][0]["host"] == host


def test_one_count_that_is_not_zero_is_an_outlier(tmp_path: Path, say: Callable[..., Said]) -> None:
    place = str(tmp_path / "store.db")
    write(
        tmp_path,
        [run(0, [measure("a/b", 5.0 if n == 3 else 0.0, "1")], host=f"n{n}") for n in range(5)],
    )
    assert say("import", str(tmp_path), place=place)[0] == 0
    code, out, _ = say("outliers", "--json", "-", place=place)
    (found,) = json.loads(out)["outliers"]
    assert (code, found["host"], found["median"], found["relative"]) == (1, "n3", 0.0, None)


def test_help_and_the_group_need_no_library(child: Callable[..., Child]) -> None:
    code = """
import sys
sys.modules["sqlalchemy"] = sys.modules["numpy"] = sys.modules["alembic"] = None
from portagpu.cli import main
from portagpu.runs.results.run import Result, Verdict
sys.exit(main(["matrix", "history", "regressions", "--help"]))
"""
    assert "--rate" in child("-c", code).ok()


def history_page() -> str:
    """The part of the page of the matrix that is about its history."""
    return (ROOT / "docs" / "matrix.md").read_text("utf-8").partition("\n## History\n")[2]


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = history_page()
    block = page.partition("```console\n$ ")[2].partition("\n```")[0]
    (tmp_path / "runs").mkdir()
    fleet(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    for part in block.split("\n$ "):
        command, _, shown = part.partition("\n")
        main(command.split()[1:])
        said = capfd.readouterr().out
        pattern = ".*\n".join(re.escape(piece) for piece in f"{shown}\n".split("...\n"))
        assert re.fullmatch(pattern, said, re.DOTALL), f"{command}\n{said}"


def test_the_page_has_every_verb_and_table() -> None:
    from portagpu.cli.matrix_history import _VERBS
    from portagpu.reports.history.database import METADATA, VERSION_TABLE

    rows = re.findall(r"^\| `(\w+)", history_page(), re.MULTILINE)
    assert set(rows) == {*_VERBS, *METADATA.tables, VERSION_TABLE}


def test_screens_of_devices(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def judged(device: str, results: float, verdict: Verdict = Verdict.PASS) -> Result:
        return Result(
            id="screen/vectors/float32[add]",
            suite="screen",
            area="screen",
            verdict=verdict,
            reason="1 of 256 results is wrong" if verdict is Verdict.FAIL else "",
            device=device,
            value=results,
            unit="results",
        )

    write(
        tmp_path / "runs",
        [
            run(0, [judged("cuda:0", 1e9), judged("cuda:1", 2e9)]),
            run(1, [judged("cuda:0", 3e9), judged("cuda:1", 256, Verdict.FAIL)]),
        ],
    )
    place = str(tmp_path / "store.db")
    history = ("matrix", "history")
    assert main([*history, "import", str(tmp_path / "runs"), "--store", place]) == 0
    capfd.readouterr()
    # the runs are of 2025
    code = main([*history, "screens", "--days", "36500", "--store", place])
    lines = capfd.readouterr().out.splitlines()
    assert code == 1, "a result was wrong"
    assert [line.split()[3:] for line in lines[1:]] == [
        ["cuda:0", "3,000,000,000", "1e-09", "2", "4,000,000,000", "7.5e-10"],
        ["cuda:1", "256", "wrong", "2", "2,000,000,256", "wrong"],
    ]
    assert main([*history, "screens", "--days", "1", "--store", place]) == 3
    assert "no screen of these runs" in capfd.readouterr().out
    # as many as a time allows: no measure that is compared
    assert main([*history, "outliers", "--store", place]) == 3
