"""Entry points of installed distributions, and calls of their code with a time limit.

A distribution with damaged metadata hides no other one. Code of another distribution runs in a
thread of its own; what it raises becomes one line of text for the caller.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.patience import PATIENCE, BusyMachine, Patience
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint


_log = logging.getLogger("portagpu")
_reported: set[str] = set()


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of ``group``. Nothing is loaded.

    A distribution whose metadata cannot be read is reported once, as a warning, and left out.
    """
    # imports the email package too, and most calls of the command line need neither
    from importlib import metadata

    try:
        return list(metadata.entry_points(group=group))
    except Exception as error:  # noqa: BLE001 - one damaged distribution makes the whole call raise
        _log.debug("reading distributions one by one: %s", error)
    found: list[EntryPoint] = []
    for distribution in metadata.distributions():
        try:
            found.extend(distribution.entry_points.select(group=group))
        except Exception as error:  # noqa: BLE001 - as above
            _report(str(getattr(distribution, "_path", "it")), error)
    return found


def install(extra: str) -> str:
    """The command that installs what ``extra`` names in addition to this package, as it was
    installed.

    A folder is the user's own, and so its command is for that folder. Where pip took a package from
    is its ``direct_url.json``:
    https://packaging.python.org/en/latest/specifications/direct-url-data-structure.
    """
    origin = _origin()
    if origin is None:
        return f"pip install '.[{extra}]' (in the folder of portagpu's pyproject.toml)"
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        where = "in the folder of portagpu's pyproject.toml"
        return f"pip install {editable}'.[{extra}]' ({where})"
    if "vcs_info" in origin:
        return f"pip install 'portagpu[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}'"
    if url.startswith("file:"):
        return f"pip install '{PurePosixPath(url).name}[{extra}]' (in the folder of that file)"
    if url:
        return f"pip install 'portagpu[{extra}] @ {url}'"
    return f"pip install 'portagpu[{extra}]'"


def _origin() -> dict[str, Any] | None:
    """Where pip installed this package from: {} for an index, None if pip did not install it."""
    from importlib import metadata

    try:
        text = metadata.distribution("portagpu").read_text("direct_url.json")
        found = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else {}


def _report(place: str, error: Exception) -> None:
    if place not in _reported:
        _reported.add(place)
        _log.warning(
            "the metadata of an installed distribution cannot be read (%s: %s) and is ignored: "
            "reinstall %s",
            type(error).__name__,
            error,
            place,
        )


OWN_DISTRIBUTION: Final = "portagpu"
_QUIET_S: Final = 1.0
"""After this time a log line says what is waited for."""

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
    says to a user what is being waited for. Anything that the code raises, SystemExit included,
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
