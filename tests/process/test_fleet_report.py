"""``portagpu fleet report``: files of many nodes, good and bad, to a page and a document."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import ResultError
from portagpu.cli import main
from portagpu.reports.bundles.document import write_clearance
from portagpu.reports.condensed.nodes import NodeRun
from portagpu.reports.condensed.read import read_nodes
from portagpu.reports.fleet.record import (
    FleetRecord,
    FleetRecordError,
    Step,
    StepState,
    write_record,
)
from portagpu.reports.fleet.report import FleetReport, report
from portagpu.reports.fleet.result_files import DAMAGED, gather
from portagpu.reports.html.fleet_page import render
from portagpu.runs.ledger import Relief
from portagpu.runs.results.run import Result, Run, parse_json
from portagpu.runs.results.verdicts import Verdict
from tests.support.chromium import PROGRAM, WHY_NOT
from tests.support.chromium import Page as Browser
from tests.support.fleet_simulation import simulate, write_files
from tests.support.history_samples import FIRST_DAY, measure, run
from tests.support.html_page import Page, section
from tests.support.result_samples import gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"


def node(
    folder: Path, name: str, value: float = 100.0, *more: Result, number: int = 0, **fields: Any
) -> Path:
    """The result file of a node."""
    made = run(number, [gate("links", "a"), measure("memory/copy", value), *more], host=name)
    made.info = type(made.info)(**{**made.info.to_json(), **fields})
    path = folder / f"{len(list(folder.glob('*')))}.json"
    return made.write_json(path)


def failed(reason: str, **fields: Any) -> Result:
    return gate("links", "width", Verdict.FAIL, reason=reason, **fields)


def test_nodes_that_fail_are_grouped_by_what_they_say(tmp_path: Path) -> None:
    for number in range(6):
        more = (
            [failed(f"slot {number} has {number} lanes, and 16 are wanted")] if number < 4 else []
        )
        node(tmp_path, f"node-{number}", 100.0, *more)
    found = report([tmp_path])
    (reason,) = found.reasons
    assert reason.nodes == ("node-0", "node-1", "node-2", "node-3")
    assert (reason.gate, reason.check, reason.verdict) == ("links", "links/width", Verdict.FAIL)
    assert found.counts == {"FAIL": 4, "PASS": 2}
    assert found.verdict is Verdict.FAIL


def test_a_failure_stays_until_the_same_fact_passes(tmp_path: Path) -> None:
    node(tmp_path, "healed", 50.0, failed("down"), number=1)
    node(tmp_path, "healed", 100.0, gate("links", "width"), number=2)
    node(tmp_path, "ill", 100.0, failed("down"), number=1)
    run(2, [measure("memory/copy", 100.0)], host="ill").write_json(tmp_path / "bench.json")
    found = {each.name: each for each in report([tmp_path]).nodes}
    assert found["healed"].verdict is Verdict.PASS
    assert found["ill"].verdict is Verdict.FAIL, "a benchmark says nothing of a link"
    assert (found["ill"].gate, found["ill"].reason, found["ill"].earlier) == ("links", "down", 1)


SPOILED = gate("links", "width", Verdict.FAIL, reason="down", device="cuda:5")
WELL = gate("links", "width", device="cuda:5")


@pytest.mark.parametrize(
    ("later", "fields"),
    [
        # another case of the area, another device, another backend, another target
        (gate("links", "count"), {}),
        (gate("links", "width", device="cuda:0"), {}),
        (WELL, {"backend": "cpu"}),
        (WELL, {"target": "another"}),
        # a recording, an interrupted run, and one whose clock is ahead
        (WELL, {"replay": [{"name": "x", "sha256": None, "source": None}]}),
        (WELL, {"interrupted": True}),
        (WELL, {"started": "2099-01-01T00:00:00Z", "id": "late"}),
        # later as text, earlier as an instant
        (WELL, {"started": "2025-01-02T09:30:00+09:00", "id": "zone"}),
        # the same second
        (WELL, {"started": "2025-01-02T08:00:00.9Z", "id": "tie"}),
        # not judged
        (gate("links", "width", Verdict.SKIP, device="cuda:5", reason="no link"), {}),
        (gate("links", "width", Verdict.INCONCLUSIVE, device="cuda:5", reason="busy"), {}),
    ],
    ids=str,
)
def test_nothing_else_hides_a_failure(
    later: Result, fields: dict[str, Any], tmp_path: Path
) -> None:
    run(1, [SPOILED], host="n1").write_json(tmp_path / "old.json")
    run(2, [later], host="n1", **fields).write_json(tmp_path / "new.json")
    found = report([tmp_path])
    assert found.verdict is Verdict.FAIL
    node_1 = next(each for each in found.nodes if each.name == "n1")
    assert (node_1.verdict, node_1.device, node_1.reason) == (Verdict.FAIL, "cuda:5", "down")


def test_a_run_of_the_future_is_named_and_left_out(tmp_path: Path) -> None:
    run(1, [WELL], host="n1").write_json(tmp_path / "old.json")
    late = run(2, [SPOILED], host="n1", started="2099-01-01T00:00:00Z")
    late.write_json(tmp_path / "new.json")
    found = report([tmp_path])
    assert found.verdict is Verdict.INCONCLUSIVE
    (unread,) = found.unread
    assert unread.path.name == "new.json"
    assert "in the future" in unread.reason
    now = FIRST_DAY + timedelta(days=2, minutes=-4)
    run(2, [SPOILED], host="n1").write_json(tmp_path / "new.json")
    assert not gather([tmp_path], now=now).unread, "clocks may differ by five minutes"


def test_results_without_a_host_are_nodes_by_their_folders_and_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, results in (("gpu001", [SPOILED]), ("gpu002", [WELL])):
        made = run(
            1 + int(name[-1]),
            results,
            host="",
            replay=[{"name": f"{name}.log", "sha256": None, "source": None}],
        )
        (tmp_path / "nodes" / name).mkdir(parents=True)
        made.write_json(tmp_path / "nodes" / name / "result.json")
    (tmp_path / "flat").mkdir()
    for number in (5, 6):
        run(number, [WELL], host="").write_json(tmp_path / "flat" / f"gpu00{number - 2}.json")
    assert main(["fleet", "report", str(tmp_path)]) == 1
    out = capfd.readouterr().out
    assert "FAIL: 4 nodes: 3 PASS, 1 FAIL" in out
    assert "down: gpu001 cuda:5" in out


def test_a_second_run_in_a_folder_is_read_and_what_is_not_a_result_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "n1"
    folder.mkdir()
    run(1, [gate("links", "count")], host="n1").write_json(folder / "result.json")
    run(2, [SPOILED], host="n1").write_json(folder / "conform.json")
    (folder / "settings.json").write_text("{}")
    (folder / "elsewhere").symlink_to(tmp_path)
    assert main(["fleet", "report", str(tmp_path)]) == 1
    out = capfd.readouterr().out
    assert "FAIL: 1 node" in out
    assert f"left out: {folder / 'settings.json'}: is neither a result" in out
    assert f"left out: {folder / 'elsewhere'}: is a link to a folder" in out


def test_files_next_to_the_results_of_a_fleet_run_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    run(1, [WELL], host="a.local").write_json(tmp_path / "a" / "result.json")
    run(2, [SPOILED], host="a.local").write_json(tmp_path / "a" / "by-hand.json")
    run(3, [WELL], host="b.local").write_json(tmp_path / "b" / "result.json")
    done = StepState.DONE
    record(
        tmp_path,
        Step(id="a", nodes=("a",), state=done, result="a/result.json", verdict="PASS"),
        Step(id="b", nodes=("b",), state=StepState.LOST, reason="the node died"),
        nodes=("a", "b"),
    )
    found = report([tmp_path])
    assert {each.name: str(each.verdict or each.state) for each in found.nodes} == {
        "a": "FAIL",
        "b": "lost",
    }
    (aside,) = found.aside
    assert (aside.path.name, aside.reason) == (
        "result.json",
        "is of the step b, which has no result",
    )


def test_a_device_that_is_gone_is_a_failure_until_it_is_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = [{"name": "GPU", "uuid": f"GPU-{each}", "vendor": "nvidia"} for each in "ab"]
    run(1, [WELL], host="n1", devices=here).write_json(tmp_path / "old.json")
    after = [here[0], {**here[1], "uuid": "GPU-c"}]
    run(2, [gate("links", "count")], host="n1", devices=after).write_json(tmp_path / "new.json")
    (found,) = report([tmp_path]).nodes
    assert (found.verdict, found.action, found.device) == (Verdict.FAIL, "isolate", "gpu-b")
    assert found.check == "identity/absent"
    assert found.gates["bringup", "identity"] is Verdict.FAIL
    clear = ["fleet", "clear", str(tmp_path), "--node", "n1", "--reason", "RMA 7"]
    assert main([*clear, "--device", "GPU-x", "--replaced"]) == 2
    assert "names the device 'GPU-x': did you mean 'gpu-" in capfd.readouterr().err
    assert main([*clear[:4], "n2", *clear[5:], "--replaced"]) == 2
    assert "has no result of the node 'n2'" in capfd.readouterr().err
    assert main(clear) == 2
    assert main([*clear, "--device", "GPU-b", "--replaced"]) == 0
    assert capfd.readouterr().out.startswith("wrote ")
    (found,) = report([tmp_path]).nodes
    assert found.verdict is Verdict.PASS


def test_a_wrong_value_is_cleared_by_a_person_and_then_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = gate("sustained", "values", Verdict.FAIL, reason="a bit flipped", device="cuda:0")
    right = replace(wrong, verdict=Verdict.PASS, reason="")
    run(1, [wrong], host="n1").write_json(tmp_path / "1.json")
    run(2, [right], host="n1").write_json(tmp_path / "2.json")
    (found,) = report([tmp_path]).nodes
    assert (found.verdict, found.action) == (Verdict.FAIL, "isolate")
    words = ["--node", "n1", "--cleared", "--reason", "a driver's fault"]
    (tmp_path / "2.json").unlink()
    assert main(["fleet", "clear", str(tmp_path), *words]) == 0
    (found,) = report([tmp_path]).nodes
    assert found.verdict is Verdict.INCONCLUSIVE
    assert re.fullmatch(r"cleared on .* \(a driver's fault\), and not judged since", found.reason)
    run(2, [right], host="n1").write_json(tmp_path / "2.json")
    (found,) = report([tmp_path]).nodes
    assert found.verdict is Verdict.PASS
    # matrix show and the page know it too
    cleared = next(tmp_path.glob("clearance-*.json"))
    cleared.write_text(cleared.read_text().replace('"cleared"', '"forgiven"'))
    assert report([tmp_path]).unread[0].path == cleared


def test_a_pair_that_failed_is_not_hidden_by_the_nodes_own_results(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "a+b")):
        (tmp_path / name).mkdir()
        made = run(number, [gate("links", "x")], host=name)
        if name == "a+b":
            bad = gate("collectives", "all_reduce", Verdict.FAIL, reason="rank 1 has 3")
            made = run(number, [bad], host="a")
        made.write_json(tmp_path / name / "result.json")
    done = StepState.DONE
    steps = [
        Step(
            id=name, nodes=tuple(name.split("+")), state=done, result=f"{name}/result.json",
            verdict="FAIL" if "+" in name else "PASS",
        )
        for name in ("a", "b", "a+b")
    ]  # fmt: skip
    record(tmp_path, *steps, nodes=("a", "b"))
    found = report([tmp_path])
    assert found.verdict is Verdict.FAIL
    assert [(each.name, each.verdict, each.reason) for each in found.nodes] == [
        ("a", Verdict.FAIL, "with b: rank 1 has 3"),
        ("b", Verdict.FAIL, "with a: rank 1 has 3"),
    ]
    # the same pair passes the same check later
    again = run(5, [gate("collectives", "all_reduce")], host="a")
    later = tmp_path.parent / f"{tmp_path.name}-later"
    (later / "p").mkdir(parents=True)
    again.write_json(later / "p" / "result.json")
    record(
        later,
        Step(id="p", nodes=("a", "b"), state=done, result="p/result.json", verdict="PASS"),
        nodes=("a", "b"),
    )
    assert report([tmp_path, later]).verdict is Verdict.PASS


def test_a_result_in_the_folder_of_another_node_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    run(1, [SPOILED], host="a").write_json(tmp_path / "a" / "result.json")
    run(2, [WELL], host="b").write_json(tmp_path / "a" / "stray.json")
    step = Step(id="a", nodes=("a",), state=StepState.DONE, result="a/result.json", verdict="FAIL")
    record(tmp_path, step, nodes=("a",))
    found = {each.name: each.verdict for each in report([tmp_path]).nodes}
    assert found == {"a": Verdict.FAIL, "b": Verdict.PASS}


def test_a_fleet_json_of_something_else_hides_no_result(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    run(1, [SPOILED], host="a").write_json(tmp_path / "x" / "old.json")
    (tmp_path / "x" / "fleet.json").write_text('{"schema": "portagpu.fleet-report/1"}')
    assert report([tmp_path]).verdict is Verdict.FAIL


def test_a_command_that_was_refused_is_not_a_run(tmp_path: Path) -> None:
    run(1, [WELL], host="a").write_json(tmp_path / "1.json")
    refused = run(2, [], host="a", error={"exit_code": 2, "message": "no such option"})
    refused.write_json(tmp_path / "2.json")
    found = report([tmp_path])
    assert found.verdict is Verdict.PASS
    assert [each.reason for each in found.aside] == [
        "is of a command that was refused: no such option"
    ]


def test_a_clearance_of_nobody_is_named(tmp_path: Path) -> None:
    run(1, [SPOILED], host="a").write_json(tmp_path / "1.json")
    write_clearance(tmp_path, node="z", device="", what=Relief.REPLACED, reason="so", now=FIRST_DAY)
    (aside,) = report([tmp_path]).aside
    assert aside.reason == "no result is of what it clears: z"


def test_two_machines_under_one_name_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, uuid in enumerate(("GPU-a", "GPU-b")):
        here = [{"name": "GPU", "uuid": uuid, "vendor": "nvidia"}]
        made = run(number, [gate("links", "count")], host="n1", devices=here)
        made.write_json(tmp_path / f"{number}.json")
    assert main(["fleet", "report", str(tmp_path)]) == 1
    assert "n1: two machines may have this name: the runs " in capfd.readouterr().out


def test_what_cannot_be_read_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    paths = [node(tmp_path, f"node-{number}", 100.0) for number in range(40)]
    whole = json.loads(paths[1].read_text())
    bad = {
        "cut.json": paths[1].read_text()[:200],
        "empty.json": "",
        "newer.json": json.dumps({**whole, "schema": "portagpu.result/2"}),
        "again.json": paths[1].read_text(),
        "nan.json": paths[2].read_text().replace("100.0", "NaN"),
        "huge.json": paths[2].read_text().replace("100.0", "1e999"),
        "claims.json": json.dumps({**whole, "verdict": "FAIL"}),
    }
    for name, text in bad.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "other.json").write_text('{"schema": "of something else"}')
    (tmp_path / "folder.json").mkdir()
    for processes in (1, 2):
        found = gather([tmp_path], processes)
        assert len(found.nodes) == 40
        assert {each.path.name for each in found.unread} == set(bad)
        assert all(each.reason and "\n" not in each.reason for each in found.unread)
    reported = report([tmp_path])
    assert reported.verdict is Verdict.INCONCLUSIVE
    assert "cut.json" in section(render(reported), "Files not read")


def test_nothing_to_read_is_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("{}")
    for place in (tmp_path, tmp_path / "missing", tmp_path / "other.json"):
        assert main(["fleet", "report", str(place)]) == 2
        said = capfd.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert str(place) in said.err


def test_a_page_of_nodes_that_were_not_judged_or_compared_shows_neither_as_good(
    tmp_path: Path,
) -> None:
    left_out = gate("links", "width", Verdict.INCONCLUSIVE, reason="left out")
    run(1, [left_out], host="n1").write_json(tmp_path / "n1.json")
    text = render(report([tmp_path]))
    assert "0 failed, 1 not judged, none compared with peers, 0 without a result" in text
    assert ">like its peers<" not in text


def test_each_version_that_differs_is_stated_with_its_nodes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, version in enumerate(("0.1.0", "0.1.0", "0.0.9", "0.0.8")):
        made = run(number, [WELL], host=f"n{number}", versions={"portagpu": version})
        made.write_json(tmp_path / f"n{number}.json")
    assert main(["fleet", "report", str(tmp_path)]) == 0
    (line,) = (each for each in capfd.readouterr().out.splitlines() if "portagpu of" in each)
    assert line.endswith("0.1.0 on 2 nodes, no majority; 0.0.9 on 1 node: n2; 0.0.8 on 1 node: n3")


def test_names_of_any_form_are_shown_and_escaped(tmp_path: Path) -> None:
    names = ["n" * 300, "<b>bold</b> & 'quoted'", "名前", "a  b", HOSTILE]
    for name in names:
        node(tmp_path, name, 100.0, failed(HOSTILE))
    found = report([tmp_path])
    text = render(found)
    tags = [name for name, _ in Page(text).tags]
    assert "img" not in tags
    assert tags.count("script") == 2, "the nodes and the page's own script"
    assert {each["name"] for each in found.to_json()["nodes"]} == set(names)
    assert "&lt;b&gt;bold&lt;/b&gt;" in text


def record(folder: Path, *steps: Step, nodes: tuple[str, ...]) -> None:
    write_record(
        folder,
        FleetRecord(
            id="r", what="bringup", started="2026-01-01T00:00:00Z", nodes=nodes, steps=steps
        ),
    )


def test_a_record_says_why_a_node_has_no_result(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "pair"):
        (tmp_path / name).mkdir()
    node(tmp_path / "a", "a.cluster.local").rename(tmp_path / "a" / "result.json")
    node(tmp_path / "pair", "p", number=5).rename(tmp_path / "pair" / "result.json")
    (tmp_path / "b" / "result.json").write_text("{")
    done = StepState.DONE
    record(
        tmp_path,
        Step(id="a", nodes=("a",), state=done, verdict="PASS", result="a/result.json"),
        Step(
            id="b", nodes=("b",), state=done, verdict="FAIL", result="b/result.json",
            action="isolate",
        ),
        Step(id="c", nodes=("c",), state=StepState.LOST, reason="the node died"),
        Step(
            id="out", nodes=("d",), state=done, verdict="PASS", result="../elsewhere/result.json"
        ),
        Step(id="pair", nodes=("a", "e"), state=done, verdict="PASS", result="pair/result.json"),
        Step(id="pair-2", nodes=("a", "c"), state=StepState.LOST, reason="nobody answered"),
        nodes=("a", "b", "c", "d", "e", "f"),
    )  # fmt: skip
    found = report([tmp_path])
    states = {each.name: (each.state, each.verdict) for each in found.nodes}
    assert states["a"] == ("done", Verdict.PASS), "a host may have a longer name than its node"
    assert states["b"] == (DAMAGED, None)
    assert states["c"] == (StepState.LOST, None)
    assert states["d"] == (DAMAGED, None)
    assert states["e"] == ("done", Verdict.PASS), "it has a result with another"
    assert states["f"] == (StepState.WAITING, None)
    assert {each.nodes: each.reason for each in found.reasons}["a + c",] == "nobody answered"
    assert next(each.reason for each in found.nodes if each.name == "c") == "the node died"
    assert {each.path.parent.name for each in found.unread} == {"b", "elsewhere"}


def test_a_node_that_was_lost_after_its_results_is_not_a_pass(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("before", "results/lost", "results/loose")]
    for place in places:
        place.mkdir(parents=True)
    before, lost, loose = places
    for name in ("well", "dead"):
        node(before, name, started="2025-12-31T00:00:00Z", id=name)
    node(before, "ill", 100.0, failed("down"), started="2025-12-31T00:00:00Z", id="ill")
    node(before, "healed", started="2026-01-02T00:00:00Z", id="healed")
    node(loose, "other", 100.0, failed("down"), id="other")
    steps = [
        Step(id=name, nodes=(name,), state=StepState.LOST, reason="the node died")
        for name in ("dead", "ill", "healed")
    ]
    record(lost, *steps, nodes=("dead", "ill", "healed"))
    # the record is not in the folder that is named, but below one in it
    found = report([before, tmp_path / "results"])
    assert {each.name: (each.state, each.verdict) for each in found.nodes} == {
        "well": ("done", Verdict.PASS),
        "dead": ("lost", None),
        "ill": ("done", Verdict.FAIL),
        "healed": ("done", Verdict.PASS),
        "other": ("done", Verdict.FAIL),
    }
    assert next(each.reason for each in found.nodes if each.name == "dead") == "the node died"
    (lost / "fleet.json").write_text("{")
    found = report([before, tmp_path / "results"])
    assert [each.path for each in found.unread] == [lost / "fleet.json"]
    assert found.unread[0].reason.startswith("is not JSON")
    assert {each.name for each in found.nodes} == {"well", "dead", "ill", "healed", "other"}


def test_a_damaged_record_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.json").write_text("{")
    with pytest.raises(FleetRecordError, match="is not JSON"):
        gather([tmp_path])
    assert main(["fleet", "report", str(tmp_path)]) == 2
    assert "fleet.json" in capfd.readouterr().err
    (tmp_path / "fleet.json").unlink()
    os.mkfifo(tmp_path / "fleet.json")
    with pytest.raises(FleetRecordError, match="not a regular file"):
        gather([tmp_path])


def test_a_path_that_is_too_long_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "report", "x" * 300]) == 2
    assert "cannot be read: File name too long" in capfd.readouterr().err


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of 60 nodes with faults, as a fleet run leaves them."""
    folder = tmp_path_factory.mktemp("fleet")
    write_files(simulate(60, 4), folder)
    return folder


def test_the_page_keeps_what_it_reads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    result = run(1, [WELL], host="a").write_json(tmp_path / "a" / "result.json")
    done = Step(id="a", nodes=("a",), state=StepState.DONE, result="a/result.json", verdict="PASS")
    record(tmp_path, done, nodes=("a",))
    for place in (result, tmp_path / "fleet.json"):
        before = place.read_bytes()
        for words in (("report", "--out"), ("report", "--json"), ("status", "--json")):
            if words[0] == "report" or place.name == "fleet.json":
                assert main(["fleet", words[0], str(tmp_path), words[1], str(place)]) == 2
                assert place.read_bytes() == before
                assert "is also an input" in capfd.readouterr().err


@pytest.fixture(scope="module")
def judged(fleet: Path) -> FleetReport:
    """What is found in those files."""
    return report([fleet])


def test_a_page_has_no_more_gates_than_can_be_seen(tmp_path: Path) -> None:
    more = [gate(f"area-{number}", "a") for number in range(70)]
    for number in range(3):
        node(tmp_path, f"node-{number}", 100.0, *more)
    found = report([tmp_path])
    text = render(found)
    assert len(found.to_json()["gates"]) == 72
    assert len(re.findall("<svg [^>]*data-columns", text)) == 62
    assert "12 more gates are in the JSON" in text


# how files are read


@pytest.mark.parametrize("text", ["plain", "µs × 2", "\\ud800 alone", "\x1b[31m red", " "])
def test_a_file_read_once_is_as_one_that_is_checked_and_copied(tmp_path: Path, text: str) -> None:
    made = node(tmp_path, "n", 100.0, gate("links", "b", reason="@"))
    data = made.read_text("utf-8").replace('"@"', json.dumps(text)).encode()
    document, _ = parse_json(data)
    assert Run.from_json(document, fresh=parse_json(data).fresh) == Run.from_json(document)


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_a_number_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, number: str) -> None:
    made = node(tmp_path, "n", 100.0, gate("links", "b", extra={"deep": [{"x": 123456.5}]}))
    made.write_text(made.read_text().replace("123456.5", number))
    with pytest.raises(ResultError, match=r"results\[2\]\.extra\.deep\[0\]\.x: must be finite"):
        Run.from_json(*parse_json(made.read_bytes())[:1], fresh=parse_json(made.read_bytes()).fresh)


# in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, judged: FleetReport) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip(WHY_NOT)
    place = tmp_path_factory.mktemp("page") / "fleet.html"
    place.write_text(render(judged), "utf-8")
    with Browser(tmp_path_factory.mktemp("profile")) as page:
        page.open(place)
        yield page
        assert page.said == [], "the console has errors"
        assert len(page.requests) == 1, "something in addition to the page was asked for"


def rows(page: Browser) -> list[str]:
    names = "[...document.querySelectorAll('#nodes tbody tr')].map(row => row.cells[0].textContent)"
    return page.run(names)  # type: ignore[no-any-return]


def test_the_map_names_the_node_under_the_pointer_and_leads_to_it(browser: Browser) -> None:
    event = (
        "(() => {{ const map = document.querySelector('#map svg');"
        " const box = map.getBoundingClientRect(), step = box.width / map.dataset.columns;"
        " map.dispatchEvent(new MouseEvent('{0}',"
        " {{clientX: box.left + 2.5 * step, clientY: box.top + 0.5 * step}})); }})()"
    )
    browser.run(event.format("pointermove"))
    said = browser.run("document.querySelector('#map [role=status]').textContent")
    assert said.startswith("node-00002: ")
    browser.run(event.format("click"))
    browser.settle()
    assert rows(browser) == ["node-00002"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_colours(browser: Browser, scheme: str) -> None:
    browser.prefer(scheme)
    browser.resize(360, 800)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    browser.resize(1200, 900)


def test_two_runs_under_one_id_both_count(tmp_path: Path) -> None:
    run(1, [WELL], host="n1").write_json(tmp_path / "a.json")
    run(1, [SPOILED], host="n1").write_json(tmp_path / "b.json")
    found = report([tmp_path])
    assert found.verdict is Verdict.FAIL
    assert [each.path.name for each in found.unread] == ["b.json"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["fleet", "report", *words])
    return code, capsys.readouterr().out


def test_what_a_store_has_is_not_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sqlalchemy")
    folder, store = tmp_path / "fleet", str(tmp_path / "runs.db")
    write_files(simulate(8, 3, others=False, gpus=1), folder)
    main(["matrix", "history", "import", str(folder), "--store", store])
    capsys.readouterr()
    without = printed(capsys, str(folder), "--json", "-")
    assert printed(capsys, str(folder), "--json", "-", "--history", store) == without
    # values that were altered in their places: the size and the beginning stay
    path = next(iter(sorted(folder.glob("node-*/result.json"))))
    path.write_bytes(path.read_bytes()[:-2] + b" }")
    assert printed(capsys, str(folder), "--json", "-", "--history", store) == without
    # another size is another file
    path.write_bytes(path.read_bytes() + b"x")
    assert "not JSON" in printed(capsys, str(folder), "--history", store)[1]


def test_a_store_alone_has_its_runs_by_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sqlalchemy")
    for number in range(4):
        verdict = failed("a link is down") if number == 3 else gate("links", "width")
        node(tmp_path, f"n{number}", 100.0, verdict, number=number)
    store = str(tmp_path / "runs.db")
    main(["matrix", "history", "import", str(tmp_path), "--store", store])
    capsys.readouterr()
    from_files = json.loads(printed(capsys, str(tmp_path), "--json", "-")[1])
    from_store = json.loads(printed(capsys, "--history", store, "--json", "-")[1])
    for document in (from_files, from_store):
        del document["aside"]
        for each in document["nodes"]:
            del each["file"]
    assert from_store == from_files
    chosen = printed(capsys, "--history", store, "--of", "host=n0")
    assert chosen[0] == 0
    assert "1 node: 1 PASS" in chosen[1]


@pytest.mark.parametrize("words", [[], ["--of", "host=a"], ["x", "--history", "y", "--of", "z"]])
def test_a_report_names_where_its_results_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "report", *words]) == 2
    assert "--history" in capsys.readouterr().err


@pytest.mark.processes(2, "the workers that read")
def test_several_processes_read_what_one_does(tmp_path: Path) -> None:
    for number in range(34):
        more = (failed(f"{number} links are down"),) if number % 5 == 0 else ()
        node(tmp_path, f"n{number}", 100.0 + number, *more, number=number)
    (tmp_path / "cut.json").write_text("{")
    (tmp_path / "other.json").write_text("[]")
    paths = sorted(tmp_path.glob("*.json"))
    alone, together = list(read_nodes(paths, 1)), list(read_nodes(paths, 2))
    assert len(alone) == 36
    for one, other in zip(alone, together, strict=True):
        if isinstance(one, NodeRun) and isinstance(other, NodeRun):
            assert list(one.measures) == list(other.measures)
            other = replace(other, measures=one.measures)
        assert one == other
