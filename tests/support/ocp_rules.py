"""Judges lines of OCP Test & Validation Output: its published schema, and the rules of its text.

The schema is that of ``tests/vendor_texts/ocp_schema``. The rules are those of ``json_spec/README``
that no schema of one line can state.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA = ROOT / "tests/vendor_texts/ocp_schema"
COMBINATIONS = {
    ("COMPLETE", "PASS"),
    ("COMPLETE", "FAIL"),
    ("SKIP", "NOT_APPLICABLE"),
    ("ERROR", "NOT_APPLICABLE"),
}


@cache
def _validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    schemas = [json.loads(path.read_text("utf-8")) for path in SCHEMA.glob("*.json")]
    resources = [(each["$id"], referencing.Resource.from_contents(each)) for each in schemas]
    kind = jsonschema.Draft202012Validator
    root = next(each for each in schemas if each["$id"].endswith("/output"))
    return kind(
        root,
        registry=referencing.Registry().with_resources(resources),
        format_checker=kind.FORMAT_CHECKER,
    )


def lines_of(text: str) -> list[dict[str, Any]]:
    """The objects of a text in which every line is whole."""
    assert text.endswith("\n"), "the last line is cut off"
    assert text.isascii(), "a line has characters that not every encoding has"
    return [json.loads(line, parse_constant=_refuse) for line in text.split("\n")[:-1]]


def _refuse(word: str) -> float:
    raise AssertionError(f"{word} is not JSON")


def problems(lines: Sequence[dict[str, Any]], *, cut_off: bool = False) -> list[str]:
    """What the schema and the rules refuse; a run that is ``cut_off`` may lack its last lines."""
    known: dict[str, bool] = {}
    found = []
    for number, line in enumerate(lines):
        shape = json.dumps(_shape(line))
        if shape not in known:
            errors = list(_validator().iter_errors(line))
            known[shape] = not errors
            found += [f"line {number}: {each.json_path}: {each.message[:200]}" for each in errors]
    return [*found, *_order(lines, cut_off), *_steps(lines, cut_off), *_references(lines)]


def of_run(lines: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    """The artifacts of that kind of the run, in order."""
    return [
        line["testRunArtifact"][kind] for line in lines if kind in line.get("testRunArtifact", ())
    ]


def of_steps(lines: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    """The artifacts of that kind of all steps, in order."""
    return [
        line["testStepArtifact"][kind] for line in lines if kind in line.get("testStepArtifact", ())
    ]


def _shape(value: Any, key: str = "") -> Any:
    """What the schema judges of a value: it costs 3 ms a line, and a run has thousands."""
    if isinstance(value, dict):
        # any object may be the content of an extension
        return {name: _shape(each, name) for name, each in value.items()} if key != "content" else 0
    if isinstance(value, list):
        return [_shape(each) for each in value]
    if isinstance(value, str):
        return value if key == "timestamp" or value.isupper() else ""
    return (
        value if isinstance(value, bool) or value is None else [isinstance(value, int), value < 0]
    )


def _order(lines: Sequence[dict[str, Any]], cut_off: bool) -> Iterator[str]:
    if [line.get("sequenceNumber") for line in lines] != list(range(len(lines))):
        yield "sequence numbers do not rise by 1 from 0"
    times = [line["timestamp"] for line in lines]
    if times != sorted(times):
        yield "times go back"
    if lines and "schemaVersion" not in lines[0]:
        yield "the first line is not the version of the schema"
    if sum("schemaVersion" in line for line in lines) != 1:
        yield "the version of the schema is not there once"
    starts, ends = of_run(lines, "testRunStart"), of_run(lines, "testRunEnd")
    if len(lines) > 1 and "testRunStart" not in lines[1].get("testRunArtifact", ()):
        yield "the second line does not start the run"
    if len(starts) > 1 or (not starts and not cut_off):
        yield "the run does not start once"
    if len(ends) > 1 or (not ends and not cut_off):
        yield "the run does not end once"
    if ends and "testRunEnd" not in lines[-1].get("testRunArtifact", ()):
        yield "a line comes after the end of the run"
    for end in ends:
        if (end["status"], end["result"]) not in COMBINATIONS:
            yield f"{end} is not a valid combination"


def _steps(lines: Sequence[dict[str, Any]], cut_off: bool) -> Iterator[str]:
    begun, over = Counter[str](), Counter[str]()
    series: dict[str, tuple[str, int]] = {}
    for line in lines:
        artifact = line.get("testStepArtifact")
        if artifact is None:
            continue
        step = artifact["testStepId"]
        begun[step] += "testStepStart" in artifact
        if begun[step] != 1 or over[step]:
            yield f"step {step} begins twice, or has a line before its start or after its end"
        over[step] += "testStepEnd" in artifact
        if start := artifact.get("measurementSeriesStart"):
            if start["measurementSeriesId"] in series:
                yield f"series {start['measurementSeriesId']} begins twice"
            series[start["measurementSeriesId"]] = step, 0
        if element := artifact.get("measurementSeriesElement"):
            if series.get(element["measurementSeriesId"]) != (step, element["index"]):
                yield f"{element} has no place in its series"
            series[element["measurementSeriesId"]] = step, element["index"] + 1
        end = artifact.get("measurementSeriesEnd")
        if end and series.pop(end["measurementSeriesId"], None) != (step, end["totalCount"]):
            yield f"{end} does not end a series of its step with that count"
        if "testStepEnd" in artifact and any(owner == step for owner, _ in series.values()):
            yield f"step {step} ends before its series"
    if begun.keys() != over.keys() and not cut_off:
        yield "a step has no end"
    if not cut_off and any(count != 1 for count in over.values()):
        yield "a step does not end once"


def _references(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    known, used = set[str](), set[str]()
    for start in of_run(lines, "testRunStart"):
        ids = [each["hardwareInfoId"] for each in start["dutInfo"].get("hardwareInfos", ())]
        ids += [each["softwareInfoId"] for each in start["dutInfo"].get("softwareInfos", ())]
        if len(set(ids)) < len(ids):
            yield "two parts have one id"
        known |= set(ids)
    for kind in ("measurement", "measurementSeriesStart", "diagnosis"):
        used |= {
            each["hardwareInfoId"] for each in of_steps(lines, kind) if "hardwareInfoId" in each
        }
    if used - known:
        yield f"{used - known} are not in dutInfo"
