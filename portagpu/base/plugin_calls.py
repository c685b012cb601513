"""Calls code of other distributions, in a thread of its own and with a time limit.

What it raises becomes one line of text for the caller.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.patience import PATIENCE, BusyMachine, Patience
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

OWN_DISTRIBUTION: Final = "portagpu"
_QUIET_S: Final = 1.0
"""After so long a log line says what is waited for."""

_log = logging.getLogger("portagpu")
_redirection: Final = threading.Lock()
_T = TypeVar("_T")


def distribution_of(point: EntryPoint) -> str:
    """The name of the distribution that declares ``point``."""
    try:
        name = point.dist.name if point.dist is not None else None
    except Exception:  # noqa: BLE001 - a distribution without its METADATA file
        name = None
    return name or "an unknown distribution"


def start_call(
    call: Callable[[], _T], limit_s: float, patience: Patience = PATIENCE
) -> Callable[[str], tuple[_T | None, str]]:
    """Start foreign code in a thread of its own.

    The returned function waits for the result: (value, "") or (None, the problem). Its argument
    tells a user what is being waited for. Anything that the code raises, SystemExit included,
    becomes the problem. A call that is still running at the limit is left in its daemon thread.
    What this process, all of it, waits for a CPU does not count: the call may need an import of
    another thread. Where it waited long, the problem is a ``BusyMachine``.
    """
    outcome: dict[str, Any] = {}
    watch = patience.watch(limit_s)

    def work() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:  # noqa: BLE001 - a plugin's failure is reported as its reason
            outcome["failure"] = f"raised {error_line(error)}"

    thread = threading.Thread(target=work, name="portagpu-plugin", daemon=True)
    thread.start()

    def ended(pause_s: float) -> bool:
        thread.join(pause_s)
        return not thread.is_alive()

    def wait(what: str) -> tuple[_T | None, str]:
        if not ended(min(_QUIET_S, limit_s)):
            _log.warning("waiting for %s", what)
            if not watch.wait(ended):
                late = watch.problem
                busy = isinstance(late, BusyMachine)
                return None, BusyMachine(f"{late}: try again") if busy else late
        return outcome.get("value"), outcome.get("failure", "")

    return wait


def call_quietly(
    call: Callable[[], _T], limit_s: float, what: str, patience: Patience = PATIENCE
) -> tuple[_T | None, str]:
    """Call foreign code as :func:`start_call` does, with its standard output on standard error.

    Standard output may be a document, which what a third party prints must not be part of. The
    redirection is the process's, so that one call runs at a time; ``call`` must not call this.
    """
    with _redirection, contextlib.redirect_stdout(sys.stderr):
        return start_call(call, limit_s, patience)(what)
