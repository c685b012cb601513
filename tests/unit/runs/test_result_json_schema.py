"""The published JSON Schema and the package agree on the form of a result document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import ResultError
from portagpu.runs.results.run import Result, Run, Verdict, new_run, read_json, validate
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def schema() -> Any:
    document = json.loads((ROOT / "docs/result.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def sample() -> dict[str, Any]:
    """A document with a value under every key."""
    run = new_run(
        ["portagpu", "bench"], target="cpu-x86-64", backend="cpu", devices=[{"name": "x"}]
    )
    curve = {
        "x": [1, 2],
        "y": [0.5, None],
        "x_log": True,
        "series": "s",
        "title": "t",
        "x_label": "size",
        "x_unit": "B",
        "y_label": "rate",
        "y_unit": "GB/s",
    }
    run.add(
        Result(
            id="memory/copy",
            suite="performance",
            area="memory",
            verdict=Verdict.FAIL,
            evidence=["executed"],
            device="cpu",
            value=9.5,
            unit="GB/s",
            statistic="median",
            n=5,
            spread=0.1,
            expected={
                "reference": 12.0,
                "lower": -0.1,
                "upper": None,
                "unit": "GB/s",
                "source": "here",
                "statistic": "median",
                "shape": [4, 4],
                "software": None,
            },
            shape={"m": 4, "dtype": "fp32"},
            reason="slow",
            extra={"curve": curve, "curves": [curve], "samples": [9.4, 9.5], "other": [1]},
        )
    )
    run.add(Result(id="a/b", suite="conformance", area="a", verdict=Verdict.PASS, value="off"))
    return run.finish().to_json()


def test_documents_of_this_package_follow_the_schema(schema: Any) -> None:
    for document in (sample(), new_run().finish().to_json()):
        validate(document)
        schema.validate(document)
    for path in (ROOT / "matrix/results").glob("*.json"):
        schema.validate(json.loads(path.read_text())["result"])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("results.0.unit", None),
        ("results.1.unit", "1"),
        ("results.0.unit", "GB/s\n"),
        ("results.0.unit", " \t"),
        ("results.0.device", "\x1b[31mred"),
        ("results.0.reason", " \n"),
        ("results.0.blocked_by", "a/b"),
        ("results.0.evidence", ["executed", "executed"]),
        ("results.0.expected.reference", "on"),
        ("results.0.expected.unit", None),
        ("results.0.spread", -0.5),
        ("results.0.n", 0),
        ("results.0.n", True),
        ("results.0.value", []),
        ("run.id", ""),
        ("run.started", "2026-11-23"),
        ("run.started", "2026-11-23T08:00:00"),
        ("run.started", "2026-11-23T08:00:00Z\n"),
        ("run.started", "2026-W48-1T08:00Z"),
        ("run.started", "20261123T080000Z"),
    ],
)
def test_both_refuse_a_damaged_document(schema: Any, place: str, value: object) -> None:
    document = sample()
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inner: Any = document
    for part in path:
        inner = inner[part]
    inner[last] = value
    assert not schema.is_valid(document)
    named = place.partition(".expected")[0].replace(".0", r"\[0\]").replace(".1", r"\[1\]")
    with pytest.raises(ResultError, match=named):
        Run.from_json(document)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("id", "../<b>\u05d0</b> ; a"),
        ("started", "2026-11-23T08:00:00.123456789+05:30"),
        ("started", "9999-12-31T23:59:59-23:59"),
        ("host", "\x1b\n"),
        ("duration_s", 1e308),
    ],
)
def test_both_accept_what_is_odd(schema: Any, place: str, value: object) -> None:
    document = sample()
    document["run"][place] = value
    schema.validate(document)
    Run.from_json(document)


@pytest.mark.parametrize("depth", [70, 2_000, 100_000])
def test_a_file_nested_without_end_is_refused_in_one_line(tmp_path: Path, depth: int) -> None:
    text = json.dumps(sample()).replace('"other": [1]', f'"other": {"[" * depth}{"]" * depth}')
    path = tmp_path / "deep.json"
    path.write_text(text)
    with pytest.raises(ResultError, match=r"deep.json: (document: )?is nested too deeply$"):
        read_json(path)


def test_a_document_nested_deeper_than_it_can_be_read_is_refused() -> None:
    document, inner = sample(), 1
    for _ in range(2_000):
        inner = [inner]  # type: ignore[assignment]
    document["results"][0]["extra"]["other"] = inner
    with pytest.raises(ResultError, match="document: is nested too deeply"):
        Run.from_json(document)


@pytest.mark.parametrize(
    ("schema_of", "reported"),
    [
        (
            "portagpu.result/2",
            "schema: is portagpu.result/2; this version reads portagpu.result/1: upgrade portagpu",
        ),
        ("portagpu.result/10", "portagpu.result/10; this version reads"),
        ("portagpu.result/0", "must be one of portagpu.result/1"),
        ("portagpu.info/1", "must be one of portagpu.result/1"),
    ],
)
def test_another_schema_is_refused(schema_of: str, reported: str) -> None:
    document = {**sample(), "schema": schema_of, "key of later versions": 1}
    with pytest.raises(ResultError, match=reported):
        Run.from_json(document)


def test_a_document_without_the_keys_of_later_versions_is_read() -> None:
    document = sample()
    del document["run"]["replay"]
    assert list(Run.from_json(document).info.replay) == []
