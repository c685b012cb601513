"""A reader of another distribution is refused for each thing that it states wrongly."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

from portagpu.facts.formats import Shape
from portagpu.facts.formats.foreign_readers import ForeignReader
from portagpu.facts.readings import Findings, FormatError

LINE = re.compile("acme")


def module(**values: Any) -> ModuleType:
    found = ModuleType("acme_text")
    given = {"matches": lambda text: "acme" in text, "parse": lambda text: Findings(kind="acme")}
    vars(found).update(given | values)
    return found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"matches": None}, "it needs matches and parse"),
        ({"parse": "parse"}, "it needs matches and parse"),
        ({"SHAPES": "acme"}, "its SHAPES are not a tuple of portagpu.facts.formats.Shape"),
        ({"SHAPES": (("acme", LINE),)}, "its SHAPES are not a tuple of"),
        ({"SHAPES": (Shape("acme", "x"),)}, "a Shape has a pattern that is not compiled"),
        ({"SHAPES": (Shape("acme", None),)}, "a Shape has a pattern that is not compiled"),
        ({"SHAPES": (Shape("acme", LINE, ends="x"),)}, "has a pattern that is not compiled"),
        ({"SHAPES": (Shape("(acme", LINE),)}, "'(acme' is not a regular expression"),
        ({"SHAPES": (Shape("acme", LINE), Shape("(a)", LINE))}, "must have no groups that capture"),
        ({"SHAPES": (Shape("a*", LINE),)}, "'a*' fits any text"),
        ({"ROOT": "acme|"}, "'acme|' fits any text"),
        ({"ROOT": "(acme)"}, "'(acme)' must have no groups that capture"),
        ({"ROOT": "[acme"}, "'[acme' is not a regular expression"),
        ({"ROOT": 7}, "7 must have no groups that capture"),
    ],
)
def test_a_wrong_reader_is_left_out_with_the_reason(values: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError) as caught:
        ForeignReader(module(**values), "acme-dist")
    text = str(caught.value)
    assert text.startswith("the reader acme_text of acme-dist is left out: ")
    assert said in text


def test_a_right_reader_has_weak_shapes_and_its_root() -> None:
    bare = ForeignReader(module(), "acme-dist")
    assert (bare.name, bare.SHAPES, bare.SINGLE) == ("acme-dist:acme_text", (), False)
    assert not hasattr(bare, "ROOT")
    assert (bare.matches("acme 1"), bare.matches("other")) == (True, False)
    whole = ForeignReader(module(SHAPES=[Shape("acme", LINE)], ROOT="acme", SINGLE=1), "acme-dist")
    assert list(whole.SHAPES) == [Shape("acme", LINE, weak=True)]
    assert (whole.ROOT, whole.SINGLE) == ("acme", True)
