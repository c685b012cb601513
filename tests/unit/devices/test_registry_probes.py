"""What backends' probes find, whatever a third party's probe does."""

from __future__ import annotations

import threading

import pytest

from portagpu.base.patience import Limits
from portagpu.devices import discovery as candidates
from portagpu.facts.readings import Findings, Reading
from portagpu.machine.inventory.sources import Live
from tests.support.fake_plugins import FakePlugin
from tests.support.registry_state import forget, use_plugins

FOUND = Findings(kind="good", readings=(Reading(source="good", vendor="nvidia", uuid="GPU-1"),))


class Probed(FakePlugin):
    """A plugin whose probe is a given call."""

    def __init__(self, name, call):
        super().__init__(name)
        self.call = call

    def probe(self):
        return self.call()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    forget(monkeypatch)


def fails(error):
    def call():
        raise error

    return call


def test_a_plugin_without_a_probe_finds_nothing(monkeypatch):
    use_plugins(monkeypatch, FakePlugin("old"))
    assert candidates.probes() == {"old": Findings(kind="old")}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (fails(RuntimeError("driver\nnot loaded")), "raised RuntimeError: driver not loaded"),
        (fails(SystemExit(3)), "raised SystemExit: 3"),
        (lambda: {"kind": "x"}, "is {'kind': 'x'} instead of portagpu Findings"),
        (lambda: None, "is None instead of portagpu Findings"),
    ],
)
def test_a_probe_that_fails_is_its_own_problem(monkeypatch, call, words):
    use_plugins(monkeypatch, Probed("bad", call), Probed("good", lambda: FOUND))
    found = candidates.probes()
    assert found["good"] == FOUND
    assert found["bad"].problems == (f"the probe of the backend 'bad' {words}",)


def test_a_probe_that_hangs_is_left_running(monkeypatch):
    monkeypatch.setattr(
        candidates, "LIMITS", Limits(probe_s=0.2)
    )  # allowed: time without a CPU does not count
    end = threading.Event()
    use_plugins(monkeypatch, Probed("slow", lambda: end.wait(60)), Probed("good", lambda: FOUND))
    found = candidates.probes()
    end.set()
    assert found["good"] == FOUND
    assert "did not answer within 0.2 s" in found["slow"].problems[0]


def test_probes_run_at_the_same_time(monkeypatch):
    meet = threading.Barrier(3, timeout=60)

    def call():
        meet.wait()
        return FOUND

    use_plugins(monkeypatch, *(Probed(name, call) for name in "abc"))
    assert all(found == FOUND for found in candidates.probes().values()), "one waited for another"


def test_a_live_machine_has_what_probes_find(monkeypatch):
    use_plugins(monkeypatch, Probed("good", lambda: FOUND), FakePlugin("old"))
    kinds = [each.kind for each in Live().findings()]
    assert kinds[0] == "good"
    assert "old" not in kinds, "a source that says nothing is not a source"
