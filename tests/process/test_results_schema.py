"""The document: what is written is read back, and what is wrong is named by its key."""

from __future__ import annotations

import copy
import io
import json
import math
import re
import subprocess
import sys
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import OutputError, ResultError
from portagpu.runs.results.run import Result, Run, RunInfo, Verdict, bounds, read_json, validate
from tests.support.result_samples import failing, passing, stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES = [passing, failing, stopped]
KEYS_OF_THE_CONTRACT = (
    "id suite area verdict evidence device value unit statistic n spread expected shape reason "
    "blocked_by does_not_show duration_s extra"
)


def measure(**fields: Any) -> Result:
    return Result(**{"id": "a/b", "suite": "s", "area": "a", "verdict": Verdict.PASS, **fields})


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_run_is_read_back_as_it_was_written(sample: Callable[[], Run], tmp_path: Path) -> None:
    run = sample()
    back = read_json(run.write_json(tmp_path / "out" / "result.json"))
    assert back == run
    assert back.to_json() == run.to_json()
    assert back.verdict is run.verdict


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_file_is_strict_json_with_one_line_for_each_result(sample: Callable[[], Run]) -> None:
    run = sample()
    document = json.loads(run.to_text(), parse_constant=pytest.fail)
    assert document == json.loads(json.dumps(run.to_json()))
    assert sum('{"id": ' in line for line in run.to_text().splitlines()) == len(run.results)


def test_the_document_has_the_keys_of_the_contract() -> None:
    document = failing().to_json()
    assert list(document) == [
        *("schema", "verdict", "counts", "first_failed", "culprit", "run", "results"),
    ]
    assert document["schema"] == "portagpu.result/1"
    assert (document["verdict"], document["culprit"]) == ("FAIL", "ex:5")
    assert document["first_failed"] == "transfers/host-to-device"
    assert {" ".join(result) for result in document["results"]} == {KEYS_OF_THE_CONTRACT}


def test_a_run_without_results_is_written_and_read() -> None:
    run = Run(RunInfo(id="r", started="2025-01-01T00:00:00+01:00"))
    assert Run.from_json(json.loads(run.to_text())) == run


def test_a_stream_of_any_encoding_can_hold_the_document() -> None:
    run = Run(RunInfo(id="r", started="2025-01-01T00:00:00Z", host="knöten \ud800"))
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        run.dump(stream)
        stream.flush()
        document = json.loads(raw.getvalue())
    assert document["run"]["host"] == "knöten \\ud800"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("PASS", "ERROR"),
        ("UNVERIFIED", "ERROR"),
        ("FAIL", "FAIL"),
        ("INCONCLUSIVE", "INCONCLUSIVE"),
    ],
)
def test_a_measure_that_gave_no_number_never_passes(value: float, before: str, after: str) -> None:
    result = measure(verdict=Verdict(before), value=value, unit="GB/s", reason="why")
    assert result.value is None
    assert result.verdict == after
    assert f"measured value {value}" in result.reason


def test_numbers_that_are_not_finite_are_gaps_in_curves_and_refused_in_expectations() -> None:
    curve = {**passing().results[5].extra["curve"], "x": (1, 2), "y": (math.nan, Fraction(1, 2))}
    assert measure(extra={"curve": curve}).extra["curve"]["y"] == [None, 0.5]
    bad = {"reference": math.inf, "lower": 0, "upper": 0, "unit": "s", "source": "x"}
    with pytest.raises(ResultError, match=r"a/b\.expected\.reference: must be finite"):
        measure(expected=bad)


def test_control_characters_in_a_reason_become_spaces_and_its_lines_stay() -> None:
    made = Result(
        id="a/b", suite="s", area="a", verdict=Verdict.FAIL, reason="\x1b[2Jred\u202e\n  two\tthree"
    )
    assert made.reason == "[2Jred\ntwo three"


def test_control_characters_in_names_become_spaces() -> None:
    assert measure(device="ex\x00:\x1b[0").device == "ex : [0"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verdict": "GREEN"}, "a/b.verdict: must be one of PASS, FAIL"),
        ({"verdict": Verdict.FAIL}, "a/b.reason: is empty; FAIL needs a reason"),
        ({"verdict": Verdict.SKIP}, "a/b.reason: is empty; SKIP needs a reason"),
        ({"blocked_by": "x"}, "a/b.blocked_by: is only for INCONCLUSIVE"),
        ({"value": 1.0}, "a/b.unit: is missing"),
        ({"value": "fast", "unit": "s"}, "a/b.unit: must be null, because the value is text"),
        ({"value": [1], "unit": "s"}, "a/b.value: must be a finite number"),
        ({"value": True, "unit": "s"}, "a/b.value: must be a finite number"),
        ({"value": 10**400, "unit": "s"}, "a/b.value: must be a finite number"),
        ({"n": 0}, "a/b.n: must be a whole number of at least 1"),
        ({"spread": -1.0}, "a/b.spread: must be a finite number of at least 0"),
        ({"evidence": ["guessed"]}, "a/b.evidence[0]: must be one of declared"),
        ({"evidence": ["executed", "executed"]}, "a/b.evidence: names a badge twice"),
        ({"shape": [1, "x"]}, "a/b.shape: must be text, a list of whole numbers"),
        ({"shape": 3}, "a/b.shape: must be text"),
        ({"extra": {"dtype": object()}}, "a/b.extra.dtype: object cannot be written as JSON"),
        ({"extra": {1: 2}}, "a/b.extra: keys must be text, not 1"),
        ({"extra": {"curve": {"x": []}}}, "a/b.extra.curve.y: is missing"),
        ({"extra": {"samples": ["x"]}}, "a/b.extra.samples[0]: must be a finite number"),
    ],
)
def test_a_wrong_result_is_refused_by_the_name_of_its_key(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ResultError, match="^" + re.escape(message)):
        measure(**fields)


def edited(path: str, value: object) -> dict[str, Any]:
    """The failing sample's document with one key replaced, or removed where value is ``...``."""
    document: dict[str, Any] = copy.deepcopy(failing().to_json())
    *parents, last = re.findall(r"\w+", path)
    here: Any = document
    for key in parents:
        here = here[int(key)] if key.isdigit() else here[key]
    if value is ...:
        del here[last]
    else:
        here[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "portagpu.result/2"),
        ("schema", ...),
        ("surprise", 1),
        ("verdict", "PASS"),
        ("verdict", 7),
        ("counts", {}),
        ("counts.PASS", -1),
        ("counts", dict.fromkeys(map(str, Verdict), 0)),
        ("first_failed", None),
        ("culprit", "ex:4"),
        ("run", []),
        ("run.id", ""),
        ("run.started", "yesterday"),
        ("run.started", "2025-01-01T00:00:00"),
        ("run.duration_s", -1),
        ("run.command", "portagpu bench"),
        ("run.versions.torch", 2.13),
        ("run.devices[0].name", ...),
        ("run.devices[0]", "gpu"),
        ("run.strict", "no"),
        ("run.vendor", "x"),
        ("results", {}),
        ("results[3]", None),
        ("results[3].id", "two\nlines"),
        ("results[3].id", ...),
        ("results[3].device", ""),
        ("results[4].value", math.nan),
        ("results[4].unit", ...),
        ("results[4].speed", 1),
        ("results[4].duration_s", None),
        ("results[4].reason", None),
        ("results[4].expected", 55.0),
        ("results[4].expected.lower", 49.5),
        ("results[4].expected.upper", -0.1),
        ("results[4].expected.source", ...),
        ("results[4].expected.unit", "MB/s"),
        ("results[4].expected.note", "x"),
        ("results[4].extra", None),
        ("results[4].extra.curve.x", [1]),
        ("results[4].extra.curve.x_log", 1),
        ("results[4].extra.more", {"deep": [math.inf]}),
    ],
)
def test_a_wrong_document_is_refused_by_the_path_of_its_key(path: str, value: object) -> None:
    document = edited(path, value)
    named = {
        "counts": "counts",
        "results[4].extra.curve.x": "results[4].extra.curve.y",
        "results[4].extra.more": "results[4].extra.more.deep[0]",
    }.get(path, path)
    with pytest.raises(ResultError) as caught:
        validate(document)
    assert str(caught.value).startswith(named), f"{caught.value} does not name {named}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_not_an_object_is_not_a_document(document: object) -> None:
    with pytest.raises(ResultError, match="document: must be an object"):
        validate(document)


def test_a_strict_verdict_is_only_accepted_from_a_strict_run() -> None:
    run = passing()
    document = run.to_json()
    document["verdict"] = "UNVERIFIED"
    with pytest.raises(ResultError, match="verdict: is 'UNVERIFIED', but the results give 'PASS'"):
        validate(document)
    document["run"]["strict"] = True
    validate(document)


@pytest.mark.parametrize("text", ["", "{", "[NaN]", "[" * 100_000, "\udcff"])
def test_a_file_that_holds_no_run_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResultError, match=re.escape(str(path))):
        read_json(path)
    with pytest.raises(ResultError, match="cannot be read"):
        read_json(tmp_path / "missing.json")


def test_nothing_is_left_where_a_run_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        passing().write_json(tmp_path / "taken")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("lower", "upper", "low", "high"),
    [(-0.1, 0.05, 180.0, 210.0), (None, 0.0, None, 200.0), (-1, None, 0.0, None)],
)
def test_bounds_are_fractions_of_the_reference(
    lower: float | None, upper: float | None, low: float | None, high: float | None
) -> None:
    assert bounds({"reference": 200.0, "lower": lower, "upper": upper}) == (low, high)


def test_results_junit_and_report_need_neither_torch_nor_the_command_line() -> None:
    code = (
        "import sys, portagpu.runs.results.run, portagpu.reports.junit, portagpu.reports.html\n"
        "print([m for m in ('torch', 'click', 'rich', 'pytest', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ON: dict[str, Any] = {
    "reference": "on", "lower": None, "upper": None, "unit": None, "source": "the product",
}  # fmt: skip


def test_a_value_may_be_words_that_words_were_expected_of() -> None:
    result = measure(value="off", unit=None, spread=None, expected=ON)
    assert Result.from_json(result.to_json()) == result
    nothing = measure(value=None, unit=None, spread=None, expected=ON)
    assert nothing.expected == ON, "what is expected can be stated without a value"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expected": {**ON, "lower": -0.1}}, "a/b.expected.lower: must be null"),
        ({"expected": {**ON, "unit": "s"}}, "a/b.expected.unit: must be null"),
        ({"expected": {**ON, "reference": 1}}, "a/b.expected.unit: is missing"),
        ({"value": 1.0, "unit": "s", "expected": ON}, "a/b.expected.reference: must be text where"),
        ({"expected": {**ON, "reference": ""}}, "a/b.expected.reference: must be text of one line"),
    ],
)
def test_words_and_numbers_are_not_compared(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ResultError, match="^" + re.escape(message)):
        measure(**{"value": "off", "unit": None, "spread": None, **fields})
