"""One function in a child process: a library that hangs, aborts or prints harms nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.errors import PortagpuError
from portagpu.subprocesses.channel import Subprocess

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXIT_LIMIT_S: Final = 1.0


def call(
    module: str, function: str, arguments: Sequence[Any] = (), *, limit_s: float
) -> tuple[Any, str]:
    """What ``module.function(*arguments)`` returns in a child process, as (value, "").

    Arguments and value are what JSON holds. Where the child raises, dies or is not done within
    ``limit_s`` seconds the answer is (None, what went wrong in one line); nothing is raised.
    """
    try:
        child = Subprocess(__package__)
    except PortagpuError as error:
        return None, str(error)
    except OSError as error:
        return None, f"no child process could be started: {error.strerror}"
    with child:
        request = {"module": module, "function": function, "arguments": list(arguments)}
        answer, problem = child.ask(request, limit_s)
        if answer is None:
            return None, f"{module} {problem}"
        child.close(_EXIT_LIMIT_S)
    return answer.get("value"), f"{module} failed: {answer['raised']}" if "raised" in answer else ""
