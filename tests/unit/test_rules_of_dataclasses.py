"""Each dataclass of the product has slots, and is frozen unless something assigns to a field.

So a misspelled attribute and a change from outside are errors, and not silently another value.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def stored(nodes: Iterable[ast.AST], *, on_self: bool) -> set[str]:
    """The attributes that are assigned or deleted, of ``self`` or of something else."""
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and not isinstance(node.ctx, ast.Load)
        and on_self == (ast.unparse(node.value) == "self")
    }


def wrong(node: ast.ClassDef, elsewhere: set[str]) -> Iterator[str]:
    """What a class breaks, where ``elsewhere`` are the attributes that other code assigns."""
    flags = {
        each.arg: ast.unparse(each.value)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and "dataclass" in ast.unparse(decorator.func)
        for each in decorator.keywords
    }
    plain = {*map(ast.unparse, node.decorator_list)} & {"dataclass", "dataclasses.dataclass"}
    if not flags and not plain:
        return
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    kept = any("cached_property" in map(ast.unparse, each.decorator_list) for each in functions)
    if flags.get("slots") != "True" and not kept:
        yield f"{node.name}: slots=True"
    fields = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
    if flags.get("frozen") != "True" and not fields & (
        elsewhere | stored(ast.walk(node), on_self=True)
    ):
        yield f"{node.name}: frozen=True, as nothing assigns to a field"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@dataclass(frozen=True, slots=True)\nclass C:\n    a: int", 0),
        ("@dataclass(frozen=True, slots=False)\nclass C:\n    a: int", 1),
        ("@dataclass(frozen=True)\nclass C:\n    @cached_property\n    def a(self): ...", 0),
        ("@dataclass(frozen=False, slots=True)\nclass C:\n    a: int", 1),
        ("@dataclass(slots=True)\nclass C:\n    other: int", 0),
        ("@dataclass(slots=True)\nclass C:\n    a: int\n    def m(self):\n        self.a += 1", 0),
        ("@dataclasses.dataclass\nclass C:\n    a: int", 2),
        ("class C:\n    a: int", 0),
    ],
)
def test_what_breaks_the_rule(source: str, expected: int) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert len([*wrong(node, {"other"})]) == expected
