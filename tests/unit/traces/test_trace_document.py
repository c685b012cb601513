"""A summary written as JSON and read again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.captures.model import CapturedDevice, ToolMessage, table
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.model import OPERATOR_COLUMNS
from portagpu.traces.analysis.reading import is_document, read_document, to_document
from tests.support.trace_summaries import collectives, ranges, steps, summary

if TYPE_CHECKING:
    from pathlib import Path

empty = {name: [None] for name in OPERATOR_COLUMNS if name not in ("name", "self_ns")}
WHOLE = summary(
    steps=(steps((1, 2, 3), gemm=[1, 1, 1]),),
    ranges=ranges([{"path": "a/b", "host_ns": 5}]),
    collectives=collectives([{"operation": "all_reduce", "bytes": 8}]),
    hardware=(CapturedDevice(0, vendor="amd", units=304),),
    messages=(ToolMessage("warning", "lost"),),
    details={"driver": "1"},
    problems=("one",),
    dropped=3,
    api_ns={"launch": 7},
    operators=table({"name": ["aten::mm"], "self_ns": [5]} | empty, OPERATOR_COLUMNS),
)


def test_a_summary_survives_the_file(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(to_document(WHOLE)), encoding="utf-8")
    assert is_document(file.read_bytes()[:1000])
    assert read_document(file) == WHOLE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"schema": "portagpu.result/1"},
            "schema: must be one of portagpu.trace-",
        ),
        ({"rows": None}, "rows: must be a list, not None"),
        ({"operators": [{"name": "a", "colour": 1}]}, "operators[0].colour: is not a known key"),
        ({"rows": [5]}, "rows[0]: must be an object with keys of text, not 5"),
        ({"rows": [{"name": "a", "colour": 1}]}, "rows[0].colour: is not a known key"),
        ({"rows": [{"total_ns": "much"}]}, "rows: "),
        ({"devices": [{"rank": 0}]}, "devices[0].device: is missing"),
        (
            {"messages": [{"level": "loud", "text": ""}]},
            "messages[0].level: must be one of info, ",
        ),
        ({"dropped": True}, "dropped: must be a whole number, not True"),
        ({"api_ns": {"a": "b"}}, "api_ns.a: must be a whole number, not 'b'"),
        ({"more": 1}, "more: is not a known key"),
    ],
)
def test_a_wrong_document_is_one_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = tmp_path / "summary.json"
    file.write_text(json.dumps({**to_document(WHOLE), **change}), encoding="utf-8")
    with pytest.raises(FormatError) as error:
        read_document(file)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "[" * 100_000])
def test_what_is_not_a_document_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "summary.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match="not a summary"):
        read_document(file)
