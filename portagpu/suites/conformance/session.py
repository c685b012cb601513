"""The state of the child process: its channel, the device, and the current case."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.errors import Unsupported
from portagpu.suites.conformance.cases import NotClaimed, NotHere, RankFailed, WrongError
from portagpu.suites.conformance.messages import DeviceUnderTest, Searches, TargetClaims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.base.subprocesses import Channel
    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Ranks


@dataclass(slots=True)
class Session:
    """The state of one run in the child process."""

    channel: Channel | None = None
    folder: str = "/"
    """The working folder in which every case begins."""
    backend: str | None = None
    index: int = 0
    gpu: Backend | None = None
    ranks: Ranks | None = None
    reused: int = 0
    """How often a case took its values from a world that had run for another one."""
    timeout_s: float = 60.0
    upstream: bool = False
    """Whether the cases are PyTorch's own tests."""
    searches: Searches = field(default_factory=Searches)
    slow_areas: list[str] = field(default_factory=list)
    """The areas of random programs that are slow to load, which begins with ``quiet_from``."""
    quiet_from: str = ""
    """The node of the case with which a time begins in which no case needs ranks."""
    ids: dict[str, str] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    observed: list[str] = field(default_factory=list)
    shared_world: dict[str, str] | None = None
    """How the world that the case shared with its other parameters failed, or None."""
    problems: list[dict[str, str]] = field(default_factory=list)

    @property
    def worlds(self) -> int:
        """From how many worlds cases have had values or failures."""
        return self.reused + (0 if self.ranks is None else self.ranks.worlds)

    def send(self, **message: Any) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def receive(self) -> dict[str, Any] | None:
        """The next request, or None at the end."""
        return None if self.channel is None else self.channel.receive()

    def device(self) -> Backend:
        if self.gpu is None:
            from portagpu.devices.registry import VARIABLE, backend, select

            if self.backend:
                # also the default of this process and its ranks: functions are cases as well
                os.environ[VARIABLE] = self.backend
            # make it the current device, which functions without a handle use
            self.gpu = select(self.index) if self.index else backend()
        return self.gpu

    def rank_server(self) -> Ranks:
        """The server that forks ranks; it imports torch while other cases run."""
        if self.ranks is None:
            from portagpu.runs.world import Ranks

            server = Ranks()
            server.start()
            self.ranks = server
        return self.ranks

    def load_ahead(self, areas: list[str], files: Sequence[str] = ()) -> None:
        """Have the server of ranks load what the programs of those areas need, and these files."""
        if areas or files:
            place = "portagpu.suites.search.worker:load_areas"
            given = {"names": areas, "files": list(files)}
            self.rank_server().prepare(place, backend=self.backend, **given)


SESSION: Final = pytest.StashKey[Session]()
"""Where pytest's config keeps the session."""


def describe_device(gpu: Backend) -> DeviceUnderTest:
    """The description of the device for the parent.

    Raises TypeError if a name or a version is not text.
    """
    identity = {"uuid": gpu.uuid, "pci": gpu.pci}
    texts = {"product": gpu.product, "vendor": gpu.vendor, **identity, **gpu.versions}
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise TypeError(f"its {name} is {value!r} instead of text or None")
    return DeviceUnderTest(
        backend=gpu.name,
        name=str(gpu.device),
        count=1 if gpu.plugin.shared else gpu.device_count(),
        index=gpu.index,
        uuid=gpu.uuid,
        pci=gpu.pci,
        product=gpu.product,
        vendor=gpu.vendor,
        arch=str(gpu.arch),
        capabilities=frozenset(map(str, gpu.capabilities)),
        target=None if gpu.target is None else TargetClaims.from_target(gpu.target),
        start_s=float(gpu.plugin.start_s),
        overrides=tuple(gpu.plugin.overrides),
        versions={**gpu.versions, "comm": gpu.comm.version},
    )


def outcome_of_error(when: str | None, error: BaseException) -> tuple[str, str]:
    """The kind of outcome, and its reason in one line.

    "failed" is an assertion about a value, "raised" any other error, "lost" a rank that died,
    "hung" one that hung, "starved" one that hung on a busy machine.
    """
    text = str(error).strip()
    first = text.splitlines()[0].strip() if text else ""
    named = f"raised {type(error).__name__}{': ' + first if first else ''}"
    if isinstance(error, NotHere):
        return "not-here", first or named
    if isinstance(error, NotClaimed):
        return "not-claimed", first or named
    if isinstance(error, pytest.skip.Exception):
        return "error", f"the case skipped itself, which hides what it should judge: {first}"
    if when != "call" and not isinstance(error, Unsupported):
        return "error", f"{when} {named}"
    if isinstance(error, Unsupported):
        return "unsupported", first or named
    if isinstance(error, RankFailed):
        return error.kind, first
    if isinstance(error, WrongError):
        return "raised", first
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        return "failed", first or "an assertion without a sentence did not hold"
    return "raised", named
