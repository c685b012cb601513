"""The page of several runs: what it says without scripts, and the data that its script reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.reports.bundles.check import stated_names
from portagpu.reports.html import render, render_runs, write_report
from portagpu.reports.html.matrix_page import data_of
from portagpu.reports.html.sections import named
from portagpu.runs.results.run import Result, Run
from portagpu.runs.results.verdicts import Evidence, Verdict
from tests.support.html_page import Page, matrix_cells, section
from tests.support.result_samples import curve, failing, gate, info, passing, stopped

if TYPE_CHECKING:
    from pathlib import Path


def run_of(target: str | None, *results: Result, **changes: object) -> Run:
    return Run(info(target=target, **changes), list(results))


def measured(value: float, spread: float = 0.5, **changes: Any) -> Result:
    fields = {"verdict": Verdict.UNVERIFIED, "statistic": "median", "n": 9, **changes}
    return gate("memory", "copy", value=value, unit="GB/s", spread=spread, **fields)


def data(text: str) -> dict[str, Any]:
    block = re.search('<script type="application/json" id="DATA">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    return json.loads(block[1])  # type: ignore[no-any-return]


def test_the_verdict_of_all_runs_comes_first_with_the_gravest_failure() -> None:
    late = stopped()
    late.info = replace(late.info, started="2025-03-02T00:00:00Z", host="host-2")
    words = Page(render_runs([passing(), failing(), late])).words
    start = next(i for i, (tag, _) in enumerate(words) if tag == "h1")
    before = [tag for tag, _ in words[:start]]
    assert before == ["title", "p"], "only the page's title and what it is of come before"
    assert [word for _, word in words[start : start + 10]] == [
        "FAIL",
        "1 of 3 runs failed: example-ex900; 1 of 3 runs not judged: cpu-x86-64, host-2",
        "Gravest failure",
        "a device reports a fault",
        "Check",
        "transfers/host-to-device",
        "Run",
        "example-ex900",
        "Device",
        "ex:5",
    ]


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ("PASS PASS", "PASS"),
        ("PASS INCONCLUSIVE", "INCONCLUSIVE"),
        ("INCONCLUSIVE FAIL", "FAIL"),
        ("FAIL ERROR", "ERROR"),
    ],
)
def test_the_worst_run_decides(verdicts: str, whole: str) -> None:
    runs = [
        run_of(f"t{n}", gate("a", "b", Verdict(word), reason="so"))
        for n, word in enumerate(verdicts.split())
    ]
    assert f"<title>{whole}: portagpu: 2 runs of 2 targets</title>" in render_runs(runs)


def test_runs_are_named_by_as_little_as_distinguishes_them() -> None:
    runs = [
        run_of("a", host="one"),
        run_of("b", host="one"),
        run_of("b", host="two", id="x"),
        run_of("b", host="two", id="y"),
        run_of("c", host="one", started="2025-01-01T00:00:00Z"),
        run_of("c", host="one", started="2025-01-02T00:00:00Z"),
        run_of(None, devices=({"name": "Some Device"},)),
        run_of(None, devices=(), backend="cpu"),
    ]
    started = info().started
    assert [each.name for each in named(runs)] == [
        "a",
        "b, one",
        f"b, two, {started}, x",
        f"b, two, {started}, y",
        "c, one, 2025-01-01T00:00:00Z",
        "c, one, 2025-01-02T00:00:00Z",
        "Some Device",
        "cpu",
    ]


def test_even_the_same_run_twice_has_two_names() -> None:
    first, second = named([passing(), passing()])
    assert second.name == f"{first.name} (2)"


def test_the_matrix_has_the_verdict_and_the_strongest_badge_of_each_area() -> None:
    both = (Evidence.LOADED, Evidence.EXECUTED)
    first = run_of(
        "one",
        gate("transfers", "a", evidence=both),
        gate("transfers", "b", Verdict.FAIL, reason="down", evidence=()),
        gate("memory", "c", Verdict.SKIP, reason="none", evidence=()),
        # a gate that reads what the machine says earns nothing
        gate("links", "d"),
    )
    second = run_of("two", gate("transfers", "a", evidence=(Evidence.RECORDED,)))
    assert matrix_cells(render_runs([first, second])) == {
        ("transfers bringup", "one"): "FAIL executed, 2",
        ("transfers bringup", "two"): "PASS recorded, 1",
        ("memory bringup", "one"): "SKIP no evidence, 1",
        ("memory bringup", "two"): "",
        ("links bringup", "one"): "PASS no evidence, 1",
        ("links bringup", "two"): "",
    }


def test_more_targets_than_areas_stand_below_each_other() -> None:
    runs = [run_of(f"t{n}", gate("transfers", "a")) for n in range(3)]
    assert matrix_cells(render_runs(runs)) == {
        (f"t{n}", "transfers bringup"): "PASS executed, 1" for n in range(3)
    }


def test_the_newest_run_of_a_target_decides_a_cell() -> None:
    old = run_of(
        "one", gate("transfers", "a", Verdict.FAIL, reason="down"), started="2025-01-01T00:00:00Z"
    )
    # later, although its local time is earlier in the day
    new = run_of("one", gate("transfers", "a"), started="2025-01-01T00:30:00-01:00")
    assert matrix_cells(render_runs([new, old])) == {
        ("transfers bringup", "one"): "PASS executed, 1"
    }


def test_a_run_on_other_hardware_earns_its_target_nothing() -> None:
    devices = ({"name": "a CPU", "target": "cpu-x86-64"},)
    run = run_of("nvidia-h200-sxm", gate("transfers", "a"), devices=devices)
    name = "nvidia-h200-sxm, on other hardware"
    assert matrix_cells(render_runs([run])) == {("transfers bringup", name): "PASS executed, 1"}
    product = gate("a", "b", value=1.0, unit="TFLOPS", extra={"flops": 10, "bytes": 1})
    text = render_runs([run_of("nvidia-h200-sxm", product, devices=devices)])
    assert "1 TFLOPS measured" in section(text, "Roofline"), "not below the facts of the target"


def test_results_that_a_bringup_took_over_stand_in_their_own_area() -> None:
    name = "rng/random-programs"
    taken = replace(gate("numerics", "x", extra={"suite": "conformance", "area": "rng"}), id=name)
    older = replace(taken, extra={"suite": "conformance"})
    cases = len(stated_names("conformance", "rng"))
    for each in (taken, older):
        assert each.origin == ("conformance", "rng")
        assert matrix_cells(render_runs([run_of("one", each)])) == {
            ("rng conformance", "one"): f"INCONCLUSIVE executed, 1 of {cases}"
        }


def test_failures_are_listed_by_run_and_lead_to_their_checks() -> None:
    text = render_runs([passing(), failing()])
    failures = section(text, "Failures")
    assert "<h3>example-ex900</h3>" in failures
    assert "<h3>cpu-x86-64</h3>" not in failures
    (address,) = set(re.findall('<a class="id" href="(.*?)"', failures))
    assert address == (
        "#?verdict=FAIL&amp;suite=bringup&amp;area=transfers&amp;run=example-ex900"
        "&amp;q=transfers%2Fhost-to-device"
    )
    assert "<h2>Failures</h2>" not in render_runs([passing(), passing()])


def test_of_many_failures_the_gravest_are_written_out_and_the_rest_counted() -> None:
    results = [gate("links", f"n{n}", Verdict.FAIL, reason=f"lane {n}") for n in range(100)]
    failures = section(render_runs([run_of("one", *results)]), "Failures")
    assert failures.count('class="bad"') == 40
    assert "and 60 more, among the checks" in failures


def test_each_measure_is_compared_with_the_first_run() -> None:
    runs = [
        run_of("one", measured(200.0, 4.0)),
        run_of("two", measured(300.0)),
        run_of("three", gate("links", "a")),
    ]
    measures = section(render_runs(runs), "Measures")
    rows = [Page(row).text for row in re.findall(r'<tr><th scope="row">.*?</tr>', measures)]
    assert rows == ["one 200 GB/s ± 4 GB/s 1 ×", "two 300 GB/s ± 0.5 GB/s 1.5 ×"]
    widths = [float(width) for width in re.findall('<rect .*?width="([0-9.]+)"', measures)]
    assert widths[0] / widths[1] == pytest.approx(200 / 300, abs=0.001)
    assert "three" not in measures


def test_prefixes_of_units_are_taken_into_account() -> None:
    other = gate("memory", "copy", value=500.0, unit="MB/s", statistic="median", spread=100.0)
    measures = section(
        render_runs([run_of("one", measured(2.0)), run_of("two", other)]), "Measures"
    )
    rows = [Page(row).text for row in re.findall(r'<tr><th scope="row">.*?</tr>', measures)]
    assert rows == ["one 2 GB/s ± 0.5 GB/s 1 ×", "two 0.5 GB/s ± 0.1 GB/s 0.25 ×"]


def test_other_units_and_single_values_are_not_compared() -> None:
    other = gate("memory", "copy", value=1.0, unit="s", statistic="median")
    assert "<h2>Measures</h2>" not in render_runs(
        [run_of("one", measured(2.0)), run_of("two", other)]
    )
    zero = render_runs([run_of("one", measured(0.0, 0.0)), run_of("two", measured(2.0))])
    assert "–" in section(zero, "Measures"), "nothing is divided by 0"


def test_curves_of_several_runs_share_a_chart() -> None:
    runs = [
        run_of(name, measured(2.0, extra={"curves": [curve("bandwidth", "copy", peak, 1e5)]}))
        for name, peak in (("one", 10.0), ("two", 20.0))
    ]
    curves = section(render_runs(runs), "Curves")
    assert curves.count("<figure") == 1
    assert re.findall("</svg>(one|two)</li>", curves) == ["one", "two"]
    assert "memory: bandwidth: copy" in curves


def test_history_has_a_line_for_each_machine_of_a_target() -> None:
    def at(day: int, host: str, value: float) -> Run:
        return run_of("one", measured(value), started=f"2025-01-{day:02d}T00:00:00Z", host=host)

    runs = [at(9, "a", 30.0), at(1, "a", 10.0), at(5, "b", 20.0), run_of("two", measured(5.0))]
    history = section(render_runs(runs), "History")
    assert history.count("<figure") == 1
    assert "one: memory/copy" in history
    assert "time since 2025-01-01T00:00:00Z (d)" in history
    assert re.findall("</svg>(a|b)</li>", history) == ["a", "b"]
    for words in ("a, 0 d: 10 GB/s", "a, 8 d: 30 GB/s", "b, 4 d: 20 GB/s"):
        assert f"<title>{words}</title>" in history
    assert "<h2>History</h2>" not in render_runs([runs[0], runs[3]])


def test_of_a_long_history_the_largest_changes_are_drawn() -> None:
    def at(day: int) -> Run:
        results = [
            gate("memory", f"m{n}", value=100.0 + n * day, unit="GB/s", statistic="median")
            for n in range(30)
        ]
        return run_of("one", *results, started=f"2025-01-{day:02d}T00:00:00Z")

    history = section(render_runs([at(1), at(2)]), "History")
    assert history.count("<figure") == 24
    assert "The 24 measures of 30 that changed most." in history
    assert history.index("one: memory/m29<") < history.index("one: memory/m10<")
    assert "one: memory/m5<" not in history


def test_the_data_has_every_result() -> None:
    runs = [passing(), failing(), stopped()]
    found = data(render_runs(runs))
    assert found == json.loads(json.dumps(data_of(named(runs))))
    results = [(n, result) for n, run in enumerate(runs) for result in run.results]
    assert len(found["rows"]) == len(results)
    for (place, result), row in zip(results, found["rows"], strict=True):
        run, check, verdict, device, reason, _, evidence = row
        assert run == place
        assert found["checks"][check] == [*result.origin, result.id]
        assert found["verdicts"][verdict] == result.verdict
        assert found["texts"][device] == (result.device or "")
        assert found["texts"][reason] == result.reason
        assert found["texts"][evidence] == ", ".join(result.evidence)


def test_without_scripts_the_page_says_what_is_missing() -> None:
    page = Page(render_runs([passing(), failing()]))
    note = next(words for tag, words in page.words if "need scripts" in words)
    assert note == ("The checks of several runs need scripts. The result files have all of them.")
    assert [tag for tag, _ in page.tags].count("noscript") == 1


@pytest.mark.parametrize(
    "bad",
    [
        "<script>alert(1)</script>",
        "</script><script>alert(1)</script>",
        "<!--<script>",
        '"><img src=x onerror=alert(1)>',
        "a&b</style>\x00\u202e\ud800",
    ],
)
def test_whatever_comes_from_runs_is_text(bad: str) -> None:
    name = "x" + "".join(each for each in bad if each.isprintable())
    labels = ("x_label", "y_label", "x_unit", "y_unit", "series", "title")
    line = {"x": [1, 2], "y": [3, 4], "x_log": False, **dict.fromkeys(labels, name)}
    result = Result(
        id=name,
        suite=name,
        area=name,
        verdict=Verdict.FAIL,
        evidence=[Evidence.EXECUTED],
        device=bad,
        value=1.5,
        unit=name,
        statistic=name,
        shape={"dtype": name},
        reason=bad,
        expected={"reference": 1, "lower": None, "upper": 0, "unit": name, "source": bad},
        extra={"curve": line, "suite": bad, "area": bad, "flops": 2, "bytes": 1, "seconds": 1},
    )
    machine = {
        "host": bad,
        "backend": name,
        "command": (bad,),
        "versions": {bad: bad},
        "devices": ({"name": bad},),
    }
    runs = [run_of(name, result, started=f"2025-01-0{n}T00:00:00Z", **machine) for n in (1, 2)]
    text = render_runs(runs, title=bad)
    page = Page(text)
    known = {tag for tag, _ in Page(render_runs([passing(), failing()])).tags}
    assert {tag for tag, _ in page.tags} <= known, "markup from the data became elements"
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert text.count("<script") == text.count("</script>") == 2
    found = data(text)
    assert found["checks"][0][2] == name
    assert not {"\x00", "\u202e"} & set("".join(found["texts"]))


def test_one_run_and_several_are_written_and_none_is_refused(tmp_path: Path) -> None:
    one = write_report(failing(), tmp_path / "one.html").read_text("utf-8")
    both = write_report([failing(), passing()], tmp_path / "both.html").read_text("utf-8")
    assert "<h2>Gates</h2>" in one
    assert "<h2>Matrix</h2>" in both
    assert both == render_runs([failing(), passing()])
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_the_page_is_made_for_screen_readers() -> None:
    text = render_runs([passing(), failing(), stopped()])
    tags = Page(text).tags
    assert [tag for tag, _ in tags].count("h1") == 1
    identifiers = [a["id"] for _, a in tags if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    tables = [tag for tag, _ in tags].count("table")
    assert tables == [tag for tag, _ in tags].count("caption"), "each table has a caption"
    hidden = [a.get("aria-hidden") or a.get("role") for tag, a in tags if tag == "svg"]
    assert None not in hidden, "each drawing is either named or hidden from screen readers"
    inside = {a["href"] or "" for tag, a in tags if tag == "a" and "href" in a}
    anchors = {each[1:] for each in inside if each.startswith("#") and not each.startswith("#?")}
    assert anchors <= set(identifiers)
    (status,) = (a for _, a in tags if a.get("role") == "status")
    assert status["aria-live"] == "polite"
    assert {a.get("name") for tag, a in tags if tag in ("input", "select")} == {
        "q",
        "verdict",
        "suite",
        "area",
        "target",
        "run",
        "device",
    }


def test_very_long_names_leave_the_verdict_on_the_first_screen() -> None:
    long = "w" * 10_000
    one = Run(info(host=long, target=None, devices=({"name": long},)), [measured(1.0)])
    other = Run(info(id=long, host=f"{long}2", target=None, devices=({"name": long},)))
    for text in (render(one), render_runs([one, other])):
        head = text.partition("<h2>")[0].partition("<header")[2]
        assert len(head) < 5_000
    assert len({each.name for each in named([one, other])}) == 2


def test_a_measure_of_many_runs_shows_those_that_differ_most() -> None:
    def run_at(number: int) -> Run:
        line = {"curve": curve("rate", "copy", 9.0, 100.0), "flops": 1e9, "bytes": 1e9}
        slow = number in (7, 500)
        return Run(
            info(id=f"run-{number}", target=f"target-{number}"),
            [measured(3.0 if slow else 9.0, extra=line)],
        )

    text = render_runs([run_at(number) for number in range(1000)])
    measures = section(text, "Measures")
    rows = re.findall(r"<th scope=\"row\">(target-\d+)", measures)
    assert len(rows) == 50
    assert {"target-0", "target-7", "target-500"} <= set(rows)
    assert rows == sorted(rows, key=lambda name: int(name[7:]))
    assert "and 950 more, closer to the first: the checks have them" in measures
    curves = section(text, "Curves")
    assert "(24 of 1000 lines)" in curves
    assert len(re.findall('class="line"', curves)) == 2 * 24, "in the chart and its legend"
    assert "Roofline, any dtype (24 of 1000 lines)" in section(text, "Roofline")
    assert len(data(text)["rows"]) == 1000


def test_what_fails_in_the_runs_together_alone_is_the_verdict_of_the_page() -> None:
    here = [{"name": "GPU", "vendor": "nvidia", "uuid": f"GPU-{each}"} for each in "ab"]
    first = run_of("one", gate("identity", "count"), devices=here)
    later = run_of(
        "one",
        gate("identity", "count"),
        devices=here[:1],
        id="later",
        started="2025-03-02T00:00:00Z",
    )
    text = render_runs([first, later])
    assert "FAIL: portagpu: 2 runs of 1 target" in text
    assert "together they fail: identity of one" in text
