"""The state of the child process (its channel, the device and the current case) and the fixtures of
cases: the device, torch, its target, worlds of ranks, and a place for notes.

A case's fixtures are what its result can depend on. They decide the evidence it can earn:
``EARNS`` of ``portagpu.suites.conformance.cases``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.environment import switched_on, unjudged
from portagpu.base.errors import Unsupported
from portagpu.facts.capability import Capability
from portagpu.facts.vendors import vendors
from portagpu.runs.world import RankState
from portagpu.suites.conformance.cases import (
    ATTRIBUTE,
    Case,
    NotClaimed,
    NotHere,
    RankFailed,
    WrongError,
)
from portagpu.suites.conformance.messages import DeviceUnderTest, Searches, TargetClaims
from portagpu.suites.conformance.ranks import Batches, batched_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from portagpu.base.subprocesses import Channel
    from portagpu.devices.collectives.comm import Comm
    from portagpu.devices.contract import Backend
    from portagpu.facts.targets import Target
    from portagpu.runs.world import RankOutcome, Ranks, WorldOutcome


@dataclass(slots=True)
class Session:
    """The state of one run in the child process."""

    channel: Channel | None = None
    folder: str = "/"
    """The working folder in which every case begins."""
    backend: str | None = None
    index: int = 0
    gpu: Backend | None = None
    ranks: Ranks | None = None
    reused: int = 0
    """How often a case took its values from a world that had run for another one."""
    timeout_s: float = 60.0
    upstream: bool = False
    """Whether the cases are PyTorch's own tests."""
    searches: Searches = field(default_factory=Searches)
    slow_areas: list[str] = field(default_factory=list)
    """The areas of random programs that are slow to load, which begins with ``quiet_from``."""
    quiet_from: str = ""
    """The node of the case with which a time begins in which no case needs ranks."""
    ids: dict[str, str] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    observed: list[str] = field(default_factory=list)
    shared_world: dict[str, str] | None = None
    """How the world that the case shared with its other parameters failed, or None."""
    problems: list[dict[str, str]] = field(default_factory=list)

    @property
    def worlds(self) -> int:
        """From how many worlds cases have had values or failures."""
        return self.reused + (0 if self.ranks is None else self.ranks.worlds)

    def send(self, **message: Any) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def receive(self) -> dict[str, Any] | None:
        """The next request, or None at the end."""
        return None if self.channel is None else self.channel.receive()

    def device(self) -> Backend:
        if self.gpu is None:
            from portagpu.devices.registry import VARIABLE, backend, select

            if self.backend:
                # also the default of this process and its ranks: functions are cases as well
                os.environ[VARIABLE] = self.backend
            # make it the current device, which functions without a handle use
            self.gpu = select(self.index) if self.index else backend()
        return self.gpu

    def rank_server(self) -> Ranks:
        """The server that forks ranks; it imports torch while other cases run."""
        if self.ranks is None:
            from portagpu.runs.world import Ranks

            server = Ranks()
            server.start()
            self.ranks = server
        return self.ranks

    def load_ahead(self, areas: list[str], files: Sequence[str] = ()) -> None:
        """Have the server of ranks load what the programs of those areas need, and these files."""
        if areas or files:
            place = "portagpu.suites.search.worker:load_areas"
            given = {"names": areas, "files": list(files)}
            self.rank_server().prepare(place, backend=self.backend, **given)


SESSION: Final = pytest.StashKey[Session]()
"""Where pytest's config keeps the session."""


def describe_device(gpu: Backend) -> DeviceUnderTest:
    """The description of the device for the parent.

    Raises TypeError if a name or a version is not text.
    """
    identity = {"uuid": gpu.uuid, "pci": gpu.pci}
    texts = {"product": gpu.product, "vendor": gpu.vendor, **identity, **gpu.versions}
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise TypeError(f"its {name} is {value!r} instead of text or None")
    return DeviceUnderTest(
        backend=gpu.name,
        name=str(gpu.device),
        count=1 if gpu.plugin.shared else gpu.device_count(),
        index=gpu.index,
        uuid=gpu.uuid,
        pci=gpu.pci,
        product=gpu.product,
        vendor=gpu.vendor,
        arch=str(gpu.arch),
        capabilities=frozenset(map(str, gpu.capabilities)),
        target=None if gpu.target is None else TargetClaims.from_target(gpu.target),
        start_s=float(gpu.plugin.start_s),
        overrides=tuple(gpu.plugin.overrides),
        versions={**gpu.versions, "comm": gpu.comm.version},
    )


def outcome_of_error(when: str | None, error: BaseException) -> tuple[str, str]:
    """The kind of outcome, and its reason in one line.

    "failed" is an assertion about a value, "raised" any other error, "lost" a rank that died,
    "hung" one that hung, "starved" one that hung on a busy machine.
    """
    text = str(error).strip()
    first = text.splitlines()[0].strip() if text else ""
    named = f"raised {type(error).__name__}{': ' + first if first else ''}"
    if isinstance(error, NotHere):
        return "not-here", first or named
    if isinstance(error, NotClaimed):
        return "not-claimed", first or named
    if isinstance(error, pytest.skip.Exception):
        return "error", f"the case skipped itself, which hides what it should judge: {first}"
    if when != "call" and not isinstance(error, Unsupported):
        return "error", f"{when} {named}"
    if isinstance(error, Unsupported):
        return "unsupported", first or named
    if isinstance(error, RankFailed):
        return error.kind, first
    if isinstance(error, WrongError):
        return "raised", first
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        return "failed", first or "an assertion without a sentence did not hold"
    return "raised", named


_SEED: Final = 20240607
_WORLD_SHARE: Final = 0.5
"""A world of ranks ends well before its case does, so that the rank at fault can be named."""
_RETRY_SHARE: Final = 0.6
"""The share of a world's time limit for a retry after a shared world that used all of its own."""
_RAISED: Final = "raised AssertionError: "


def comm_of(gpu: Backend) -> Comm:
    """The device's communication library; raises Unsupported without the claim of collectives."""
    if Capability.COLLECTIVES not in gpu.capabilities:
        raise Unsupported(f"the {gpu.name} backend does not claim collectives")
    return gpu.comm


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> Backend:
    """The device under test, for cases that read its description and run nothing on it."""
    return pytestconfig.stash[SESSION].device()


@pytest.fixture(scope="session")
def gpu(backend: Backend) -> Backend:
    """The device under test, for cases that run something on it."""
    return backend


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """torch, so that case files need not import it to be listed."""
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def target(backend: Backend) -> Target | None:
    """The target that the device is, or None."""
    return backend.target


@pytest.fixture
def comm(backend: Backend) -> Comm:
    """The device's communication library; Unsupported where the backend claims none."""
    return comm_of(backend)


@pytest.fixture
def installed() -> Callable[[str], bool]:
    """``installed(name)``: whether this Python has that package."""
    return lambda name: importlib.util.find_spec(name) is not None


@pytest.fixture(autouse=True)
def _same_start() -> None:
    """Seed torch, so that every case starts from the same random numbers."""
    importlib.import_module("torch").manual_seed(_SEED)


@pytest.fixture(autouse=True)
def _unaltered(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> None:
    """Raise NotHere for a case that can judge nothing under a variable of the environment."""
    case = getattr(request.function, ATTRIBUTE, None)
    if isinstance(case, Case) and case.unaltered:
        vendor = vendors().get(pytestconfig.stash[SESSION].device().plugin.vendor or "")
        on = switched_on(os.environ, vendor.switches if vendor is not None else ())
        reason = unjudged(case.unaltered, on, os.environ)
        if reason:
            raise NotHere(reason)


@pytest.fixture
def record(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """``record(text)``: note what a device does where nothing is specified."""
    return pytestconfig.stash[SESSION].observed.append


@pytest.fixture(scope="session")
def ranks(pytestconfig: pytest.Config) -> Iterator[Ranks]:
    """The server that forks worlds of ranks."""
    with pytestconfig.stash[SESSION].rank_server() as server:
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

    The function is defined in the case's file. A rank that raises, dies or hangs fails the case
    with a sentence that names it, unless it is in ``lost``; its value is then None. Raises NotHere
    if there are fewer devices than ranks.
    """
    case: Case = getattr(request.function, ATTRIBUTE)
    session = request.config.stash[SESSION]
    limit_s = _WORLD_SHARE * (case.timeout_s or session.timeout_s)

    def run(
        n: int, function: Callable[..., Any], *, lost: Sequence[int] = (), **arguments: Any
    ) -> list[Any]:
        _check_ranks(gpu, n)
        indices = _indices(gpu, n)

        def fork(place: str, given: dict[str, Any], share: float = 1.0) -> WorldOutcome:
            limit = limit_s * share
            return ranks.run(
                place,
                n,
                arguments=given,
                backend=gpu.name,
                indices=indices,
                lost=lost,
                timeout_s=limit,
            )

        place = f"{function.__code__.co_filename}:{function.__name__}"
        values, failed = None, None
        if not lost:
            calls = batched_calls(*_parameters(request), arguments)
            values, failed = batches.values(calls, place, n, arguments, fork)
        if values is not None:
            session.reused += 1
            return values
        if failed is not None and failed.first_failure is not None:
            sentence = failed.sentence.replace(f" {_RAISED}", ": ")
            session.shared_world = {"state": str(failed.first_failure.state), "sentence": sentence}
        outcome = fork(place, arguments, 1.0 if failed is None else _RETRY_SHARE)
        if outcome.first_failure is not None:
            raise _failure(outcome.first_failure, outcome.sentence)
        if not lost:
            batches.keep(place, n, arguments, outcome.values)
        return outcome.values

    return run


@pytest.fixture
def search(request: pytest.FixtureRequest, gpu: Backend) -> Callable[[], None]:
    """``search()``: run random programs of the case's area.

    Raises AssertionError with the smallest program on which the device differs from the model,
    NotHere if there are fewer devices than the area has ranks or the machine is too busy to judge,
    and Unsupported without a capability of the case: programs draw what is claimed, and other cases
    ask whether the rest is refused.
    """
    case: Case = getattr(request.function, ATTRIBUTE)
    session = request.config.stash[SESSION]

    def run() -> None:
        from portagpu.suites.search import SearchRequest, from_text, load_area
        from portagpu.suites.search import search as run_programs
        from portagpu.suites.search.area import Kind, kind_of

        declared = case.search
        if declared is None:
            raise ValueError(f"{case.id} declares no search")
        for each in case.capability:
            if each not in gpu.capabilities:
                raise Unsupported(f"the {gpu.name} backend does not claim {each}")
        form = request.node
        params = form.callspec.params if hasattr(form, "callspec") else {}
        area = declared.area_of(params)
        loaded = load_area(area)
        n = loaded.ranks
        if n > 1:
            _check_ranks(gpu, n)
        asked = session.searches
        wanted = SearchRequest(
            area=area,
            seconds=declared.seconds_of(params) * asked.share,
            seed=asked.seed,
            start_s=loaded.start_s,
            wait_s=loaded.wait_s,
            program=from_text(asked.program)[1] if asked.program else None,
        )

        def fork(
            place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
        ) -> WorldOutcome:
            return session.rank_server().run(
                place,
                n,
                arguments=arguments,
                backend=gpu.name,
                indices=_indices(gpu, n),
                group=n > 1,
                timeout_s=timeout_s,
                most_s=most_s,
            )

        report = run_programs(wanted, fork)
        if report.not_here:
            raise NotHere(report.not_here)
        programs = f"{report.programs} programs of {report.calls} calls"
        if report.total:
            programs = f"{report.programs} of {report.total} programs"
        if report.pairs[1]:
            programs += f", {report.pairs[0] / report.pairs[1]:.0%} of all pairs of values,"
        aside = "".join(f"; {reason}: {count} programs" for reason, count in report.aside)
        session.observed.append(f"{programs} in {report.seconds:.1f} s, seed {asked.seed}{aside}")
        unsure = "; and ".join(each.sentence for each in report.unsure)
        if report.failures:
            session.observed += [f"not judged: {unsure}"] if unsure else []
            text = "; and ".join(each.sentence for each in report.failures)
            if all(kind_of(each.difference) is Kind.HANG for each in report.failures):
                raise RankFailed(text, "hung")
            raise AssertionError(text)
        if unsure:
            raise NotHere(f"not judged: {unsure}: run it again on a quiet machine")

    return run


@pytest.fixture
def in_child(request: pytest.FixtureRequest, gpu: Backend) -> Callable[..., WorldOutcome]:
    """``in_child(function, **arguments)``: how it went in another process with this device.

    The function is defined in the case's file, and called as ``function(rank, **arguments)``. It
    may end its process, or leave the device in a state that no case could go on with.
    """
    case: Case = getattr(request.function, ATTRIBUTE)
    session = request.config.stash[SESSION]

    def run(function: Callable[..., Any], **arguments: Any) -> WorldOutcome:
        return session.rank_server().run(
            f"{function.__code__.co_filename}:{function.__name__}",
            arguments=arguments,
            backend=gpu.name,
            indices=[gpu.index],
            group=False,
            timeout_s=_WORLD_SHARE * (case.timeout_s or session.timeout_s),
        )

    return run


def _check_ranks(gpu: Backend, n: int) -> None:
    """Raise Unsupported without collectives, and NotHere for fewer than n devices."""
    comm_of(gpu)
    if n > gpu.device_count() and not gpu.plugin.shared:
        raise NotHere(f"needs {n} devices, and this machine has {gpu.device_count()}")


def _indices(gpu: Backend, n: int) -> list[int]:
    """The devices of n ranks; rank 0 has the device under test."""
    first, count = (0, n) if gpu.plugin.shared else (gpu.index, gpu.device_count())
    return [(first + rank) % count for rank in range(n)]


def _failure(blamed: RankOutcome, sentence: str) -> AssertionError:
    """The error of the case: an AssertionError for a rank's assertion, else RankFailed."""
    if blamed.state is RankState.RAISED and blamed.error.startswith(_RAISED):
        return AssertionError(sentence.replace(f" {_RAISED}", ": "))
    kind = {RankState.RAISED: "raised", RankState.HUNG: "hung"}.get(blamed.state, "lost")
    return RankFailed(sentence, "starved" if blamed.is_starved else kind)


def _parameters(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The parameters of this form of the case, and those of all its selected forms."""
    forms = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is request.function
    ]
    every = [item.callspec.params if hasattr(item, "callspec") else {} for item in forms]
    return every[forms.index(request.node)], every
