"""The report: verdict first, whole in one file, everything escaped, readable without colour."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from portagpu.base.units import quantity
from portagpu.reports.html import render, render_runs, write_report
from portagpu.runs.results.run import Result, Run
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import at_least, exactly, failures_text, headline
from tests.support.html_page import Page, section
from tests.support.result_samples import eight_devices, failing, gate, info, passing, stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES = [passing, failing, stopped]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_page_needs_nothing_from_outside(sample: Callable[[], Run]) -> None:
    text = render(sample())
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        loads = {"src", "srcset", "xlink:href", "style", "background"} & set(attributes)
        assert not loads, f"<{tag}> loads {loads}"
        assert not any(name.startswith("on") for name in attributes), f"<{tag}> runs a script"
    assert "url(" not in text
    assert "@import" not in text
    outside = {value for _, attributes in page.tags for value in attributes.values() if value}
    links = {attributes.get("href") for tag, attributes in page.tags if tag == "a"}
    addresses = {value for value in outside if re.search("https?://", value)}
    assert addresses <= links, "an address is a link to a source, or text, and nothing else"


@pytest.mark.parametrize("text", [render(failing()), render_runs([passing(), failing()])])
def test_the_policy_names_the_one_script_by_its_hash_and_forbids_all_else(text: str) -> None:
    tags = Page(text).tags
    (policy,) = (a["content"] or "" for tag, a in tags if a.get("http-equiv"))
    (code,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]
    others = [a for tag, a in tags if tag == "script" and a]
    assert all(a == {"type": "application/json", "id": "DATA"} for a in others)


def test_the_verdict_comes_before_everything_else() -> None:
    words = Page(render(failing())).words
    body = next(i for i, (tag, _) in enumerate(words) if tag == "h1")
    assert words[body][1] == "FAIL"
    before = [tag for tag, _ in words[:body]]
    assert before == ["title", "p"], "only the page's title and what the run was come before"
    assert words[body + 1][1] == (
        "transfers/host-to-device on ex:5: 13.2 GB/s is 24 % of the median of 8 devices"
    )


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("Check", "transfers/host-to-device"),
        ("Device", "ex:5"),
        ("Blocked by a failure", "2 of 14 checks"),
        ("Target", "example-ex900"),
        ("Devices", "8 × Example Accelerator 300, ex900, 192 GiB"),
        ("Versions", "portagpu 0.1.0, torch 2.13.0+cpu, driver none, comm Gloo"),
        ("Command", "portagpu bringup --quick --out 'bring up'"),
        ("Took", "1 min 14 s"),
    ],
)
def test_the_page_names_culprit_and_machine(label: str, value: str) -> None:
    words = Page(render(failing())).words
    assert words[words.index(("dt", label)) + 1][1] == value


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_is_reported_by_word_and_shape_and_not_only_by_colour(verdict: Verdict) -> None:
    text = render(Run(info(), [gate("a", "b", verdict, reason="so")]))
    badges = re.findall(
        r'<span class="badge (\w+)"><svg aria-hidden="true"><use href="#(.*?)"/></svg>(.*?)<', text
    )
    drawn = dict(re.findall('<symbol id="(.*?)".*?<path d="(.*?)"/>', text))
    assert len(set(drawn.values())) == len(Verdict), "no two verdicts have one shape"
    used = {(name, shape, word) for name, shape, word in badges if word == verdict}
    assert used == {(verdict.lower(), f"SHAPE-{verdict}", verdict)}
    assert f"SHAPE-{verdict}" in drawn


def test_gates_are_in_order_with_verdict_and_reason() -> None:
    text = render(failing())
    table = text[text.index("<h2>Gates</h2>") : text.index("<h2>Run</h2>")]
    rows = [Page(row).text for row in re.findall(r"<tr.*?</tr>", table)[1:]]
    assert [row.split()[:2] for row in rows] == [
        ["1.", "Environment"],
        ["2.", "Identity"],
        ["3.", "Versions"],
        ["4.", "Links"],
        ["5.", "Transfers"],
        ["6.", "Collectives"],
    ], "titles are those that the terminal shows"
    results = [each for each in failing().results if each.area == "transfers"]
    assert f"FAIL {headline(results)}" in rows[4], "as on the terminal"
    assert "blocked by  transfers/host-to-device" in Page(text).text


def test_a_gate_of_measures_without_expectation_is_not_called_a_pass() -> None:
    text = render(passing())
    table = text[text.index("<h2>Gates</h2>") : text.index("<h2>Run</h2>")]
    row = next(row for row in re.findall(r"<tr.*?</tr>", table) if "Collectives" in row)
    assert "UNVERIFIED" in row
    assert ">PASS" not in row


def test_numbers_show_unit_spread_expectation_and_limits() -> None:
    text = Page(render(passing())).text
    assert "18.42 GB/s ± 0.31 GB/s, median of 20" in text
    assert "16 to 23 GB/s reference 20 GB/s,  https://example.org/memory.html" in text
    assert "caches are larger than the smaller sizes" in text
    assert "4096 × 4096" in text


def test_devices_that_differ_in_their_values_alone_share_a_row() -> None:
    run = eight_devices()
    odd = run.results[-1]
    run.results[-1] = replace(odd, verdict=Verdict.FAIL, value=50.0, reason="slow")
    text = render(run)
    numbers = section(text, "Numbers")
    rows = [Page(row).text for row in re.findall("<tr.*?</tr>", numbers)[1:]]
    assert len(rows) == 29 + 1, "a row for each measure, and for the device that failed"
    for row in rows:
        assert row.count("https://example.org/blog/") == 1
    name = odd.id
    same = [each for each in run.results if each.id == name][:-1]
    (whole,) = (row for row in rows if row.count(name) == 1 and "ex:0" in row)
    values = {str(each.device): quantity(float(str(each.value)), "TFLOPS") for each in same}
    reported = [f"{device}  {value}" for device, value in values.items()]
    assert len(reported) == 7
    assert [whole.index(each) for each in reported] == sorted(
        whole.index(each) for each in reported
    )
    assert "4096 × 4096 × 4096" in whole
    links = [unquote(each) for each in re.findall('<a href="#([^"]*)">ex:', numbers)]
    assert len(links) == 29 * 8 - 1
    checks = text.partition("<h2>Checks</h2>")[2]
    assert set(links) < set(re.findall(' id="([^"]*)"', checks))
    (row,) = (row for row in re.findall("<tr.*?</tr>", checks) if f"{name}@ex:0" in row)
    shown = Page(row).text
    for each in reported:
        assert f"on {each}" in shown
    assert "expected at least 90 TFLOPS" in shown
    assert "found" not in shown, "each has its own"


def test_areas_that_failed_are_open_and_others_folded() -> None:
    opened = [
        "open" in attributes
        for tag, attributes in Page(render(failing())).tags
        if tag == "details" and "area" in str(attributes.get("class"))
    ]
    assert opened == [False, False, False, False, True, False]


def test_a_run_without_gates_curves_or_results_still_has_a_page() -> None:
    empty = Page(render(Run(info()))).text
    assert "INCONCLUSIVE" in empty
    assert "nothing was judged" in empty
    assert "Gates" not in empty
    one = Result(id="a/b", suite="conformance", area="a", verdict=Verdict.PASS)
    assert "1 passed" in Page(render(Run(info(), [one]))).text


def test_a_stopped_run_says_so() -> None:
    text = Page(render(stopped())).text
    assert "interrupted after 3 results, 4 not judged" in text


@pytest.mark.parametrize(
    "bad", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a&b</style>\x00\ud800"]
)
def test_whatever_comes_from_the_run_is_escaped(bad: str) -> None:
    curve = {"x": [1, 2], "y": [3, 4], "x_log": False}
    labels = ("x_label", "y_label", "x_unit", "y_unit", "series", "title")
    name = "x" + bad.replace("\x00", "").replace("\ud800", "")
    named = dict.fromkeys(labels, name)
    expected = {"reference": 1, "lower": None, "upper": 0, "unit": name, "source": name}
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
        expected=expected,
        shape={bad: bad},
        reason=bad,
        does_not_show=bad,
        extra={"curve": {**curve, **named}},
    )
    machine = info(
        host=bad,
        target=name,
        backend=name,
        command=(bad,),
        versions={bad: bad},
        devices=({"name": bad, "arch": bad},),
    )
    page = Page(render(Run(machine, [result]), title=bad))
    known = {tag for tag, _ in Page(render(failing())).tags}
    assert {tag for tag, _ in page.tags} <= known, "markup from the data became elements"
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert bad.split("\x00")[0] in page.text, "the name itself must still be readable"


@pytest.mark.parametrize("source", ["javascript:alert(1)", "https://x.org/a b", "data:text/html,x"])
def test_only_an_address_becomes_a_link(source: str) -> None:
    expected = {"reference": 1, "lower": None, "upper": 0, "unit": "s", "source": source}
    result = gate("a", "b", value=1.0, unit="s", expected=expected)
    page = Page(render(Run(info(), [result])))
    links = {at["href"] for tag, at in page.tags if tag == "a" and "href" in at}
    assert all(link and link.startswith("#") for link in links), "no link leaves the page"
    assert source in page.text


def test_the_page_is_made_for_phones_dark_rooms_and_screen_readers() -> None:
    text = render(passing())
    tags = Page(text).tags
    viewport = [a.get("content") for tag, a in tags if tag == "meta" and a.get("name")]
    assert viewport == ["width=device-width, initial-scale=1"]
    assert "prefers-color-scheme: dark" in text
    assert [tag for tag, _ in tags].count("h1") == 1
    identifiers = [a["id"] for _, a in tags if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    named = [a["aria-labelledby"] or "" for _, a in tags if a.get("role") == "img"]
    assert named, "there are charts"
    assert {part for names in named for part in names.split()} <= set(identifiers)
    linked = {unquote(a["href"] or "")[1:] for tag, a in tags if tag == "a" and "href" in a}
    inside = {each for each in linked if not each.startswith("ttps:")}
    assert inside <= set(identifiers), "a link of the page leads to a place of the page"
    tables = [tag for tag, _ in tags].count("table")
    assert tables == [tag for tag, _ in tags].count("caption"), "each table has a caption"
    hidden = [a.get("aria-hidden") or a.get("role") for tag, a in tags if tag == "svg"]
    assert None not in hidden, "each drawing is either named or hidden from screen readers"


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    path = write_report(passing(), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == render(passing())


def test_failures_stand_together_in_the_words_of_the_terminal() -> None:
    slow = {"unit": "1", "value": 8, "expected": at_least(16, "the slot")}
    results = [
        gate("links", "pcie-width", Verdict.FAIL, device="cuda:1", reason="x8", **slow),
        gate("links", "links-up", Verdict.FAIL, device="cuda:2", reason="a link is down"),
        gate("health", "answers", Verdict.FAIL, device="cuda:3", reason="does not answer"),
    ]
    run = Run(info(), results)
    text = render(run)
    section = Page(text.partition("<h2>Failures</h2>")[2].partition("</section>")[0]).text
    order = [section.index(f"on cuda:{n}") for n in (3, 2, 1)]
    assert order == sorted(order), "the gravest first"
    for line in failures_text(run.results):
        if "next: " in line:
            step = " ".join(line.partition("next: ")[2].replace("`", "").split())
            assert step in " ".join(section.split()), "the report says the same next step"
    assert "8 at least 16 the slot" in section
    banner = Page(text[text.index("<header") : text.index("<nav")]).text
    assert "the device is gone" in banner


def test_the_failures_only_view_hides_whatever_did_not_fail() -> None:
    page = Page(render(failing()))
    boxes = [a for tag, a in page.tags if tag == "input" and "id" in a]
    assert [(box["type"], box["id"]) for box in boxes] == [("checkbox", "only-failures")]
    labels = {a["for"] for tag, a in page.tags if tag == "label" and "for" in a}
    assert labels == {"only-failures"}
    assert "#only-failures:checked ~ section :is(.only-whole, tbody tr:not(.bad))" in render(
        failing()
    )
    rows = [str(a.get("class")) for tag, a in page.tags if tag == "tr" and a.get("class")]
    assert rows == ["bad"] * 4, "the failure among failures, gates, numbers and checks"
    assert "only-failures" not in str(Page(render(passing())).tags)


def test_passing_rows_of_a_long_area_stay_closed_next_to_a_failure() -> None:
    results = [gate("memory", f"case-{n}") for n in range(40)]
    results.append(gate("memory", "patterns", Verdict.FAIL, reason="so"))
    page = Page(render(Run(info(), results)))
    folds = [a for tag, a in page.tags if tag == "details"]
    assert ["open" in a for a in folds] == [True, False], "the area is open, its 40 passes are not"
    assert "40 passed" in page.text
    short = Page(render(Run(info(), results[30:])))
    assert [tag for tag, _ in short.tags].count("details") == 1


def anchors_of(run: Run) -> list[str]:
    """The anchors of results: of rows, and of what is the same in a row."""
    tags = Page(render(run)).tags
    return [str(a["id"]) for tag, a in tags if "id" in a and tag in ("tr", "a")]


def test_results_that_differ_only_in_device_or_parameters_share_a_row() -> None:
    results = [
        gate("memory", "copy[fp32]", device="ex:0", duration_s=1.0),
        gate("memory", "copy[fp32]", device="ex:1", duration_s=2.0),
        gate("memory", "copy[fp64]", device="ex:0", duration_s=3.0),
        gate("memory", "copy[fp64]", device="ex:1", reason="odd", duration_s=4.0),
        gate("memory", "copy", evidence=(Evidence.LOADED,), duration_s=5.0),
    ]
    run = Run(info(), results)
    checks = render(run).partition("<h2>Checks</h2>")[2]
    rows = [Page(row).text for row in re.findall(r"<tr.*?</tr>", checks)[1:]]
    assert [" ".join(row.split()) for row in rows] == [
        "PASS memory/copy [fp32] on ex:0 [fp32] on ex:1 [fp64] on ex:0 executed 6.0 s",
        "PASS memory/copy[fp64] on ex:1 odd executed 4.0 s",
        "PASS memory/copy loaded 5.0 s",
    ]
    assert anchors_of(run) == [
        "bringup:memory/copy[fp32]@ex:0",
        "bringup:memory/copy[fp32]@ex:1",
        "bringup:memory/copy[fp64]@ex:0",
        "bringup:memory/copy[fp64]@ex:1",
        "bringup:memory/copy",
    ]


def test_every_result_has_an_anchor_that_the_next_run_has_too() -> None:
    first, second = failing(), failing()
    second.results.reverse()

    def anchors(run: Run) -> set[str]:
        return set(anchors_of(run))

    assert anchors(first) == anchors(second)
    assert len(anchors(first)) == len(first.results)
    assert "bringup:transfers/host-to-device@ex:5" in anchors(first)


def test_names_that_differ_in_blanks_alone_have_anchors_of_their_own() -> None:
    results = [gate("a", "b", device="rank 1"), gate("a", "b", device="rank-1")]
    ids = [a["id"] for _, a in Page(render(Run(info(), results))).tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_ids_may_be_broken_after_their_parts() -> None:
    text = render(Run(info(), [gate("collectives", "all_reduce[float32-n8]")]))
    assert "collectives/<wbr>all_<wbr>reduce[<wbr>float32-n8]" in text


def test_words_are_values_too_and_counts_are_not_measures() -> None:
    wanted = exactly("on", "the product")
    results = [
        gate("health", "ecc", Verdict.FAIL, reason="ECC is off", value="off", expected=wanted),
        gate("memory", "patterns", value=0, unit="1", expected=exactly(0, "wrong words")),
    ]
    text = Page(render(Run(info(), results))).text
    assert "found off, expected on" in text
    assert "Numbers" not in text


def test_units_of_values_and_curves_fit_their_magnitude() -> None:
    slow = {"x": [1, 2], "y": [0.01, 0.02], "x_label": "t", "y_label": "rate", "x_log": False}
    curve = {**slow, "x_unit": "s", "y_unit": "TFLOPS", "series": "a"}
    result = gate("sustained", "x", value=0.02, unit="TFLOPS", spread=0.001, extra={"curve": curve})
    text = Page(render(Run(info(), [result]))).text
    assert "20 GFLOPS ± 1 GFLOPS" in text
    assert "rate (GFLOPS)" in text
    assert "TFLOPS" not in text


def test_devices_that_look_the_same_have_short_anchors_of_their_own() -> None:
    run = Run(info())
    for number in range(1200):
        # white space of its own each, and no anchor holds white space
        name = "a" + "".join("  b" if number >> bit & 1 else " b" for bit in range(11))
        run.add(gate("links", "hive", Verdict.FAIL, device=name, reason="down"))
    anchors = anchors_of(run)
    assert len(set(anchors)) == len(anchors) == 1200
    assert max(map(len, anchors)) < 60
