"""Other distributions' code on a machine that is busy: what is only slow is not called broken."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import BackendNotFound
from portagpu.base.patience import BusyMachine, Patience
from portagpu.base.plugins import start_call
from portagpu.devices import discovery
from tests.support.fake_plugins import FakePlugin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _patience(folder: Path, load: float) -> Patience:
    """That of a machine with two CPUs and a Linux that does not report which processes wait."""
    return Patience(proc=folder, load=lambda: load, cpus=lambda: 2)


@pytest.mark.parametrize(("load", "is_busy"), [(1.0, False), (8.0, True)])
def test_a_call_that_is_late_on_a_busy_machine_says_so(
    tmp_path: Path, load: float, is_busy: bool
) -> None:
    wait = start_call(threading.Event().wait, 0.05, _patience(tmp_path, load))
    value, problem = wait("what hangs")
    assert value is None
    assert isinstance(problem, BusyMachine) is is_busy
    assert problem.startswith("did not answer within 0.05 s")
    assert ("on a busy machine (load 8.0 on 2 CPUs; waited 75 % of the last " in problem) is is_busy
    assert problem.endswith("for a CPU): try again") is is_busy


def test_a_backend_that_was_late_on_a_busy_machine_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, answers = BusyMachine("did not answer within 10 s on a busy machine: try again"), 0

    class Point:
        def load(self) -> Any:
            return FakePlugin("slow")

    def call(load: Callable[[], Any], limit_s: float, what: str) -> tuple[Any, str]:
        nonlocal answers
        answers += 1
        return (None, late) if answers == 1 else (load(), "")

    candidate = discovery.Candidate("slow", "third", Point())  # type: ignore[arg-type]
    monkeypatch.setattr(discovery, "_candidates", {"slow": candidate})
    monkeypatch.setattr(discovery, "_plugins", {})
    monkeypatch.setattr(discovery, "_load_failures", {})
    monkeypatch.setattr(discovery, "call_quietly", call)
    with pytest.raises(BackendNotFound) as caught:
        discovery.plugin("slow")
    assert "cannot be used" not in str(caught.value)
    assert "was not ready in time" in str(caught.value)
    assert caught.value.reasons == {"slow": f"from third {late}"}
    assert discovery.plugin("slow").name == "slow"
