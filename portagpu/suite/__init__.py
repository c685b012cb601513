"""The conformance suite as a library: cases, and :func:`conform` that runs them.

A case is a pytest function with an id, a sentence of specification and the capability that it
needs, in ``matrix/conformance/test_<area>.py``. It runs in a child process with a configuration of
its own, so that no file of the user's project can change a verdict. ``docs/conformance.md`` says
how to write one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.suite.cases import AREAS, Case, NotClaimed, NotHere, case, refused
from portagpu.suite.select import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from portagpu.results import Result
    from portagpu.suite.machine import Listed, Machine
    from portagpu.target import Target

__all__ = [
    "AREAS",
    "Case",
    "NotClaimed",
    "NotHere",
    "Selection",
    "case",
    "conform",
    "list_cases",
    "refused",
]

TIMEOUT_S = 60.0
"""How long one case may take, unless it states a time of its own."""


def conform(
    backend: str | None = None,
    target: str | Target | None = None,
    selection: Selection = EVERYTHING,
    *,
    index: int | Sequence[int] = 0,
    timeout_s: float = TIMEOUT_S,
    on_result: Callable[[Result], None] | None = None,
    on_start: Callable[[str, int, int], None] | None = None,
    on_machine: Callable[[Machine], None] | None = None,
    folder: Path | None = None,
    ended: Callable[[], str] = str,
) -> list[Result]:
    """Run the cases against ``backend`` (by default the one for this machine), in a child process.

    ``index`` is the device to judge, or several: each after the first is judged by the cases about
    one device, and not once more by those of torch alone or on ranks. Where the backend has several
    devices, results about one name it; one that cannot be opened after the first is an ERROR.

    ``target`` is what is judged, by default the target that this machine is. Where the machine is
    another one, nothing runs and every case is INCONCLUSIVE. ``selection`` says which cases run and
    in which order, by default all in theirs. A case that takes longer
    than ``timeout_s`` is ended and FAILs; one that ends its process is an ERROR; the others go on.

    ``on_result`` gets every result as it comes, ``on_start(id, number, total)`` every case before
    it runs, ``on_machine`` what was opened. On Ctrl-C the child is ended and KeyboardInterrupt
    raised; ``on_result`` has had all results by then. ``folder`` holds other case files. From where
    ``ended()`` answers with a reason no further case is begun, and is INCONCLUSIVE for it.

    Raises BackendNotFound, TargetNotFound, SelectionError for a selection without cases,
    SuiteError when the child cannot run, and ValueError where ``index`` names no device.
    """
    from portagpu.suite.runner import Callbacks, Request, run

    indices = (index,) if isinstance(index, int) else tuple(index)
    request = Request(backend, target, selection, timeout_s, folder, ended, indices)
    return run(request, Callbacks(on_result, on_start, on_machine))


def list_cases(
    selection: Selection = EVERYTHING,
    *,
    folder: Path | None = None,
) -> list[Listed]:
    """Every case with its parameters, in order; needs no torch. Raises as :func:`conform` does."""
    from portagpu.suite.runner import listing

    return listing(selection, folder)
