"""A rank that imports says that it goes on: for its time, and no longer than it takes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("hypothesis")

from portagpu.suites.search import worker

LONG_S = 60.0


class Reports:
    """A clock that moves by a second each time it is read, if it ``goes``, and what was said."""

    def __init__(self, *, goes: bool) -> None:
        self.now, self.goes, self.said, self.said_until_ready = 0, goes, 0, 0
        self.three = threading.Event()

    def monotonic(self) -> int:
        self.now += self.goes
        return self.now

    def tell(self) -> None:
        self.said += 1
        if self.said == 3:
            self.three.set()


class Ready(threading.Event):
    """What ends the reports; from then on the clock goes, so that they end in any case."""

    def __init__(self, reports: Reports) -> None:
        super().__init__()
        self.reports = reports

    def set(self) -> None:
        super().set()
        # one more may be on its way
        self.reports.said_until_ready = self.reports.said
        self.reports.goes = True


@pytest.fixture
def reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Reports:
    found = Reports(goes=request.param)
    events = SimpleNamespace(Thread=threading.Thread, Event=lambda: Ready(found))
    monkeypatch.setattr(worker, "threading", events)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=found.monotonic))
    monkeypatch.setattr(worker, "tell_alive", found.tell)
    monkeypatch.setattr(worker, "_ALIVE_S", 0.0)
    return found


@pytest.mark.parametrize("reports", [True], indirect=True)
def test_a_rank_that_hangs_says_no_more_after_its_time(reports: Reports) -> None:
    with worker._alive_for(4):
        for thread in threading.enumerate():
            if thread.name == "portagpu-alive":
                thread.join(LONG_S)
    # begun at 1, so until 5: at 2, 3 and 4
    assert reports.said == 3


@pytest.mark.parametrize("reports", [False], indirect=True)
def test_a_rank_that_is_ready_says_no_more(reports: Reports) -> None:
    with worker._alive_for(1000):
        assert reports.three.wait(LONG_S)
    assert reports.said <= reports.said_until_ready + 1
