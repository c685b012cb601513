"""A plugin written for contract 1.x as an installed wheel, and old names in a fresh process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import build_wheel, install
from tests.process.test_moved import OLD_PLUGIN, TRAINS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


@pytest.mark.torch
def test_the_example_of_before_the_move_works_unchanged(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    wheel = build_wheel(OLD_PLUGIN, tmp_path / "wheel")
    site = install(wheel, tmp_path / "site")
    found: dict[str, Any] = json.loads(child("-c", TRAINS, path=[site]).ok())
    assert found.pop("warned") == [
        "portagpu.formats",
        "portagpu.readings",
        "portagpu.variables",
        "portagpu.vendors",
    ]
    assert found == {
        "name": "demo",
        "contract": [1, 1],
        "masks": ["demo"],
        "wait": {"DEMO_WAIT": "1"},
        "reading": "Demo One",
        "helpers": "portagpu.devices.collectives.helpers",
        "grad": [[2.0, 2.0, 2.0, 2.0]],
    }
