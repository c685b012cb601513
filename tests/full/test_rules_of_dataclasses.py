"""Each dataclass of the product has slots, and is frozen unless something assigns to a field.

So a misspelled attribute and a change from outside are errors, and not silently another value."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.conftest import ROOT
from tests.unit.test_rules_of_dataclasses import stored, wrong


def test_dataclasses_have_slots_and_are_frozen_where_nothing_changes_them() -> None:
    rooms: dict[str, list[list[ast.AST]]] = defaultdict(list)
    for top in ("portagpu", "backends"):
        for path in (ROOT / top).rglob("*.py"):
            room = "/".join(path.relative_to(ROOT).parts[:2])
            rooms[room].append([*ast.walk(ast.parse(path.read_text("utf-8")))])
    found, seen = [], 0
    for room, trees in rooms.items():
        nodes = [node for tree in trees for node in tree]
        elsewhere = stored(nodes, on_self=False)
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        seen += len(classes)
        found += [f"{room}: {each}" for node in classes for each in wrong(node, elsewhere)]
    assert seen > 500
    assert not found, "\n".join(found)
