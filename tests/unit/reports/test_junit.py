"""JUnit: a server shows green exactly where the run passed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from portagpu.reports.junit import render, write_junit
from portagpu.runs.results.run import Result, Run, RunInfo
from portagpu.runs.results.verdicts import Verdict
from tests.support.looped import looped
from tests.support.result_samples import failing, info, passing, stopped

if TYPE_CHECKING:
    from pathlib import Path

V = Verdict


def parse(run: Run) -> ET.Element:
    return ET.fromstring(render(run))  # noqa: S314 - our own text


def green(root: ET.Element) -> bool:
    """As servers judge: no failure and no error anywhere; skipped cases do not count."""
    return not list(root.iter("failure")) and not list(root.iter("error"))


def run_of(*verdicts: Verdict, **flags: bool) -> Run:
    results = [
        Result(id=f"a/{i}", suite="s", area="a", verdict=v, reason="so", duration_s=0.5)
        for i, v in enumerate(verdicts)
    ]
    return Run(RunInfo(id="r", started="2025-01-01T00:00:00Z", **flags), results)


@looped("strict", [False, True])
@looped("stop", [False, True])
@looped(
    "verdicts",
    [
        *((), (V.PASS,), (V.SKIP,), (V.UNVERIFIED,), (V.PASS, V.SKIP), (V.PASS, V.UNVERIFIED)),
        *((V.PASS, V.INCONCLUSIVE), (V.PASS, V.FAIL), (V.PASS, V.ERROR), (V.UNVERIFIED, V.SKIP)),
    ],
)
def test_green_is_exactly_a_run_that_passed(
    verdicts: tuple[Verdict, ...], stop: bool, strict: bool
) -> None:
    run = run_of(*verdicts, strict=strict, interrupted=stop)
    assert green(parse(run)) == (run.exit_code == 0)


@pytest.mark.parametrize(
    ("verdict", "tag"),
    [
        (V.PASS, None),
        (V.FAIL, "failure"),
        (V.ERROR, "error"),
        (V.INCONCLUSIVE, "error"),
        (V.SKIP, "skipped"),
        (V.UNVERIFIED, None),
    ],
)
def test_each_verdict_has_its_outcome(verdict: Verdict, tag: str | None) -> None:
    case = parse(run_of(verdict, V.PASS)).find("testsuite/testcase")
    assert case is not None
    outcomes = [child for child in case if child.tag in ("failure", "error", "skipped")]
    assert [child.tag for child in outcomes] == ([tag] if tag else [])
    if tag in ("failure", "error"):
        assert outcomes[0].get("type") == verdict
        assert outcomes[0].get("message") == "so"
    note = case.findtext("system-out", "")
    assert ("UNVERIFIED" in note) == (verdict is V.UNVERIFIED)


def test_totals_are_those_of_the_cases() -> None:
    root = parse(run_of(V.PASS, V.FAIL, V.FAIL, V.ERROR, V.INCONCLUSIVE, V.SKIP, V.UNVERIFIED))
    for element in (root, *root.iter("testsuite")):
        totals = {key: element.get(key) for key in ("tests", "failures", "errors", "skipped")}
        assert totals == {"tests": "7", "failures": "2", "errors": "2", "skipped": "1"}
    suite = root.find("testsuite")
    assert suite is not None
    assert float(suite.get("time", "")) == 3.5


@pytest.mark.parametrize("sample", [passing, failing, stopped])
def test_there_is_a_suite_for_each_area_and_a_case_for_each_result(sample: object) -> None:
    run = sample()  # type: ignore[operator]
    root = parse(run)
    assert [suite.get("name") for suite in root] == list(
        dict.fromkeys(f"bringup.{result.area}" for result in run.results)
    )
    names = [case.get("name") for case in root.iter("testcase")]
    assert len(names) == len(set(names)) == len(run.results)


def test_properties_name_target_backend_devices_and_versions() -> None:
    suite = parse(passing()).find("testsuite")
    assert suite is not None
    assert suite[0].tag == "properties"
    properties = {entry.get("name"): entry.get("value") for entry in suite[0]}
    assert properties["target"] == "cpu-x86-64"
    assert properties["backend"] == "cpu"
    assert properties["device.0"] == "Example CPU 9000"
    assert properties["version.torch"] == "2.13.0+cpu"
    assert properties["version.driver"] == "none"


def test_what_xml_cannot_hold_is_taken_out_and_markup_is_escaped(tmp_path: Path) -> None:
    bad = 'x<b a="1">&\x00\x0b\x1b\ufffe]]>'
    result = Result(
        id="a/b", suite="s", area="<a>", verdict=V.FAIL, device=bad, reason=f"{bad}\nsecond"
    )
    run = Run(info(host=bad, versions={bad: bad}), [result])
    written = write_junit(run, tmp_path / "junit.xml").read_bytes()
    root = ET.fromstring(written)  # noqa: S314 - our own text
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.text == 'x<b a="1">&    ]]>\nsecond'
    assert failure.get("message") == 'x<b a="1">&    ]]>'
    suite = root.find("testsuite")
    assert suite is not None
    assert suite.get("hostname") == 'x<b a="1">&]]>'
    assert suite.get("name") == "s.<a>"


def test_a_start_in_another_zone_is_written_in_utc() -> None:
    run = Run(info(started="2025-03-01T01:15:00+02:00"), passing().results)
    suite = parse(run).find("testsuite")
    assert suite is not None
    assert suite.get("timestamp") == "2025-02-28T23:15:00"
