"""Unit tests start no process and import no torch: what they call is one part alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.costs import STARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

_running = False


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if _running and event in STARTS:
        raise AssertionError(f"{event}: a unit test starts no process (see tests/README.md)")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a process or an import of torch fail the test."""
    global _running
    if "torch" not in sys.modules:
        # as in an environment without it
        monkeypatch.setitem(sys.modules, "torch", None)
    _running = True
    yield
    _running = False
