"""One function call in a child process: a library that hangs, aborts or prints does no harm."""

from __future__ import annotations

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
    try:
        child = Subprocess(__package__, environment=environment)
    except PortagpuError as error:
        return None, str(error)
    except OSError as error:
        return None, f"no child process could be started: {error.strerror}"
    with child:
        request = {"module": module, "function": function, "arguments": list(arguments)}
        answer, problem = child.ask(request, limit_s)
        if answer is None:
            return None, f"{module} {problem}"
        if not {"value", "raised"} & answer.keys():
            return None, f"{module} broke: {BrokenMessage(answer)}"
        child.close(_EXIT_LIMIT_S)
    return answer.get("value"), f"{module} failed: {answer['raised']}" if "raised" in answer else ""
