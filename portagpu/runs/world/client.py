"""The client of the rank server: a suite or gate requests worlds and gets their outcomes."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from portagpu.base.documents import decode
from portagpu.base.errors import MissingDependency, PortagpuError
from portagpu.base.patience import LIMITS, Starvation
from portagpu.base.plugins import install
from portagpu.base.subprocesses import BrokenMessage, Subprocess
from portagpu.base.subprocesses.fork import Forked, ForkHere, can_watch_forks, request_of
from portagpu.base.subprocesses.start import python_environment, signal_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from portagpu.base.patience import Watch
    from portagpu.base.subprocesses.fork import Forker, Process, Program


class RankState(StrEnum):
    """How a rank ended."""

    DONE = "done"
    RAISED = "raised"
    DIED = "died"
    HUNG = "hung"
    STOPPED = "stopped"
    """Ended by the server, because another rank had failed."""
    LOST = "lost"
    """Raised, died or hung, as the request expected."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """How one rank ended: its value, or its error and where it stopped."""

    rank: int
    state: RankState
    value: Any = None
    error: str = ""
    where: str = ""
    """The frame in which a rank hung: ``function (file:line)``."""
    step: str = ""
    """The last step that the rank announced."""
    output: str = ""
    """The end of what it printed."""
    starved: Starvation | None = None
    """How much ranks waited for a CPU in the later half of the time, of one that neither returned
    nor was lost: since the last sign of life where it hung, else since the world began."""

    @property
    def is_starved(self) -> bool:
        """Whether it hung while ranks waited for a CPU, so that it may only have been slow."""
        hung = self.state is RankState.HUNG
        return hung and self.starved is not None and self.starved.is_starved


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    """How a world ended; ``ranks`` are in order."""

    function: str
    ranks: tuple[RankOutcome, ...]
    duration_s: float
    culprit: int | None = None
    """The rank that failed first, or that the others waited for; None when unknown."""

    @property
    def ok(self) -> bool:
        """Whether every rank returned a value, except those expected to be lost."""
        return self.first_failure is None

    @property
    def values(self) -> list[Any]:
        """The value of each rank, in order; None for one that was expected to be lost.

        Raises PortagpuError when another rank did not return.
        """
        if not self.ok:
            raise PortagpuError(self.sentence)
        return [outcome.value for outcome in self.ranks]

    @property
    def first_failure(self) -> RankOutcome | None:
        """The culprit, or the first failed rank where it is unknown; None without a failure."""
        failed = [each for each in self.ranks if each.state not in (RankState.DONE, RankState.LOST)]
        return next(
            (each for each in failed if each.rank == self.culprit), next(iter(failed), None)
        )

    @property
    def sentence(self) -> str:
        """What went wrong, naming the rank; empty when nothing did."""
        first = self.first_failure
        if first is None:
            return ""
        after = f" after {first.step}" if first.step else ""
        if first.state is not RankState.HUNG:
            return f"rank {first.rank} {first.error or first.state.value}{after}"
        busy = first.starved.remark if first.starved is not None else ""
        stood = f"{after}{' in ' + first.where if first.where else ''}{busy}"
        if self.culprit is not None:
            return f"rank {first.rank} hung{stood}"
        hung = [
            each.rank for each in self.ranks if each.state not in (RankState.DONE, RankState.LOST)
        ]
        return f"ranks {', '.join(map(str, hung))} hung{stood}"


@dataclass(slots=True)
class Ranks:
    """The helper process, started on first use; use it as a context manager.

    ``environment`` is added to the environment of every rank, without the variables that begin with
    a text of ``leave_out``. It is a forker of :class:`portagpu.base.subprocesses.Subprocess`: of
    children that need torch."""

    environment: Mapping[str, str] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    worlds: int = 0
    """How many worlds have run."""
    _child: Subprocess | None = None
    _was_used: bool = False
    _is_ready: bool = False
    """Whether the helper process has imported torch."""
    _preparing: int = 0
    """How many calls of :meth:`prepare` the helper process has not answered yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the helper process. Do not wait until it has imported torch.

        :raises MissingDependency: without torch.
        """
        if self._child is not None:
            if self._child.running:
                return
            self.close()
        from portagpu.facts.torchbuild import torch_build

        if torch_build() is None:
            raise MissingDependency(
                f"ranks need torch: {install('torch')}, or your vendor's torch wheel"
            )
        self._was_used, self._is_ready, self._preparing = False, False, 0
        self._child = _take_ahead(self) or self._new_server()

    def _new_server(self, forker: Forker | None = None) -> Subprocess:
        return Subprocess(
            "portagpu.runs.world.server",
            environment=self.environment,
            leave_out=self.leave_out,
            folder=None,
            prints=False,
            forker=forker,
        )

    def fork(self, program: Program) -> Process | None:
        """Have the helper process fork a child; None where the program has to be started instead.

        That is where torch does not import, and where the child must see variables that the helper
        process did not see when it imported torch.
        """
        try:
            self._wait_until_prepared()
            server = self._child
            if server is None or server.environment != program.variables or not can_watch_forks():
                return None
            pid = self._exchange(server, {"fork": request_of(program)})["forked"]
            if pid is None:
                return None
            return Forked(pid, lambda: self._take_status(server, pid), lambda: server.running)
        except (PortagpuError, OSError):
            return None

    def _take_status(self, server: Subprocess, pid: int) -> int:
        """The status of an ended child of the helper process, whose end is that of the child."""
        with contextlib.suppress(PortagpuError):
            if server.running and server is self._child:
                # one that is stopped would not answer
                signal_process(server.pid, signal.SIGCONT)
                self._wait_until_prepared()
            if server.running and server is self._child:
                return int(self._exchange(server, {"take": pid})["status"])
        return -signal.SIGKILL

    def _exchange(self, server: Subprocess, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a message. Without one end the helper process, and raise PortagpuError."""
        try:
            server.send(message)
            return self._receive(server, server.watch(LIMITS.reply_s))
        except TimeoutError:
            self.close()
            raise PortagpuError("the rank server stopped answering and was ended") from None
        except BaseException:
            self.close()
            raise

    def prepare(self, function: str, *, backend: str | None, **arguments: Any) -> None:
        """Have the helper process call a function before the next world.

        It imports what ranks then need not import each, where ranks share the device: a GPU's do it
        themselves, for a process that is forked from one with an open GPU cannot use it. Do not
        wait for it. Where it raises, ends the process or takes too long, ranks go without, and
        report what is wrong.

        :param function: "package.module:name" or "/path/file.py:name".
        :param backend: the backend of the ranks; None is the default one.
        :param arguments: those of the function: values that JSON holds.
        """
        self.start()
        if self._child is not None:
            self._child.send({"prepare": function, "backend": backend, "arguments": arguments})
            self._preparing += 1

    def _wait_until_prepared(self) -> None:
        """Wait for what was asked ahead, and start again without it where that does not return."""
        self._wait_until_ready()
        while self._child is not None and self._preparing:
            self._preparing -= 1
            try:
                message = self._child.receive(self._child.watch(LIMITS.prepare_s))
            except TimeoutError:
                message = None
            if message is None:
                self.close()
                self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """Wait until the helper process has imported torch. Raises PortagpuError without one."""
        self.start()
        if self._child is None or self._is_ready:
            return
        watch = self._child.watch(LIMITS.start_s)
        try:
            self._receive(self._child, watch)
        except TimeoutError:
            problem = watch.problem
            self.close()
            raise PortagpuError(f"the rank server {problem}") from None
        except PortagpuError:
            self.close()
            raise
        self._is_ready = True

    @staticmethod
    def _receive(child: Subprocess, watch: Watch) -> dict[str, Any]:
        """A message of the server; raises PortagpuError where it ends or cannot run."""
        message = child.receive(watch)
        if message is None:
            raise PortagpuError(f"the rank server {child.how_it_ended()}")
        if "fatal" in message:
            raise PortagpuError(f"the rank server cannot run: {message['fatal']}")
        return message

    def run(
        self,
        function: str,
        world: int = 1,
        *,
        arguments: Mapping[str, Any] | None = None,
        backend: str | None = None,
        indices: Sequence[int] | None = None,
        group: bool = True,
        lost: Sequence[int] = (),
        timeout_s: float = 60.0,
        most_s: float | None = None,
        on_step: Callable[[int, str, dict[str, Any]], None] | None = None,
    ) -> WorldOutcome:
        """Run ``function(rank, **arguments)`` on ``world`` ranks and wait for all of them.

        Ranks have ``Plugin.start_s`` and ``timeout_s`` to open their devices and join, then
        ``timeout_s``. The time that they wait for a CPU does not count
        (:mod:`portagpu.base.patience`). After that every remaining rank is killed.

        :param function: "package.module:name" or "/path/to/file.py:name". It gets a
            :class:`portagpu.runs.world.Rank` and returns something that JSON can hold.
        :param world: The number of ranks.
        :param arguments: Further arguments of the function, as JSON can hold them.
        :param backend: The name of the backend; by default the one that the ranks choose.
        :param indices: The device of each rank, ``world`` of them; by default its rank.
        :param group: Whether torch.distributed is initialised on the backend's library.
        :param lost: Ranks that the function ends or stops on purpose: their end stops no other
            rank, and they are ended when the others have returned.
        :param timeout_s: The limit in seconds.
        :param most_s: With it the limit begins again whenever a rank announces a step or reports
            that it is alive, up to this many seconds in all: a rank that hangs is silent.
        :param on_step: Called with the rank, name and data of every step that a rank announces.
        :returns: What each rank returned or how it ended, and the rank that is to blame.
        :raises ValueError: The arguments contradict each other.
        :raises MissingDependency: torch is not installed.
        """
        if world < 1:
            raise ValueError(f"a world has at least one rank, not {world}")
        if indices is not None and len(indices) != world:
            raise ValueError(f"{len(indices)} indices for {world} ranks; give one for each")
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"a world needs a time limit above 0 s, not {timeout_s}")
        most_s = timeout_s if most_s is None else most_s
        if not timeout_s <= most_s < float("inf"):
            raise ValueError(f"most_s must be at least timeout_s ({timeout_s} s), not {most_s} s")
        self._wait_until_prepared()
        request = {
            "function": function,
            "world": world,
            "arguments": dict(arguments or {}),
            "backend": backend,
            "indices": list(indices) if indices is not None else list(range(world)),
            "group": group,
            "lost": list(lost),
            "timeout_s": timeout_s,
            "most_s": most_s,
        }
        started = time.monotonic()
        try:
            reply = self._request_reply(request, timeout_s + most_s, on_step)
        except BaseException:
            self.close()
            raise
        self.worlds += 1
        outcomes = tuple(decode(RankOutcome, each, "rank") for each in reply["ranks"])
        return WorldOutcome(
            function, outcomes, time.monotonic() - started, culprit=reply["culprit"]
        )

    def _request_reply(
        self,
        request: dict[str, Any],
        limit_s: float,
        on_step: Callable[[int, str, dict[str, Any]], None] | None,
    ) -> dict[str, Any]:
        """Send the request and receive until the reply. Raises PortagpuError without a server."""
        child = self._child
        if child is None:
            raise PortagpuError("the rank server is not running")
        self._was_used = True
        child.send(request)
        # it imports what the backend needs before it states how long its start may take
        watch = child.watch(LIMITS.start_s)
        while True:
            try:
                message = self._receive(child, watch)
            except TimeoutError:
                problem = "the rank server stopped answering and was ended"
                raise PortagpuError(problem) from None
            if "ranks" in message:
                return message
            if "start_s" in message:
                watch = child.watch(message["start_s"] + limit_s + LIMITS.reply_s)
            elif not {"rank", "step", "data"} <= message.keys():
                raise PortagpuError(f"the rank server broke: {BrokenMessage(message)}")
            elif on_step is not None:
                on_step(message["rank"], message["step"], message["data"])

    def close(self) -> None:
        """End the helper process and every rank that is still there."""
        child, self._child = self._child, None
        if child is not None:
            # the server ends its ranks and itself at the end of the channel. Without a request it
            # has no ranks, and may still be importing torch
            child.close(LIMITS.exit_s if self._was_used else 0.0)


_ahead: list[Subprocess] = []
"""The helper process of this one, where it was forked before this one ran anything."""


def fork_ahead(channel: tuple[int, ...]) -> None:
    """In a child that a helper process forked: fork one of its own, while this one ran nothing.

    The first :class:`Ranks` takes it. It does not inherit the child's ``channel``.
    """
    with contextlib.suppress(PortagpuError, OSError):
        _ahead.append(Ranks()._new_server(ForkHere(channel)))
        atexit.register(_close_ahead, os.getpid())


def _close_ahead(process: int) -> None:
    while _ahead and os.getpid() == process:
        _ahead.pop().close()


def _take_ahead(ranks: Ranks) -> Subprocess | None:
    """The helper process that was forked ahead, where one that is started now would be the same."""
    child = _ahead.pop() if _ahead else None
    if child is None:
        return None
    wanted = {**python_environment(), **ranks.environment}
    same = [
        {
            name: value
            for name, value in variables.items()
            if not name.startswith(("PYTEST_", *ranks.leave_out))
        }
        for variables in (child.environment, wanted)
    ]
    if child.running and same[0] == same[1]:
        return child
    child.close()
    return None
