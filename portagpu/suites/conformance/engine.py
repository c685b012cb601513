"""The engine of the conformance suite: the list of its cases, and a run on the chosen devices."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.installation import check_installation
from portagpu.runs.engine import Progress, add_result, complete
from portagpu.runs.results.run import Verdict
from portagpu.runs.world import Ranks
from portagpu.suites.conformance.cases import AREAS, base_id, matches
from portagpu.suites.conformance.judge import device_not_rejudged, unopened_device
from portagpu.suites.conformance.messages import LEFT_OUT, Child, SuiteError
from portagpu.suites.conformance.options import (
    EVERYTHING,
    ConformOptions,
    Selection,
    seed_of,
    select,
)
from portagpu.suites.conformance.runner import Collected, DeviceRun, cases_folder, collect
from portagpu.suites.search.area import check_calls, from_text, load_area

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Run
    from portagpu.suites.conformance.messages import ListedCase

_WRITTEN_ID: Final = re.compile(rf'"((?:{"|".join(AREAS)})/[a-z0-9-]+)"')


def conform(options: ConformOptions, progress: Progress | None = None) -> Run:
    """Run the cases in a child process and return the finished run.

    Once ``progress.stop_reason()`` gives a reason, no further case begins; those left are
    INCONCLUSIVE with that reason. On Ctrl-C the child is ended and the returned run is marked as
    interrupted.

    :param options: the backend, its devices and the cases.
    :param progress: reports results as they come.
    :raises BackendNotFound: where the backend cannot be opened.
    :raises TargetNotFound: where no target has the wanted id.
    :raises UnknownDevice: for a device that the backend does not have.
    :raises ProgramError: for a program that cannot be run.
    :raises SelectionError: for a selection without cases.
    :raises SuiteError: if the child cannot run.
    :raises ValueError: if ``index`` is empty.
    """
    options.load_target()
    if options.program:
        area, program = from_text(options.program)
        check_calls(area, program, load_area(area).calls())
    if not options.upstream:
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

    :param selection: which cases; by default all.
    :param folder: the folder of the cases; by default the matrix's.
    :raises SelectionError: for a selection without cases.
    :raises SuiteError: if the cases cannot be read.
    """
    collected = listed(folder)
    if collected.problems:
        raise SuiteError(collected.problems[0].reason)
    return selection.choose(collected.cases)


def listed(folder: Path | None) -> Collected:
    """The cases that a child finds in the folder, by default the matrix's."""
    with Child(cases_folder(folder)) as child:
        return collect(child)


def check_names(selection: Selection, folder: Path | None) -> None:
    """Raise SelectionError for a name of ``only`` that fits no case, without the import of torch.

    The cases are listed only where the text of the suite does not show that the name fits.
    """
    if not selection.only:
        return
    files = cases_folder(folder).glob("*.py")
    texts = [path.read_bytes().decode(errors="replace") for path in files]
    ids = set(_WRITTEN_ID.findall("".join(texts)))
    if all(any(matches(base_id(one), each) for each in ids) for one in selection.only):
        return
    collected = listed(folder)
    if not collected.problems:  # a broken file may hide the case
        select(collected.cases, selection.only, smoke=False)


def judge_cases(
    run: Run, options: ConformOptions, progress: Progress, ranks: Ranks | None = None
) -> None:
    """Add every result to ``run``, in the order in which the cases run.

    ``ranks`` fork the processes that run them; by default a server of its own does.
    """
    if options.seed is None:
        # once for all devices: the day may end meanwhile
        options = replace(options, seed=seed_of())
    with contextlib.nullcontext(ranks) if ranks else Ranks(leave_out=LEFT_OUT) as forker:
        _judge_on_devices(run, options, progress, forker)


def _judge_on_devices(run: Run, options: ConformOptions, progress: Progress, forker: Ranks) -> None:
    from portagpu.devices.registry import plugin, resolve

    check_installation()
    wanted = options.load_target()
    name = resolve(options.backend)
    first, *others = dict.fromkeys(options.indices())
    if plugin(name).shared:
        others = []
    start = partial(DeviceRun, run, progress=progress, backend=name, wanted=wanted, forker=forker)
    judged = start(options, index=first, several=bool(others))
    known = {each.name: each for each in (judged.machine,) if each is not None}
    further = replace(options, selection=replace(options.selection, per_device=True))
    for index in others:
        device = f"{name} device {index}"
        reason = judged.stop_reason()
        try:
            if reason:
                result = replace(unopened_device(device, reason), verdict=Verdict.INCONCLUSIVE)
                add_result(run, progress, result)
            else:
                start(further, index=index, known=known)
        except PortagpuError as error:
            add_result(run, progress, unopened_device(device, str(error)))
    for device in sorted(options.selection.failed_on - set(known)):
        add_result(run, progress, device_not_rejudged(device))
