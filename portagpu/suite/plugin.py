"""The pytest plugin of the suite: fixtures for cases, and the stream of what happens to them.

``--portagpu-channel R,W`` names two inherited pipes. The plugin writes a JSON line on W for each
event, and reads on R which backend to open and which ids to run; without the option it is silent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.contract import Capability
from portagpu.errors import Unsupported
from portagpu.suite.batch import Batches
from portagpu.suite.cases import AREAS, ATTRIBUTE, Case, NotClaimed, NotHere, label
from portagpu.suite.machine import Judged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from portagpu.contract import Backend
    from portagpu.target import Target
    from portagpu.world import Ranks, WorldOutcome

_PR_SET_PDEATHSIG: Final = 1
_SEED: Final = 20240607
_WORLD_SHARE: Final = 0.5
"""A world of ranks ends well before its case does, so that the rank at fault can be named."""
_RAISED: Final = "raised AssertionError: "


@dataclass(slots=True)
class _Session:
    """The state of one run: the channel, the device, and the case at hand."""

    reader: Any = None
    writer: int | None = None
    backend: str | None = None
    gpu: Backend | None = None
    ranks: Ranks | None = None
    timeout_s: float = 60.0
    ids: dict[str, str] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    observed: list[str] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)

    def send(self, **message: Any) -> None:
        if self.writer is None:
            return
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.writer, data) :]

    def receive(self) -> dict[str, Any] | None:
        """The next request, or None when there will be none."""
        line = self.reader.readline() if self.reader is not None else ""
        return json.loads(line) if line else None

    def device(self) -> Backend:
        if self.gpu is None:
            from portagpu.registry import VARIABLE, backend

            if self.backend:
                # the default too, also of this process's ranks: functions are cases as well
                os.environ[VARIABLE] = self.backend
            self.gpu = backend()
        return self.gpu

    def rank_server(self) -> Ranks:
        """The server of ranks, which imports torch while other cases run."""
        if self.ranks is None:
            from portagpu.world import Ranks

            self.ranks = Ranks()
            self.ranks.start()
        return self.ranks


_session: Final = pytest.StashKey[_Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option by which the parent process is reached."""
    parser.getgroup("portagpu").addoption("--portagpu-channel", default=None, metavar="R,W")


def pytest_configure(config: pytest.Config) -> None:
    """Take hold of the pipes, which no process started from here inherits."""
    session = _Session()
    channel = config.getoption("--portagpu-channel")
    if channel is not None:
        reader, writer = (int(number) for number in channel.split(","))
        for descriptor in (reader, writer):
            os.set_inheritable(descriptor, False)
        session.reader = os.fdopen(reader, encoding="utf-8")
        session.writer = writer
        # the child must not outlive the process that judges it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    config.stash[_session] = session
    config.pluginmanager.register(_BrokenFiles(session))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Fill in the parameters that a case declares."""
    case = getattr(metafunc.function, ATTRIBUTE, None)
    if isinstance(case, Case):
        for name, values in case.params:
            metafunc.parametrize(name, values, ids=[label(name, value) for value in values])


class _BrokenFiles:
    """Remembers the files that could not be read: the hook that tells of them has no config."""

    def __init__(self, session: _Session) -> None:
        self.session = session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            reason = lines[-1].removeprefix("E").strip() if lines else str(report.longrepr)
            self.session.problems.append({"name": Path(report.nodeid).name, "reason": reason})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell which cases there are, open the device that is asked for, and keep what is to run."""
    session = config.stash[_session]
    items.sort(key=_area)
    listed = _listed(session, items)
    session.send(event="collected", cases=list(listed), problems=session.problems)
    if session.writer is None:
        return
    request = session.receive()
    if request is None:
        items.clear()
        return
    session.backend, session.timeout_s = request["backend"], request["timeout_s"]
    try:
        gpu = session.device()
    except Exception as error:  # noqa: BLE001 - whatever keeps it from opening is the answer
        session.send(event="fatal", kind=type(error).__name__, reason=str(error))
        items.clear()
        return
    session.send(event="machine", machine=_machine(gpu))
    request = session.receive()
    by_id = {session.ids[item.nodeid]: item for item in items if item.nodeid in session.ids}
    items[:] = [] if request is None else [by_id[each] for each in request["ids"]]
    if any("world" in getattr(item, "fixturenames", ()) for item in items):
        session.rank_server()


def _area(item: pytest.Item) -> int:
    """Cases run in the order of the areas."""
    case = getattr(getattr(item, "function", None), ATTRIBUTE, None)
    return AREAS.index(case.area) if isinstance(case, Case) else len(AREAS)


def _listed(session: _Session, items: list[pytest.Item]) -> Iterator[dict[str, Any]]:
    """Describe every case; a function without one, or an id that is there twice, is a problem."""
    taken: dict[str, str] = {}
    for item in items:
        function = getattr(item, "function", None)
        case = getattr(function, ATTRIBUTE, None)
        where = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
        if not isinstance(case, Case):
            reason = f"{where} declares no case: put @case(id, spec=...) on it"
            session.problems.append({"name": item.name, "reason": reason})
            continue
        call = getattr(item, "callspec", None)
        full = case.id if call is None else f"{case.id}[{call.id}]"
        if full in taken:
            reason = f"{where} and {taken[full]} are both the case {full}: an id names one case"
            session.problems.append({"name": item.name, "reason": reason})
            continue
        taken[full] = where
        session.ids[item.nodeid] = full
        yield {
            "id": full,
            "area": case.area,
            "spec": case.spec,
            "traps": list(case.traps),
            "capability": [str(each) for each in case.capability],
            "outcome": case.outcome,
            "covers": list(case.covers),
            "smoke": case.smoke,
            "timeout_s": case.timeout_s,
            "does_not_show": case.does_not_show,
            "function": where,
        }


def _machine(gpu: Backend) -> dict[str, Any]:
    return {
        "backend": gpu.name,
        "device": str(gpu.device),
        "product": gpu.product,
        "vendor": gpu.vendor,
        "arch": str(gpu.arch),
        "capabilities": sorted(str(each) for each in gpu.capabilities),
        "target": None if gpu.target is None else Judged.of(gpu.target).to_json(),
        "versions": {**gpu.versions, "comm": gpu.comm.version},
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Announce a case, and afterwards what became of it."""
    session = item.config.stash[_session]
    name = session.ids.get(item.nodeid, item.nodeid)
    session.outcome = {"kind": "passed", "reason": "", "duration_s": 0.0}
    session.observed = []
    session.send(event="start", id=name)
    result = yield
    session.send(event="result", id=name, observed=session.observed, **session.outcome)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Keep the first thing that went wrong in set-up, call and tear-down."""
    session = item.config.stash[_session]
    outcome = session.outcome
    outcome["duration_s"] = round(outcome.get("duration_s", 0.0) + call.duration, 6)
    if call.excinfo is not None and outcome["kind"] == "passed":
        outcome["kind"], outcome["reason"] = what_happened(call.when, call.excinfo.value)
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say that the child ended as planned."""
    session.config.stash[_session].send(event="done")


def what_happened(when: str | None, error: BaseException) -> tuple[str, str]:
    """The kind of outcome, and its reason as a sentence of one line."""
    text = str(error).strip()
    first = text.splitlines()[0].strip() if text else ""
    named = f"raised {type(error).__name__}{': ' + first if first else ''}"
    if isinstance(error, NotHere):
        return "not-here", first
    if isinstance(error, NotClaimed):
        return "not-claimed", first
    if isinstance(error, pytest.skip.Exception):
        return "error", f"the case skipped itself, which hides what it should judge: {first}"
    if when != "call" and not isinstance(error, Unsupported):
        return "error", f"{when} {named}"
    if isinstance(error, Unsupported):
        return "unsupported", first
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        return "failed", first or "an assertion without a sentence did not hold"
    return "failed", named


@pytest.fixture(scope="session")
def gpu(pytestconfig: pytest.Config) -> Backend:
    """The device under test."""
    return pytestconfig.stash[_session].device()


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """torch, so that case files need not import it to be listed."""
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def target(gpu: Backend) -> Target | None:
    """The target that the device is, or None."""
    return gpu.target


@pytest.fixture(autouse=True)
def _same_start(torch: ModuleType) -> None:
    """Every case starts from the same random numbers, whatever ran before it."""
    torch.manual_seed(_SEED)


@pytest.fixture
def record(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Write down what a device does where nothing is specified."""
    return pytestconfig.stash[_session].observed.append


@pytest.fixture(scope="session")
def ranks(pytestconfig: pytest.Config) -> Iterator[Ranks]:
    """The server that forks worlds of ranks."""
    with pytestconfig.stash[_session].rank_server() as server:
        yield server


@pytest.fixture(scope="session")
def batches() -> Batches:
    """The worlds that ran for all parameters of a case at once."""
    return Batches()


@pytest.fixture
def world(
    request: pytest.FixtureRequest, gpu: Backend, ranks: Ranks, batches: Batches
) -> Callable[..., list[Any]]:
    """``world(n, function, **arguments)``: what ``function(rank, ...)`` returned on each rank.

    The function is one of the case's own file. A rank that raises, dies or hangs fails the case
    with a sentence that names it. Raises NotHere where there are fewer devices than ranks.
    """
    case: Case = getattr(request.function, ATTRIBUTE)
    session = request.config.stash[_session]
    limit_s = _WORLD_SHARE * (case.timeout_s or session.timeout_s)

    def run(n: int, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        if Capability.COLLECTIVES not in gpu.capabilities:
            raise Unsupported(f"the {gpu.name} backend does not claim collectives")
        if n > gpu.device_count() and not gpu.plugin.shared:
            raise NotHere(f"needs {n} devices, and this machine has {gpu.device_count()}")

        def fork(place: str, given: dict[str, Any], share: float = 1.0) -> WorldOutcome:
            limit = limit_s * share
            return ranks.run(place, n, arguments=given, backend=gpu.name, timeout_s=limit)

        def shared(place: str, given: dict[str, Any]) -> WorldOutcome:
            # what is left of the case's time is for a world of its own, should this one fail
            return fork(place, given, 0.5)

        place = f"{function.__code__.co_filename}:{function.__name__}"
        values, trouble = batches.values(case, place, n, arguments, shared)
        if values is not None:
            return values
        if trouble:
            session.observed.append(f"in one world with the other parameters: {trouble}")
        outcome = fork(place, arguments)
        if not outcome.ok:
            raise AssertionError(outcome.sentence.replace(f" {_RAISED}", ": "))
        return outcome.values

    return run
