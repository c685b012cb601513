"""Child processes: a neutral environment, messages with a time limit, no process left behind.

``start`` starts and ends a child, ``channel`` exchanges messages with it, ``fork`` forks one.
:func:`call` and :func:`start_caller` call functions in a child: a library that hangs, aborts or
prints does no harm.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import PortagpuError
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses.channel import BrokenMessage, Channel, Subprocess, parent_channel
from portagpu.base.subprocesses.start import run_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = [
    "BrokenMessage",
    "Caller",
    "Channel",
    "Subprocess",
    "call",
    "parent_channel",
    "run_program",
    "start_caller",
]


def call(
    module: str,
    function: str,
    arguments: Sequence[Any] = (),
    *,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> tuple[Any, str]:
    """Call ``module.function(*arguments)`` in a child process; returns (value, "").

    Arguments and value are JSON, and ``environment`` is added to the child's variables. Where the
    child raises, dies or takes longer than ``limit_s`` seconds from when it is ready, the result is
    (None, the problem in one line). What it waits for a CPU does not count. Nothing is raised.
    """
    caller, problem = start_caller(environment)
    if caller is None:
        return None, problem
    caller.begin(module, function, arguments, limit_s)
    while True:
        pause_s = caller.pause_s
        try:
            value, problem = caller.wait(pause_s)
            break
        except TimeoutError:
            if pause_s <= 0:
                value, problem = None, f"{module} {caller.late}"
                caller.kill(LIMITS.leave_s)
                break
    caller.close()
    return value, problem


def start_caller(environment: Mapping[str, str] | None = None) -> tuple[Caller | None, str]:
    """A child that is ready for calls, as (child, ""), else (None, why there is none)."""
    try:
        return Caller(environment), ""
    except PortagpuError as error:
        return None, str(error)
    except OSError as error:
        return None, f"no child process could be started: {error.strerror}"


class Caller:
    """A child process that stays: it calls one function after the other, and keeps what it loaded.

    ``environment`` is added to its variables. Raises PortagpuError and OSError where no child can
    be started. ``close`` ends it; after a call that failed with the child it is ended already.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._child = Subprocess(__package__, environment=environment)
        self._module = ""
        self._begun = 0.0
        self._limit_s = math.inf
        self._is_ready = False
        self._watch = self._child.watch(LIMITS.start_s)

    @property
    def waits(self) -> bool:
        """Whether a call has begun whose result was not yet taken."""
        return bool(self._module)

    @property
    def waiting_s(self) -> float:
        """Seconds since the last call began."""
        return time.monotonic() - self._begun

    @property
    def left_s(self) -> float:
        """How much of the call's limit is left at least; 0 where it is over."""
        return self._watch.left_s

    @property
    def pause_s(self) -> float:
        """How long to :meth:`wait` before the next look at the call's limit; 0 where it is over."""
        return self._watch.pause_s

    @property
    def late(self) -> str:
        """What to say of a call whose limit is over: "did not answer within 5 s"."""
        return self._watch.problem

    def begin(
        self, module: str, function: str, arguments: Sequence[Any] = (), limit_s: float = math.inf
    ) -> None:
        """Begin a call; :meth:`wait` has its result. Only one is under way at a time.

        Its limit begins when the child is ready, and does not count what it waits for a CPU.
        """
        self._module, self._begun, self._limit_s = module, time.monotonic(), limit_s
        if self._is_ready:
            self._watch = self._child.watch(limit_s)
        self._child.send({"module": module, "function": function, "arguments": list(arguments)})

    def wait(self, limit_s: float) -> tuple[Any, str]:
        """The result of the call, as (value, ""), else (None, the problem in one line).

        Raises TimeoutError after ``limit_s`` seconds of wall time; the call goes on, and may be
        waited for again. Where the problem is the child's, it has ended.
        """
        deadline = time.monotonic() + limit_s
        answer = self._child.receive(limit_s)
        if not self._is_ready and answer is not None and "ready" in answer:
            self._is_ready = True
            self._watch = self._child.watch(self._limit_s)
            answer = self._child.receive(max(0.0, deadline - time.monotonic()))
        module, self._module = self._module, ""
        if answer is None:
            return None, f"{module} {self._child.why_no_answer()}"
        if not {"value", "raised"} & answer.keys():
            self._child.end_broken(BrokenMessage(answer))
            return None, f"{module} {self._child.how_it_ended()}"
        self._child.forget_output()
        problem = f"{module} failed: {answer['raised']}" if "raised" in answer else ""
        return answer.get("value"), problem

    def kill(self, limit_s: float = 0.0) -> None:
        """End the child at once; one that is blocked in the kernel is left after ``limit_s``."""
        self._child.kill(limit_s)

    def has_left(self) -> bool:
        """Whether the child has ended; after :meth:`kill` it may be blocked in the kernel."""
        return self._child.has_left()

    def close(self) -> None:
        """End the child, which may take a second to leave."""
        self._child.close(LIMITS.leave_s)
