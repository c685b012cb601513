"""Attributes of public classes have types that every type checker reads in the same way.

A checker infers the type of ``self.x = f(y)`` by rules of its own, so ``pyright --verifytypes``
calls it ambiguous and mypy accepts it. Here each such attribute needs an annotation.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.pages.test_docs import public_modules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def homes(module: str) -> Iterator[tuple[str, str]]:
    """(module, name) of all that a public module has: its own classes, and what it imports."""
    path = file_of(module)
    stub = path.with_suffix(".pyi")
    for node in ast.parse((stub if stub.exists() else path).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield module, node.name
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("portagpu."):
            for each in node.names:
                if each.name == "*":
                    yield from homes(str(node.module))
                else:
                    yield str(node.module), each.name


def ambiguous(node: ast.ClassDef) -> list[str]:
    """The public attributes that only their values give a type."""
    stated, assigned = set(), {}
    for each in ast.walk(node):
        if isinstance(each, ast.AnnAssign):
            stated.add(each.target.id if isinstance(each.target, ast.Name) else name(each.target))
        elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
            given = {arg.arg for arg in (*each.args.args, *each.args.kwonlyargs)}
            for line in ast.walk(each):
                if isinstance(line, ast.Assign):
                    plain = isinstance(line.value, ast.Name) and line.value.id in given
                    plain = plain or isinstance(line.value, ast.Constant)
                    targets = [part for target in line.targets for part in parts(target)]
                    assigned.update({name(part): plain for part in targets})
    return sorted(
        each
        for each, plain in assigned.items()
        if each and not each.startswith("_") and not plain and each not in stated
    )


def parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple) else [target]


def name(target: ast.expr) -> str:
    """The attribute in ``self.NAME``; empty for another target."""
    is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    return target.attr if isinstance(target, ast.Attribute) and is_own else ""


def test_attributes_of_public_classes_have_annotations() -> None:
    found, seen = [], 0
    for module, wanted in sorted({each for public in public_modules() for each in homes(public)}):
        path = file_of(module)
        for node in ast.parse(path.read_text("utf-8")).body if path.exists() else ():
            if isinstance(node, ast.ClassDef) and node.name == wanted:
                seen += 1
                found += [f"{module}.{wanted}.{each}" for each in ambiguous(node)]
    assert seen > 100
    assert not found, "annotate these attributes where __init__ assigns them"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("self.a = make(x)", ["a"]),
        ("self.a, self.b = make(x)", ["a", "b"]),
        ("self.a: int = make(x)", []),
        ("self.a = x", []),
        ("self.a = 1", []),
        ("self._a = make(x)", []),
        ("a = make(x)", []),
    ],
)
def test_what_is_ambiguous(line: str, names: list[str]) -> None:
    tree = ast.parse(f"class C:\n    def __init__(self, x: int) -> None:\n        {line}\n")
    (node,) = tree.body
    assert isinstance(node, ast.ClassDef)
    assert ambiguous(node) == names
