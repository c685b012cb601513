"""Asking a library in a child process: one that hangs, aborts or prints harms nobody."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from portagpu.children import NEUTRAL, python_environment, python_module
from portagpu.errors import PortagpuError
from portagpu.processes import die_with_parent, kill_group, signal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAVING_S: Final = 1.0


def ask(
    module: str, function: str, arguments: Sequence[Any] = (), *, limit_s: float
) -> tuple[Any, str]:
    """What ``module.function(*arguments)`` returns in a child process, as (value, "").

    Arguments and value are what JSON holds. Where the child raises, dies or is not done within
    ``limit_s`` seconds the answer is (None, what went wrong in one line); nothing is raised.
    """
    try:
        process = subprocess.Popen(
            python_module(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=python_environment(),
            cwd=NEUTRAL,
            start_new_session=True,
        )
    except PortagpuError as error:
        return None, str(error)
    except OSError as error:
        return None, f"no child process could be started: {error.strerror}"
    request = json.dumps([module, function, list(arguments)]).encode()
    try:
        out, err = process.communicate(request, timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return None, f"{module} did not answer within {limit_s:g} s"
    except BaseException:
        _end(process)
        raise
    if process.returncode < 0:
        return None, f"{module} ended its process with {signal_name(-process.returncode)}"
    if process.returncode:
        lines = err.decode(errors="replace").strip().splitlines()
        return None, f"{module} failed: {lines[-1] if lines else 'without a word'}"
    try:
        return json.loads(out), ""
    except ValueError:
        return None, f"{module} gave no answer"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and what it started; one that the kernel holds in a driver is left behind."""
    kill_group(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LEAVING_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def main() -> None:
    """The child: read what is asked from standard input and answer on standard output."""
    die_with_parent()
    # the answer goes to the pipe that was standard output; whatever a library prints goes to
    # standard error (PyPI's amdsmi 7.0.2 prints when it does not find its library)
    answer = os.dup(1)
    os.dup2(2, 1)
    module, function, arguments = json.load(sys.stdin)
    value = getattr(importlib.import_module(module), function)(*arguments)
    with os.fdopen(answer, "w") as stream:
        json.dump(value, stream)


if __name__ == "__main__":
    main()
