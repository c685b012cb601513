"""What users of the public names rely on: parameters, their defaults, and what data may change.

``tests/unit/public_surface.txt`` is written of the sources by ``python -m tests.support.pages``. A
change of it is a change that users see: CHANGELOG.md says so.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.unit.test_public_docstrings import definitions, is_public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.test_public_docstrings import Definition


def public_surface() -> str:
    """A line for each function, class, method and field."""
    return "\n".join([*sorted("\n".join(lines(node)) for _, node in definitions()), ""])


def lines(node: Definition) -> Iterator[str]:
    """Those of one public name."""
    if isinstance(node, ast.FunctionDef):
        yield _call(node)
        return
    flags = " ".join(
        f"@{ast.unparse(each)}" for each in node.decorator_list if "dataclass" in ast.unparse(each)
    )
    yield f"class {node.name} {flags}".rstrip()
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and is_public(each):
            properties = {"property", "cached_property"} & {*map(ast.unparse, each.decorator_list)}
            yield f"    {each.name if properties else _call(each)}"
        elif isinstance(each, ast.AnnAssign):
            value = f" = {ast.unparse(each.value)}" if each.value is not None else ""
            yield f"    {ast.unparse(each.target)}{value}"
        elif isinstance(each, ast.Assign) and not ast.unparse(each.targets[0]).startswith("_"):
            yield f"    {ast.unparse(each)}"


def _call(node: ast.FunctionDef) -> str:
    """``name(a, b=1)``, without types."""
    given = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(given, ast.FunctionDef)
    for each in ast.walk(given.args):
        if isinstance(each, ast.arg):
            each.annotation = None
    return f"{node.name}({ast.unparse(given.args)})"
