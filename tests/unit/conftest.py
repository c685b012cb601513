"""Unit tests start no process and import no torch: what they call is one part alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.suites.conformance import engine
from tests.support.costs import STARTS
from tests.support.owned import kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.suites.conformance.runner import Collected

_running = False


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if _running and event in STARTS:
        raise AssertionError(f"{event}: a unit test starts no process (see tests/README.md)")


sys.addaudithook(_refuse)


@pytest.fixture(scope="session", autouse=True)
def _listed() -> Iterator[None]:
    """The list of the suite's cases, which a child makes, is data here: one child a worker."""

    def listing(*given: Any) -> Collected:
        global _running
        was, _running = _running, False
        with kept():
            found = listed(*given)
        _running = was
        return found

    listed = engine.listed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "listed", listing)
        yield


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
