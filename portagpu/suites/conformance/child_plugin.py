"""The pytest plugin of the child process: it collects the cases and reports their outcomes.

It sends the parent a message for each event, and receives the backend to open and the ids to run.
Without the option that names the channel it is silent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.documents import decode, encode
from portagpu.base.subprocesses import parent_channel
from portagpu.base.subprocesses.fork import OPTION
from portagpu.suites.conformance import upstream_plugin
from portagpu.suites.conformance.cases import AREAS, ATTRIBUTE, EARNS, Case, label, retired_cases
from portagpu.suites.conformance.fixtures import SESSION, Session, describe_device, outcome_of_error
from portagpu.suites.conformance.messages import ListedCase, Searches
from portagpu.suites.search.area import load_area

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FIXTURES: Final = "portagpu.suites.conformance.fixtures"
_FORKS: Final = frozenset({"ranks", "world", "search", "in_child"})
"""The fixtures with which a case runs forked ranks."""
_QUIET: Final = 50
"""During this many cases without ranks the server of ranks has time to load slow areas."""
pytest_plugins: tuple[str, ...] = (_FIXTURES,)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the channel to the parent process."""
    parser.getgroup("portagpu").addoption(OPTION, default=None, metavar="R,W")


def pytest_configure(config: pytest.Config) -> None:
    """Open the channel; no process started from here inherits its pipes."""
    session = Session(folder=_working_folder())
    numbers = config.getoption(OPTION)
    if numbers is not None:
        session.channel = parent_channel(numbers)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    config.stash[SESSION] = session
    config.pluginmanager.register(_BrokenFiles(session))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a case by the parameters that it declares."""
    case = getattr(metafunc.function, ATTRIBUTE, None)
    if isinstance(case, Case):
        for name, values in case.params:
            metafunc.parametrize(name, values, ids=[label(name, value) for value in values])


class _BrokenFiles:
    """Keeps the files that could not be read: the hook that reports them has no config."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            reason = lines[-1].removeprefix("E").strip() if lines else str(report.longrepr)
            self.session.problems.append({"name": Path(report.nodeid).name, "reason": reason})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Report the cases, open the requested device, and keep the requested cases."""
    session = config.stash[SESSION]
    items.sort(key=_area_order)
    listed = list(_list_cases(session, items))
    session.send(event="collected", cases=encode(listed), problems=session.problems)
    if session.channel is None:
        return
    request = session.receive()
    if request is None:
        items.clear()
        return
    session.backend, session.index = request["backend"], request["index"]
    session.timeout_s = request["timeout_s"]
    session.searches = decode(Searches, request["searches"], "searches")
    by_id = {session.ids[item.nodeid]: item for item in items if item.nodeid in session.ids}
    items[:] = [by_id[each] for each in request["ids"]]
    if any(map(_forks, items)):
        # it imports torch while this process does; cases start it again, and report the error
        with contextlib.suppress(Exception):
            session.rank_server()
            areas = [each.search for each in listed if each.search and each.id in request["ids"]]
            session.slow_areas = [each for each in areas if load_area(each).start_s]
            session.quiet_from = _quiet_from(items)
            files = dict.fromkeys(str(item.path) for item in items if _forks(item))
            session.load_ahead([each for each in areas if each not in session.slow_areas], [*files])
    try:
        machine = encode(describe_device(session.device()))
        json.dumps(machine)
    except BaseException as error:  # noqa: BLE001 - whatever keeps it from opening is the answer
        session.send(event="fatal", kind=type(error).__name__, reason=str(error))
        items.clear()
        return
    session.send(event="machine", machine=machine)
    # torch's objects stay: a collection need not look at them
    gc.freeze()
    if session.receive() is None:
        items.clear()


def _forks(item: pytest.Item) -> bool:
    return not _FORKS.isdisjoint(getattr(item, "fixturenames", ()))


def _quiet_from(items: list[pytest.Item]) -> str:
    """The first case of the first ``_QUIET`` in a row without ranks, or else of the longest row."""
    quiet, longest = items[0].nodeid, 0
    for forks, group in itertools.groupby(items, _forks):
        found = list(group)
        if not forks and len(found) > longest:
            quiet, longest = found[0].nodeid, len(found)
        if longest >= _QUIET:
            break
    return quiet


def _working_folder() -> str:
    """This process's working folder; "/" where it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - compared as it is
    except OSError:
        return "/"


def _area_order(item: pytest.Item) -> int:
    """The sort key of a case: the position of its area."""
    case = getattr(getattr(item, "function", None), ATTRIBUTE, None)
    return AREAS.index(case.area) if isinstance(case, Case) else len(AREAS)


def _is_per_device(item: pytest.Item) -> bool:
    """Whether a case has the device and no ranks."""
    given = getattr(item, "fixturenames", ())
    return "backend" in given and "ranks" not in given


def _list_cases(session: Session, items: list[pytest.Item]) -> Iterator[ListedCase]:
    """Describe every case; what cannot be one is a problem."""
    if session.upstream:
        for item, described in upstream_plugin.listed(items):
            session.ids[item.nodeid] = described.id
            yield described
        return
    taken: dict[str, str] = {}
    for item in items:
        case = getattr(getattr(item, "function", None), ATTRIBUTE, None)
        where = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
        call = getattr(item, "callspec", None)
        if not isinstance(case, Case):
            reason = f"{where} declares no case: put @case(id, spec=...) on it"
            session.problems.append({"name": item.name, "reason": reason})
            continue
        full = case.id if call is None else f"{case.id}[{call.id}]"
        given = _evidence_fixtures(item)
        if problem := _problem(case.id, full, taken, given):
            session.problems.append({"name": item.name, "reason": f"{where} {problem}"})
            continue
        taken[full] = where
        session.ids[item.nodeid] = full
        yield ListedCase(
            id=full,
            area=case.area,
            spec=case.spec,
            traps=tuple(case.traps),
            capability=tuple(map(str, case.capability)),
            outcome=case.outcome,
            covers=tuple(case.covers),
            smoke=case.in_smoke(call.params if call else {}),
            default=case.at_default(call.params if call else {}),
            timeout_s=case.timeout_s,
            does_not_show=case.does_not_show,
            function=where,
            per_device=_is_per_device(item),
            search=case.search.area_of(call.params if call else {}) if case.search else "",
            search_s=case.search.seconds_of(call.params if call else {}) if case.search else 0.0,
            evidence=EARNS[next(iter(given))],
        )


def _evidence_fixtures(item: pytest.Item) -> dict[str, str]:
    """The fixtures of ``EARNS`` that a case has, strongest first, and the modules of each."""
    if not isinstance(item, pytest.Function):
        return {}
    # item.fixturenames has the names of parameters as well, which hide fixtures
    found = item._fixtureinfo.name2fixturedefs
    return {name: found[name][-1].func.__module__ for name in EARNS if name in found}


def _problem(base: str, full: str, taken: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Why a function cannot be the case ``full``, as the rest of a sentence; empty if it can.

    ``taken`` are the cases so far and their functions, ``given`` are the function's fixtures that
    earn evidence and their modules.
    """
    if full in taken:
        return f"and {taken[full]} are both the case {full}: an id names one case"
    if base in retired_cases():
        return f"takes the id of a retired case, {base}: give it a new one"
    hiding = [name for name, module in given.items() if module != _FIXTURES]
    if hiding:
        return f"has its own {hiding[0]}, which hides the suite's fixture: give it another name"
    if not given:
        return (
            f"takes none of {', '.join(EARNS)}, so its result is the same on every machine: "
            "make it a test of the package"
        )
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Report the start of a case and its outcome."""
    session = item.config.stash[SESSION]
    name = session.ids.get(item.nodeid, item.nodeid)
    session.outcome = {"kind": "passed", "reason": "", "duration_s": 0.0}
    session.observed, session.shared_world = [], None
    worlds = session.worlds
    session.send(event="start", id=name)
    if item.nodeid == session.quiet_from:
        with contextlib.suppress(Exception):
            session.load_ahead(session.slow_areas)
    result = yield
    if _working_folder() != session.folder:
        with contextlib.suppress(OSError):
            os.chdir(session.folder)
        session.observed.append("it changed the working folder, which was then changed back")
    seen = {"observed": session.observed, "shared_world": session.shared_world}
    no_world = "ranks" in _evidence_fixtures(item) and session.worlds == worlds
    session.send(event="result", id=name, no_world=no_world, **seen, **session.outcome)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Keep the first error of set-up, call and tear-down."""
    session = item.config.stash[SESSION]
    outcome = session.outcome
    outcome["duration_s"] = round(outcome.get("duration_s", 0.0) + call.duration, 6)
    # other plugins put the errors that unittest kept into the call
    report = yield
    if call.excinfo is not None and outcome["kind"] == "passed":
        of_error = upstream_plugin.outcome if session.upstream else outcome_of_error
        outcome["kind"], outcome["reason"] = of_error(call.when, call.excinfo.value)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report that the child ended as planned."""
    session.config.stash[SESSION].send(event="done")
