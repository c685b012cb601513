"""What the child process knows while it runs: its channel, the device, and the case at hand."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.errors import Unsupported
from portagpu.suite.cases import NotClaimed, NotHere, RankFailed, WrongError
from portagpu.suite.machine import DeviceUnderTest, TargetClaims

if TYPE_CHECKING:
    from portagpu.contract import Backend
    from portagpu.subprocesses import Channel
    from portagpu.world import Ranks


@dataclass(slots=True)
class Session:
    """The state of one run: the channel, the device, and the case at hand."""

    channel: Channel | None = None
    backend: str | None = None
    index: int = 0
    gpu: Backend | None = None
    ranks: Ranks | None = None
    timeout_s: float = 60.0
    ids: dict[str, str] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    observed: list[str] = field(default_factory=list)
    shared_world: dict[str, str] | None = None
    """How the world that the case shared with its other parameters failed, where it did."""
    problems: list[dict[str, str]] = field(default_factory=list)

    def send(self, **message: Any) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def receive(self) -> dict[str, Any] | None:
        """The next request, or None when there will be none."""
        return None if self.channel is None else self.channel.receive()

    def device(self) -> Backend:
        if self.gpu is None:
            from portagpu.registry import VARIABLE, backend, select

            if self.backend:
                # the default too, also of this process's ranks: functions are cases as well
                os.environ[VARIABLE] = self.backend
            # the current one, because functions without a handle are judged by it too
            self.gpu = select(self.index) if self.index else backend()
        return self.gpu

    def rank_server(self) -> Ranks:
        """The server of ranks, which imports torch while other cases run."""
        if self.ranks is None:
            from portagpu.world import Ranks

            server = Ranks()
            server.start()
            self.ranks = server
        return self.ranks


SESSION: Final = pytest.StashKey[Session]()
"""Where pytest's config keeps the session."""


def machine_of(gpu: Backend) -> DeviceUnderTest:
    """The device as the parent judges it.

    Raises TypeError for a name or a version that is no text.
    """
    texts = {"product": gpu.product, "vendor": gpu.vendor, **gpu.versions}
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise TypeError(f"its {name} is {value!r} instead of text or None")
    return DeviceUnderTest(
        backend=gpu.name,
        name=str(gpu.device),
        count=1 if gpu.plugin.shared else gpu.device_count(),
        product=gpu.product,
        vendor=gpu.vendor,
        arch=str(gpu.arch),
        capabilities=frozenset(map(str, gpu.capabilities)),
        target=None if gpu.target is None else TargetClaims.of(gpu.target),
        start_s=float(gpu.plugin.start_s),
        overrides=tuple(gpu.plugin.overrides),
        versions={**gpu.versions, "comm": gpu.comm.version},
    )


def what_happened(when: str | None, error: BaseException) -> tuple[str, str]:
    """The kind of outcome, and its reason as a sentence of one line.

    "failed" is an assertion about a value, "raised" any other error, "lost" a rank's death or hang.
    """
    text = str(error).strip()
    first = text.splitlines()[0].strip() if text else ""
    named = f"raised {type(error).__name__}{': ' + first if first else ''}"
    if isinstance(error, NotHere):
        return "not-here", first
    if isinstance(error, NotClaimed):
        return "not-claimed", first
    if isinstance(error, pytest.skip.Exception):
        return "error", f"the case skipped itself, which hides what it should judge: {first}"
    if when != "call" and not isinstance(error, Unsupported):
        return "error", f"{when} {named}"
    if isinstance(error, Unsupported):
        return "unsupported", first
    if isinstance(error, RankFailed):
        return error.kind, first
    if isinstance(error, WrongError):
        return "raised", first
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        return "failed", first or "an assertion without a sentence did not hold"
    return "raised", named
