"""Parameters, defaults and kinds of public names stay: a change is one of a file that users see."""

from __future__ import annotations

import ast

import pytest

from portagpu.base.installation import WRITE_PAGES
from tests.conftest import ROOT
from tests.support.public_surface import lines, public_surface


def test_public_names_take_and_hold_what_the_committed_list_says() -> None:
    committed = (ROOT / "tests/unit/public_surface.txt").read_text("utf-8").splitlines()
    assert committed == public_surface().splitlines(), f"is it meant? Then {WRITE_PAGES}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a: int, *, b: float = 2.0) -> None: ...", ["f(a, *, b=2.0)"]),
        ("@dataclass(frozen=True)\nclass C:\n    a: int\n    b: int = 1",
         ["class C @dataclass(frozen=True)", "    a", "    b = 1"]),
        ("class C:\n    A = 'a'\n    _own = 1\n    def m(self, x: int = 3): ...",
         ["class C", "    A = 'a'", "    m(self, x=3)"]),
        ("class C:\n    @property\n    def p(self): ...\n    def _hidden(self): ...",
         ["class C", "    p"]),
    ],
)  # fmt: skip
def test_what_a_line_of_the_list_says(source: str, expected: list[str]) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    assert [*lines(node)] == expected
