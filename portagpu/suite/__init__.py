"""The conformance suite as a library: cases, and :func:`conform` that runs them.

A case is a pytest function with an id, a sentence of specification and the capability that it
needs, in ``matrix/conformance/test_<area>.py``. It runs in a child process with a configuration of
its own, so that no file of the user's project can change a verdict. ``docs/conformance.md`` says
how to write one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from portagpu.running import Progress, RunOptions, check_device, complete
from portagpu.suite.cases import AREAS, Case, NotClaimed, NotHere, case, refused
from portagpu.suite.select import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from portagpu.results.run import Run
    from portagpu.suite.machine import Listed

__all__ = [
    "AREAS",
    "Case",
    "ConformOptions",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformOptions(RunOptions):
    """What a run of the suite is asked for.

    ``backend`` is by default the one for this machine. ``index`` is the device to judge, or
    several, or None for all: each after the first is judged by the cases about one device, and not
    once more by those of torch alone or on ranks. Where the backend has several devices, results
    about one name it; one that cannot be opened after the first is an ERROR.

    ``target`` is what is judged, by default the target that this machine is. Where the machine is
    another one, nothing runs and every case is INCONCLUSIVE. ``selection`` says which cases run and
    in which order, by default all in theirs. A case that takes longer than ``timeout_s`` is ended
    and FAILs; one that ends its process is an ERROR; the others go on. With ``exit_first`` no case
    begins after the first failure. ``folder`` holds other case files.
    """

    backend: str | None = None
    selection: Selection = EVERYTHING
    index: int | Sequence[int] | None = 0
    timeout_s: float = TIMEOUT_S
    exit_first: bool = False
    folder: Path | None = None

    def indices(self) -> tuple[int, ...]:
        """The devices to judge; raises UnknownDevice, and ValueError where there is none."""
        from portagpu import registry

        if isinstance(self.index, int):
            if self.index:
                check_device(self.backend, self.index)
            return (self.index,)
        if self.index is None:
            name = registry.resolve(self.backend)
            return tuple(range(1 if registry.plugin(name).shared else registry.count(name)))
        if not self.index:
            raise ValueError("conform() judges at least one device: index is empty")
        return tuple(self.index)


def conform(options: ConformOptions, progress: Progress | None = None) -> Run:
    """Run the cases in a child process and return the run, finished.

    From where ``progress.stop_reason()`` answers, no further case is begun, and is INCONCLUSIVE for
    it. On Ctrl-C the child is ended, and the run that is returned is marked as interrupted.

    Raises BackendNotFound, TargetNotFound, UnknownDevice, SelectionError for a selection without
    cases, SuiteError when the child cannot run, and ValueError where ``index`` is empty.
    """
    from portagpu.suite.runner import judge_cases

    options.load_target()
    options, progress = replace(options, index=options.indices()), progress or Progress()
    work = partial(judge_cases, options=options, progress=progress)
    return complete(options.new_run(), progress, work)


def list_cases(
    selection: Selection = EVERYTHING,
    *,
    folder: Path | None = None,
) -> list[Listed]:
    """Every case with its parameters, in order; needs no torch. Raises as :func:`conform` does."""
    from portagpu.suite.runner import listing

    return listing(selection, folder)
