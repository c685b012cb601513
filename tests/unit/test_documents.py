"""Dataclasses as JSON and back, and documents that are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - documents read the types of fields
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any

import pytest

from portagpu.documents import DocumentError, decode, encode
from portagpu.errors import PortagpuError


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    number: float
    color: Color | None = None

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("number: must be at least 0")


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 1
    flag: bool = False
    day: date | None = None
    code: bytes = b""
    pair: tuple[int, str] = (0, "")
    inners: tuple[Inner, ...] = ()
    words: frozenset[str] = frozenset()
    table: Mapping[str, int | None] = field(default_factory=dict)
    anything: Any = None


FULL = Outer(
    name="a\nb",
    count=2**70,
    flag=True,
    day=date(2026, 3, 1),
    code=b"\x00\xff",
    pair=(3, "x"),
    inners=(Inner(1.5, Color.BLUE), Inner(2)),
    words=frozenset({"b", "a"}),
    table={"x": 1, "y": None},
    anything=[1, {"k": None}],
)


@pytest.mark.parametrize("value", [FULL, Outer("plain")])
def test_a_dataclass_survives_json(value: Outer) -> None:
    text = json.dumps(encode(value), allow_nan=False)
    assert decode(Outer, json.loads(text), "outer") == value


def test_json_is_readable_and_in_a_stable_order() -> None:
    document = encode(FULL)
    assert document["day"] == "2026-03-01"
    assert document["words"] == ["a", "b"]
    assert document["inners"][0] == {"number": 1.5, "color": "blue"}
    assert list(document) == list(Outer.__dataclass_fields__)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "outer: must be an object with keys of text, not None"),
        (
            {"name": "a", "later": 1},
            "outer.later: is not a known key; there is name, count, flag, day, code",
        ),
        ({}, "outer.name: is missing"),
        ({"name": 3}, "outer.name: must be text, not 3"),
        ({"name": None}, "outer.name: must be text, not None"),
        ({"name": "a", "count": True}, "outer.count: must be a whole number, not True"),
        ({"name": "a", "count": 1.0}, "outer.count: must be a whole number, not 1.0"),
        ({"name": "a", "flag": 1}, "outer.flag: must be true or false, not 1"),
        ({"name": "a", "day": "soon"}, "outer.day: must be a day such as 2027-01-31, not 'soon'"),
        ({"name": "a", "day": 3}, "outer.day: must be a day such as 2027-01-31, not 3"),
        ({"name": "a", "code": "%%"}, "outer.code: must be bytes in Base64, not '%%'"),
        ({"name": "a", "pair": [1]}, r"outer.pair: must be a list of 2 items, not \[1\]"),
        ({"name": "a", "pair": [1, 2]}, r"outer.pair\[1\]: must be text, not 2"),
        ({"name": "a", "inners": {}}, "outer.inners: must be a list, not {}"),
        (
            {"name": "a", "inners": [{"number": "1"}]},
            r"outer.inners\[0\].number: must be a number, not '1'",
        ),
        (
            {"name": "a", "inners": [{"number": -1}]},
            r"outer.inners\[0\]: number: must be at least 0",
        ),
        (
            {"name": "a", "inners": [{"number": 1, "color": "green"}]},
            "color: must be one of red, blue, not 'green'",
        ),
        ({"name": "a", "words": "ab"}, "outer.words: must be a list, not 'ab'"),
        ({"name": "a", "table": []}, r"outer.table: must be an object with keys of text, not \[\]"),
        ({"name": "a", "table": {"x": "1"}}, "outer.table.x: must be a whole number, not '1'"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(document: Any, words: str) -> None:
    with pytest.raises(DocumentError, match=words) as caught:
        decode(Outer, document, "outer")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, PortagpuError)
