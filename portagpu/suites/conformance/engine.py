"""The engine of the conformance suite: its options, a run, and a list of its cases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from portagpu.base.patience import LIMITS
from portagpu.runs.engine import Progress, RunOptions, check_device, complete
from portagpu.suites.conformance.select import EVERYTHING, Selection
from portagpu.suites.search.area import check_calls, from_text, load_area

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from portagpu.runs.results.run import Run
    from portagpu.suites.conformance.messages import ListedCase


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformOptions(RunOptions):
    """The options of a run of the suite.

    A case that ends its process is an ERROR, and the others go on. If the backend has several
    devices, results about one name it.

    :param target: What is judged, by default this machine's target. If the machine is another
        target, nothing runs and every case is INCONCLUSIVE.
    :param backend: The backend's name, by default the one for this machine.
    :param selection: Which cases run and in which order, by default all of them.
    :param index: The device to judge, several of them, or None for all. Devices after the first
        run only the per-device cases, not those of torch alone or on ranks. A further device that
        cannot be opened is an ERROR.
    :param timeout_s: Seconds after which a case is ended and FAILs.
    :param exit_first: Begin no case after the first failure.
    :param folder: The folder of other case files.
    :param seed: The seed of random programs.
    :param search_s: Seconds for all random programs together, by default as long as each case
        states, and a tenth of it in the smoke selection.
    :param program: A line of an earlier failure: the case of its area runs that program alone.
    """

    backend: str | None = None
    selection: Selection = EVERYTHING
    index: int | Sequence[int] | None = 0
    timeout_s: float = LIMITS.case_s
    exit_first: bool = False
    folder: Path | None = None
    seed: int = 0
    search_s: float | None = None
    program: str = ""

    def indices(self) -> tuple[int, ...]:
        """The devices to judge; raises UnknownDevice, and ValueError if ``index`` is empty."""
        from portagpu.devices import registry

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
    """Run the cases in a child process and return the finished run.

    Once ``progress.stop_reason()`` gives a reason, no further case begins; those left are
    INCONCLUSIVE with that reason. On Ctrl-C the child is ended and the returned run is marked as
    interrupted.

    Raises BackendNotFound, TargetNotFound, UnknownDevice, ProgramError, SelectionError for a
    selection without cases, SuiteError if the child cannot run, and ValueError if ``index`` is
    empty.
    """
    from portagpu.suites.conformance.runner import check_names, judge_cases

    options.load_target()
    if options.program:
        area, program = from_text(options.program)
        check_calls(area, program, load_area(area).calls())
    check_names(options.selection, options.folder)
    options, progress = replace(options, index=options.indices()), progress or Progress()
    work = partial(judge_cases, options=options, progress=progress)
    return complete(options.new_run(), progress, work)


def list_cases(
    selection: Selection = EVERYTHING,
    *,
    folder: Path | None = None,
) -> list[ListedCase]:
    """Every selected case with its parameters, in order. Needs no torch.

    Raises SelectionError and SuiteError, as :func:`conform` does.
    """
    from portagpu.suites.conformance.runner import listing

    return listing(selection, folder)
