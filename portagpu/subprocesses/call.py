"""Function calls in a child process: a library that hangs, aborts or prints does no harm."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from portagpu.errors import PortagpuError
from portagpu.subprocesses.channel import BrokenMessage, Subprocess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EXIT_LIMIT_S: Final = 1.0


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
    child raises, dies or takes longer than ``limit_s`` seconds, the result is (None, the problem in
    one line). Nothing is raised.
    """
    caller, problem = start_caller(environment)
    if caller is None:
        return None, problem
    caller.begin(module, function, arguments)
    try:
        value, problem = caller.wait(limit_s)
    except TimeoutError:
        caller.kill(_EXIT_LIMIT_S)
        value, problem = None, f"{module} did not answer within {limit_s:g} s"
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

    @property
    def waits(self) -> bool:
        """Whether a call has begun whose result was not yet taken."""
        return bool(self._module)

    @property
    def waiting_s(self) -> float:
        """Seconds since the last call began."""
        return time.monotonic() - self._begun

    def begin(self, module: str, function: str, arguments: Sequence[Any] = ()) -> None:
        """Begin a call; :meth:`wait` has its result. Only one is under way at a time."""
        self._module, self._begun = module, time.monotonic()
        self._child.send({"module": module, "function": function, "arguments": list(arguments)})

    def wait(self, limit_s: float) -> tuple[Any, str]:
        """The result of the call, as (value, ""), else (None, the problem in one line).

        Raises TimeoutError after ``limit_s`` seconds; the call goes on, and may be waited for
        again. Where the problem is the child's, it has ended.
        """
        answer = self._child.receive(limit_s)
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
        self._child.close(_EXIT_LIMIT_S)
