"""Annotations as one text: what was put in comes out, and an untrusted name stays a name."""

from __future__ import annotations

import json
import math

import pytest

from portagpu.facts.captures.labels import COLLECTIVE, DOMAIN, decode, encode, to_json


@pytest.mark.parametrize(
    ("name", "labels", "domain", "text"),
    [
        ("forward", {}, "", "forward"),
        ("forward", {}, DOMAIN, "portagpu:forward"),
        ("forward", {}, "mine", "mine:forward {}"),
        ("forward", {"step": 3, "loss": 0.5}, "", "forward {'step':3,'loss':0.5}"),
        ("aten::mm", {}, "", "aten::mm"),
        ("model:layer/3", {}, "", "model:layer/3"),
        ("a:b", {"last": True}, "", ":a:b {'last':true}"),
        (
            "all_reduce",
            {"bytes": 4096, "dtype": "float32"},
            COLLECTIVE,
            "portagpu.collective:all_reduce {'bytes':4096,'dtype':'float32'}",
        ),
        ("portagpu:x", {}, "", ":portagpu:x {}"),
        ('say "hi"', {}, "", "say %22hi%22 {}"),
        ("100%", {}, "", "100%"),
        ("schön", {}, DOMAIN, "portagpu:schön"),
    ],
)
def test_a_text_and_what_it_is_of(name, labels, domain, text):
    assert encode(name, labels, domain) == text
    assert decode(text) == (name, labels, domain)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "foo:bar", "void f<int>() {lambda}", "x {not: json}", "x {'a':[1]}", 'x {"a":1}',
     "x {'a':null}", "100%25", "portagpu", "portagpux:y", "x {'a':1}}", "{'a':1}",
     "x {'a':" + "[" * 100_000 + "}"],
)  # fmt: skip
def test_an_untrusted_name_stays_a_name(text):
    assert decode(text) == (text, {}, "")
    assert decode(encode(text)) == (text, {}, "")


def test_numbers_that_json_lacks_are_text():
    assert encode("x", {"a": math.inf, "b": math.nan}) == "x {'a':'inf','b':'nan'}"
    assert json.loads(to_json({"a": math.inf, "b": 'q"', "c": True})) == {
        "a": "inf",
        "b": 'q"',
        "c": True,
    }


def test_what_is_not_a_label_or_domain_is_refused():
    with pytest.raises(TypeError, match="the label x is a list: labels are str, int"):
        encode("n", {"x": [1]})
    with pytest.raises(ValueError, match="a domain is a word of up to 64 letters"):
        encode("n", {}, "a b")


def test_labels_in_a_text_go_before_a_payload_that_says_less():
    pytest.importorskip("pyarrow")
    from portagpu.facts.captures.columns import take_apart
    from portagpu.facts.captures.model import table

    labels = {"bytes": 4096, "dtype": "float32", "group": "0", "group_size": 2, "sequence": 7}
    columns = {
        "start_ns": [0, 1, 2],
        "end_ns": [5, 5, 5],
        "name": [encode("step", {"number": 3}), "plain", encode("all_reduce", labels)],
        "domain": ["portagpu", "mine", COLLECTIVE],
        "payload": ['{"payload":3}', '{"payload":4}', '{"bytes":4096,"dtype":[102,108]}'],
    }
    ranges, collectives = take_apart(table(columns))
    assert ranges.column("name").to_pylist() == ["step", "plain"]
    assert ranges.column("payload").to_pylist() == ['{"number":3}', '{"payload":4}']
    assert ranges.column("domain").to_pylist() == ["portagpu", "mine"]
    (found,) = collectives.to_pylist()
    assert {name: found[name] for name in labels} == labels
    assert found["operation"] == "all_reduce"
