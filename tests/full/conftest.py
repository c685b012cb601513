"""Children of the tests of this tier are forked where that makes no difference to them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _forked(request: pytest.FixtureRequest) -> None:
    """What is to be proved of the start itself, a module or a test proves with ``started``."""
    if not any("started" in mark.args for mark in request.node.iter_markers("usefixtures")):
        request.getfixturevalue("forked")
