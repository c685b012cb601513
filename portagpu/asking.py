"""Asking a library in a child process: one that hangs, aborts or prints harms nobody."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from portagpu.processes import kill_group, signal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

# The answer goes to the pipe that was standard output; whatever a library prints goes to standard
# error (PyPI's amdsmi 7.0.2 prints when it does not find its library).
_BOOT: Final = """\
import json, os, sys
answer = os.dup(1)
os.dup2(2, 1)
sys.path[:], module, function, arguments = json.loads(sys.argv[1])
import importlib
value = getattr(importlib.import_module(module), function)(*arguments)
with os.fdopen(answer, "w") as stream:
    json.dump(value, stream)
"""
_LEAVING_S: Final = 1.0


def ask(
    module: str, function: str, arguments: Sequence[Any] = (), *, limit_s: float
) -> tuple[Any, str]:
    """What ``module.function(*arguments)`` returns in a child process, as (value, "").

    Arguments and value are what JSON holds. Where the child raises, dies or is not done within
    ``limit_s`` seconds the answer is (None, what went wrong in one line); nothing is raised.
    """
    if not sys.executable:
        return None, "this Python does not say which program it is, so that no child can be started"
    request = json.dumps([sys.path, module, function, list(arguments)])
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, request],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return None, f"no child process could be started: {error.strerror}"
    try:
        out, err = process.communicate(timeout=limit_s)
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
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
