"""A node that is unlike the first one is named once for each thing, and no other is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.reports.fleet.run import _Runner


@pytest.mark.parametrize(
    ("nodes", "noted"),
    [
        ([("n1", "h100", "1.0"), ("n2", "h100", "1.0"), ("n3", "h100", "1.0")], []),
        (
            [("n1", "h100", "1.0"), ("n2", "h200", "1.0"), ("n3", "h200", "1.0")],
            ["n2 has target h200, and n1 h100: compare them with care"],
        ),
        (
            [("n1", "h100", "1.0"), ("n2", "h200", "1.1"), ("n3", "b200", "1.0")],
            [
                "n2 has target h200, and n1 h100: compare them with care",
                "n2 has portagpu 1.1, and n1 1.0: compare them with care",
                "n3 has target b200, and n1 h100: compare them with care",
            ],
        ),
        (
            [("n1", None, None), ("n2", "h200", None)],
            ["n2 has target h200, and n1 none that is known: compare them with care"],
        ),
    ],
)
def test_what_differs_from_the_first_node_is_said_once(
    nodes: list[tuple[str, str | None, str | None]], noted: list[str]
) -> None:
    said: list[str] = []
    progress: Any = SimpleNamespace(note=said.append)
    nothing: Any = None
    runner = _Runner(nothing, progress, nothing, "", nothing)
    for node, target, version in nodes:
        step: Any = SimpleNamespace(nodes=(node,))
        info: Any = SimpleNamespace(target=target, versions={"portagpu": version})
        runner._compare(step, info)
    assert said == noted
