"""The status of a child of the helper process: asked for only where that process can answer."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.base.errors import PortagpuError
from portagpu.runs.world import client


def raises(*_: object) -> None:
    raise PortagpuError("the rank server stopped answering and was ended")


@pytest.mark.parametrize(
    ("running", "is_child", "wait", "status", "signals", "asked"),
    [
        (True, True, lambda: None, 7, [(12, signal.SIGCONT)], 1),
        # a helper process that has ended: its number may be another process's now
        (False, True, lambda: None, -signal.SIGKILL, [], 0),
        # another one has taken its place, which knows nothing of the child
        (True, False, lambda: None, -signal.SIGKILL, [], 0),
        (False, False, lambda: None, -signal.SIGKILL, [], 0),
        (True, True, raises, -signal.SIGKILL, [(12, signal.SIGCONT)], 0),
    ],
)
def test_the_end_of_a_helper_process_is_that_of_its_children(
    running: bool,
    is_child: bool,
    wait: Any,
    status: int,
    signals: list[tuple[int, int]],
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, messages = list[Any](), list[Any]()
    server: Any = SimpleNamespace(running=running, pid=12)
    ranks: Any = SimpleNamespace(
        _child=server if is_child else SimpleNamespace(running=True, pid=13),
        _wait_until_prepared=wait,
        _exchange=lambda _, message: messages.append(message) or {"status": 7},
    )
    monkeypatch.setattr(client, "signal_process", lambda pid, number: sent.append((pid, number)))
    assert client.Ranks._take_status(ranks, server, 99) == status
    assert sent == signals
    assert messages == [{"take": 99}] * asked
