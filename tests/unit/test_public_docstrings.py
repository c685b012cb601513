"""Each public function with two or more parameters documents each of them, as field lists.

``docs/book`` renders ``:param name:``, ``:returns:`` and ``:raises Error:`` of Sphinx. Only sources
are read, so that no module is imported.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from tests.pages.test_docs import public_modules
from tests.unit.test_public_types import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Definition: TypeAlias = ast.FunctionDef | ast.ClassDef

FEW: Final = {
    "portagpu.devices.discovery": ("samplers",),
    "portagpu.devices.rng": ("same_numbers_up_to",),
    "portagpu.reports.junit": ("render", "write_junit"),
    "portagpu.runs.results": (),
    "portagpu.traces.analysis": (),
    "portagpu.traces.analysis.reading": ("read",),
}
"""Modules without a list of names -> those that docs/design.md or another page names."""
OF_PAGES: Final = ("portagpu.runs.results.run", *FEW)
"""Modules that a page names, with those of the list of docs/design.md that need FEW."""
MIN_PARAMETERS: Final = 2
FIELD: Final = re.compile(r"^ *:param (\w+):(.*)$", re.MULTILINE)
OTHER_FORM: Final = re.compile(r"^ *(?:Args|Parameters|Returns|Raises):?$|^ *-{3,}$", re.MULTILINE)


@cache
def body_of(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text("utf-8")).body


def names_of(module: str) -> list[str]:
    """The public names of a module: of its stub, else its ``__all__``."""
    if module in FEW:
        return [*FEW[module]]
    path = file_of(module)
    stub = path.with_suffix(".pyi")
    if stub.exists():
        imports = [node for node in body_of(stub) if isinstance(node, ast.ImportFrom)]
        pairs = [(str(node.module), each.name) for node in imports for each in node.names]
        return [
            found for home, name in pairs for found in (names_of(home) if name == "*" else [name])
        ]
    for node in body_of(path):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(each) for each in ast.literal_eval(node.value)]
    raise AssertionError(f"{module} lists no public names: add them to FEW")


def definition(module: str, name: str) -> tuple[str, Definition] | None:
    """The module that defines a name, and the definition; None for a constant or a module."""
    path = file_of(module)
    found = [
        node
        for node in body_of(path)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    ]
    if found:
        return module, found[-1]  # after its overloads
    stub = path.with_suffix(".pyi")
    for source in [each for each in (stub, path) if each.exists()]:
        for node in body_of(source):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("portagpu"):
                continue
            for each in node.names:
                home = str(node.module)
                if each.name == "*" and name in names_of(home):
                    return definition(home, name)
                is_module = file_of(f"{home}.{each.name}").exists()
                if (each.asname or each.name) == name and not is_module:
                    return definition(home, each.name)
    return None


def definitions() -> Iterator[tuple[str, Definition]]:
    """Every public function and class, and the bases of the classes, with the module of each."""
    modules = {*public_modules(), *OF_PAGES}
    to_do = [
        each for name in sorted(modules) for each in (definition(name, n) for n in names_of(name))
    ]
    seen = set()
    while to_do:
        found = to_do.pop()
        if found is None or (found[0], found[1].name) in seen:
            continue
        module, node = found
        seen.add((module, node.name))
        yield found
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            base = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(base, ast.Name):
                to_do.append(definition(module, base.id))


def parameters(function: ast.FunctionDef, *, method: bool) -> list[str]:
    """Their names, without that of the object or the class."""
    given = function.args
    named = [*given.posonlyargs, *given.args]
    static = any(ast.unparse(each) == "staticmethod" for each in function.decorator_list)
    several = [each for each in (given.vararg, given.kwarg) if each is not None]
    own = named[1:] if method and not static else named
    return [each.arg for each in (*own, *given.kwonlyargs, *several)]


def is_public(node: ast.stmt) -> bool:
    """Whether it is a method that a user of the class calls."""
    if not isinstance(node, ast.FunctionDef) or "overload" in map(ast.unparse, node.decorator_list):
        return False
    return not node.name.startswith("_") or node.name in ("__init__", "__call__")


def problems(node: Definition) -> Iterator[str]:
    """What is wrong in the docstrings of a function, or of a class and its methods."""
    if isinstance(node, ast.FunctionDef):
        yield from _differences(node.name, ast.get_docstring(node), parameters(node, method=False))
        return
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and is_public(each)]
    for each in methods:
        # of a constructor the class has the docstring
        owner = node if each.name == "__init__" else each
        name = f"{node.name}.{each.name}"
        yield from _differences(name, ast.get_docstring(owner), parameters(each, method=True))


def _differences(name: str, docstring: str | None, has: list[str]) -> Iterator[str]:
    documented = dict(FIELD.findall(docstring or ""))
    if OTHER_FORM.search(docstring or ""):
        yield f"{name}: write :param NAME:, :returns: and :raises ERROR:"
    yield from (f"{name} has no parameter {each}" for each in documented if each not in has)
    yield from (f"{name}: {each} is empty" for each, text in documented.items() if not text.strip())
    if len(has) >= MIN_PARAMETERS:
        yield from (f"{name}: document {each}" for each in has if each not in documented)


def test_public_functions_document_their_parameters() -> None:
    found = [*definitions()]
    names = {f"{module}.{node.name}" for module, node in found}
    expected = {
        "portagpu.devices.contract.Backend",
        "portagpu.devices.functions.graph",
        "portagpu.devices.training.Training",
        "portagpu.facts.visible.resolution.resolve",
        "portagpu.runs.results.run.Run",
        "portagpu.train.kernels.ops.softmax",
    }
    assert expected <= names
    assert len(names) > 250
    wrong = [f"{module}.{each}" for module, node in found for each in problems(node)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a, b):\n    'Do it.'", ["f: document a", "f: document b"]),
        ("def f(a, *, b):\n    '''Do it.\n\n    :param a: one.\n    '''", ["f: document b"]),
        ("def f(a, *b, **c):\n    '''Do it.\n\n    :param a: one.\n    :param b: two.\n    '''",
         ["f: document c"]),
        ("def f(a):\n    'Do it.'", []),
        ("def f(a):\n    '''Do it.\n\n    :param b: one.\n    '''", ["f has no parameter b"]),
        ("def f(a):\n    '''Do it.\n\n    :param a:\n    '''", ["f: a is empty"]),
        ("def f(a):\n    '''Do it.\n\n    Args:\n        a: one.\n    '''",
         ["f: write :param NAME:, :returns: and :raises ERROR:"]),
        ("class C:\n    '''One.\n\n    :param a: one.\n    '''\n    def __init__(self, a, b): ...",
         ["C.__init__: document b"]),
        ("class C:\n    def _own(self, a, b): ...\n    def m(self, a): ...", []),
        ("class C:\n    @staticmethod\n    def m(a, b): ...",
         ["C.m: document a", "C.m: document b"]),
    ],
)  # fmt: skip
def test_what_is_a_problem(source: str, expected: list[str]) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    assert [*problems(node)] == expected


def test_each_module_in_the_list_of_few_has_no_list_of_its_own() -> None:
    for module in FEW:
        assert "\n__all__" not in file_of(module).read_text("utf-8"), f"take {module} out of FEW"
