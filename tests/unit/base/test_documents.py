"""Dataclasses as JSON and back, and documents that are refused."""

from __future__ import annotations

import json
import re  # noqa: TC003 - documents read the types of fields
from collections.abc import Mapping  # noqa: TC003 - documents read the types of fields
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from portagpu.base.documents import (
    DocumentError,
    check_types,
    count,
    decode,
    encode,
    object_of,
    positive,
    read_toml,
    regular_expression,
    rule_of,
    text,
    version,
)
from portagpu.base.errors import PortagpuError

if TYPE_CHECKING:
    from pathlib import Path


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


@dataclass(frozen=True)
class Ruled:
    size: Annotated[int, positive]
    of: Mapping[str, Annotated[int, count]]
    pattern: Annotated[re.Pattern[str], regular_expression] | None = None


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


def test_a_field_with_a_rule_is_read_by_it() -> None:
    assert decode(Ruled, {"size": 3, "of": {"a+": 1}}, "x") == Ruled(3, {"a+": 1})
    for document, words in (
        ({"size": 0, "of": {}}, "x.size: must be a whole number of at least 1, not 0"),
        ({"size": True, "of": {}}, "x.size: must be a whole number of at least 1, not True"),
        ({"size": 1, "of": {"a": -1}}, "x.of.a: must be a whole number of at least 0, not -1"),
        ({"size": 1, "of": {"a": 1}, "pattern": "("}, "x.pattern: is not a regular expression: "),
        ({"size": 1}, "x.of: is missing"),
        ({"size": 1, "off": {}}, "x.off: is not a known key; did you mean 'of'?"),
        ({"size": 1, "of": {}, "sise": 1}, "x.sise: is not a known key; did you mean 'size'?"),
        ({"size": 1, "of": {1: 1}}, "x.of: must be an object with keys of text, not {1: 1}"),
        ({"size": 1, "of": {}, "a\nb": 1}, "x.a\\nb: is not a known key; there is size, of, "),
        ({"size": 10**5000, "of": 10**5000}, "x.of: must be an object with keys of text, not a nu"),
    ):
        with pytest.raises(DocumentError) as caught:
            decode(Ruled, document, "x")
        assert str(caught.value).startswith(words)


def test_a_rule_says_itself_as_json_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = rule_of(Ruled).schema
    assert schema["properties"]["size"] == {"type": "integer", "minimum": 1}
    assert schema["required"] == ["size", "of"]
    judge = jsonschema.Draft202012Validator(schema)
    documents = [{"size": size, "of": of} for size in (0, 1, "1", None) for of in ({}, {"a": -1})]
    for document in [*documents, {}, {"size": 1}, {"size": 1, "of": {}, "more": 1}]:
        try:
            decode(Ruled, document, "x")
        except DocumentError:
            assert not judge.is_valid(document), document
        else:
            assert judge.is_valid(document), document


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ("a.b/3", "k: is a.b/3; this version reads a.b/2: upgrade portagpu"),
        ("a.b/10", "k: is a.b/10; this version reads a.b/2: upgrade portagpu"),
        ("a.b/1", "k: must be one of a.b/2, not 'a.b/1'"),
        ("axb/3", "k: must be one of a.b/2, not 'axb/3'"),
        ("a.b/3\n", "k: must be one of a.b/2, not 'a.b/3"),
        (None, "k: must be one of a.b/2, not None"),
    ],
)
def test_a_newer_schema_says_to_upgrade(stated: Any, words: str) -> None:
    assert version("a.b/2").read("a.b/2", "k") == "a.b/2"
    with pytest.raises(DocumentError) as caught:
        version("a.b/2").read(stated, "k")
    assert str(caught.value).startswith(words)


def test_what_a_rule_reads_has_the_order_of_the_document_and_leaves_it_as_it_is() -> None:
    rule = object_of({"a": rule_of(tuple[int, ...]), "b": text}, others=True)
    document = {"z": 1, "b": "x", "a": [1]}
    found = rule.read(document, "")
    assert list(found.items()) == [("z", 1), ("b", "x"), ("a", (1,))]
    assert document == {"z": 1, "b": "x", "a": [1]}


def test_an_object_that_code_made_has_the_types_of_its_class() -> None:
    check_types(FULL, Outer, "")
    for wrong, words in (
        ({"name": 3}, "name: must be text, not 3"),
        ({"pair": [1, "a"]}, r"pair: must be a tuple, not \[1, 'a'\]"),
        ({"inners": (None,)}, r"inners\[0\]: must be a Inner, not None"),
        ({"code": "aGk="}, "code: must be a bytes, not 'aGk='"),
        ({"day": "2026-03-01"}, "day: must be a date, not '2026-03-01'"),
        ({"words": ("a",)}, r"words: must be a frozenset, not \('a',\)"),
    ):
        with pytest.raises(DocumentError, match=f"^{words}$"):
            check_types(replace(FULL, **wrong), Outer, "")  # type: ignore[arg-type]


def test_a_type_that_json_cannot_hold_is_a_mistake_in_the_program() -> None:
    with pytest.raises(TypeError, match="no form in JSON"):
        rule_of(complex)


def test_a_toml_file_is_read_with_its_path_in_errors(tmp_path: Path) -> None:
    path, rule = tmp_path / "a.toml", object_of({"n": positive})
    for written, words in (
        (None, "cannot be read as TOML: No such file or directory"),
        ("= 1", "cannot be read as TOML: Invalid"),
        ("n = 1", "schema: must be one of a/1, not None"),
        ('schema = "a/2"', "schema: is a/2; this version reads a/1: upgrade portagpu"),
        ('schema = "a/1"\nn = 0', "n: must be a whole number of at least 1, not 0"),
    ):
        if written is not None:
            path.write_text(written)
        with pytest.raises(DocumentError) as caught:
            read_toml(path, "a/1", rule)
        assert str(caught.value).startswith(f"{path}: {words}")
    path.write_text('schema = "a/1"\nn = 2')
    assert read_toml(path, "a/1", rule) == {"n": 2}
